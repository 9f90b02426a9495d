"""Instructions of a tensor product, as ``e3nn.o3.TensorProduct`` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt

from mace_stream.couplings.irreps import Irrep, parse_irreps

MODES = ("uvu", "uvw")
IRREP_NORMALIZATIONS = ("component", "norm", "none")
PATH_NORMALIZATIONS = ("element", "path", "none")

_BUILT_SIZE = 7
SIZES = (5, 6, _BUILT_SIZE)


@dataclass(frozen=True)
class Instruction:
    """One coupling: a block of the input times a block of the harmonics, into a block."""

    blocks: tuple[int, int, int]
    """Positions in the irreps of input, harmonics and output."""
    muls: tuple[int, int, int]
    irreps: tuple[Irrep, Irrep, Irrep]
    mode: str
    has_weight: bool
    coefficient: float
    """What multiplies the Wigner 3j symbol."""

    @property
    def mixes_channels(self) -> bool:
        """Whether an output channel reads several input channels, or the reverse."""
        return self.mode == "uvw" and 1 not in (self.muls[0], self.muls[2])

    @property
    def channels(self) -> int:
        """Multiplicity that weights run over besides that of the harmonics."""
        return max(self.muls[0], self.muls[2])

    @property
    def n_weights(self) -> int:
        """Weights per edge, if it has any."""
        return prod(self.muls if self.mode == "uvw" else self.muls[:2])

    @property
    def n_summands(self) -> int:
        """Products that one output component sums over, but for the symbol's own sum."""
        return self.muls[1] if self.mode == "uvu" else self.muls[0] * self.muls[1]

    def __str__(self) -> str:
        first, second, out = (
            f"{mul}x{irrep}" for mul, irrep in zip(self.muls, self.irreps, strict=True)
        )
        return f"{first} x {second} -> {out} ({self.mode})"


def read_instructions(
    irreps: tuple[str, str, str],
    instructions: Sequence[tuple],
    irrep_normalization: str,
    path_normalization: str,
) -> list[Instruction]:
    """Check instructions and give each the coefficient that e3nn gives it.

    Args:
        irreps: Of input, harmonics and output.
        instructions: ``(i_in, i_sh, i_out, mode, has_weight[, path_weight])``; or seven entries,
            as in the attribute ``instructions`` of a built ``TensorProduct``, whose path weight is
            the coefficient.
        irrep_normalization: ``component``, ``norm`` or ``none``.
        path_normalization: ``element``, ``path`` or ``none``.

    Raises:
        ValueError: An instruction breaks a rule, or has a mode that is not supported.
    """
    _check_choice("irrep_normalization", irrep_normalization, IRREP_NORMALIZATIONS)
    _check_choice("path_normalization", path_normalization, PATH_NORMALIZATIONS)
    if len(instructions) == 0:
        raise ValueError("instructions: expected at least one")
    blocks = tuple(parse_irreps(text) for text in irreps)
    bare = [_read(entry, blocks) for entry in instructions]
    built = [len(entry) == _BUILT_SIZE for entry in instructions]
    if all(built):
        return bare
    if any(built):
        raise ValueError("instructions: expected all of a built TensorProduct, or none")
    norms = irrep_normalization, path_normalization
    return [replace(entry, coefficient=_coefficient(entry, bare, *norms)) for entry in bare]


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def _read(entry: Sequence, blocks: tuple) -> Instruction:
    """Read one entry; its coefficient is the path weight as given."""
    if len(entry) not in SIZES:
        raise ValueError(
            "instruction: expected (i_in, i_sh, i_out, mode, has_weight[, path_weight]),"
            f" got {tuple(entry)}"
        )
    *positions, mode, has_weight = entry[:5]
    for name, position, side in zip(("i_in", "i_sh", "i_out"), positions, blocks, strict=True):
        if not 0 <= position < len(side):
            raise ValueError(
                f"instruction {tuple(entry)}: expected {name} from 0 to {len(side) - 1}"
            )
    muls, irreps = zip(*(side[p] for side, p in zip(blocks, positions, strict=True)), strict=True)
    coefficient = float(entry[5]) if len(entry) > 5 else 1.0
    read = Instruction(tuple(positions), muls, irreps, mode, bool(has_weight), coefficient)
    _check_mode(read)
    _check_selection_rules(read)
    return read


def _check_mode(read: Instruction) -> None:
    if read.mode not in MODES:
        raise ValueError(
            f"instruction {read}: expected mode uvu or uvw; e3nn's other modes are not supported"
        )
    if 0 in read.muls:
        raise ValueError(f"instruction {read}: expected multiplicities of at least 1")
    if read.mode == "uvu" and read.muls[0] != read.muls[2]:
        raise ValueError(
            f"instruction {read}: expected the same multiplicity of input and output in mode uvu"
        )
    if read.mode == "uvw" and not read.has_weight:
        raise ValueError(f"instruction {read}: expected weights in mode uvw")


def _check_selection_rules(read: Instruction) -> None:
    first, second, out = read.irreps
    triangle = abs(first.l - second.l) <= out.l <= first.l + second.l
    if not triangle or first.parity * second.parity != out.parity:
        raise ValueError(
            f"instruction {read}: expected degrees within the triangle rule and conserved parity"
        )


def _coefficient(
    entry: Instruction, instructions: list[Instruction], irrep_norm: str, path_norm: str
) -> float:
    """Unit variance of every output component for unit variance of every input component.

    As ``e3nn.o3.TensorProduct`` defines it, its own variances left at one.
    """
    first, second, out = (irrep.dim for irrep in entry.irreps)
    square = {"component": out, "norm": first * second, "none": 1}[irrep_norm]
    same_output = [other for other in instructions if other.blocks[2] == entry.blocks[2]]
    square /= {
        "element": sum(other.n_summands for other in same_output),
        "path": entry.n_summands * len(same_output),
        "none": 1,
    }[path_norm]
    return sqrt(square * entry.coefficient)
