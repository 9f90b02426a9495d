"""Irreducible representations of O(3), written as e3nn writes them: ``"32x0e+32x1o"``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TERM = re.compile(r"(?:(\d+)x)?(\d+)([eo])")


@dataclass(frozen=True)
class Irrep:
    """One irreducible representation: degree ``l`` and parity, +1 (``e``) or -1 (``o``)."""

    l: int  # noqa: E741  the field's name for it
    parity: int

    @classmethod
    def parse(cls, text: str) -> Irrep:
        """Read ``"1o"``.

        Raises:
            ValueError: The text is not one irrep without multiplicity.
        """
        match = _TERM.fullmatch(text.strip())
        if match is None or match[1] is not None:
            raise ValueError(f"irrep: expected a degree and a parity such as '1o', got {text!r}")
        return cls(int(match[2]), 1 if match[3] == "e" else -1)

    @property
    def dim(self) -> int:
        """Number of components."""
        return 2 * self.l + 1

    def __str__(self) -> str:
        return f"{self.l}{'e' if self.parity == 1 else 'o'}"


def parse_irreps(text: str) -> tuple[tuple[int, Irrep], ...]:
    """Read ``"32x0e+32x1o"`` into (multiplicity, irrep) pairs, in the order written.

    Raises:
        ValueError: A term is not understood.
    """
    blocks = []
    for term in text.replace(" ", "").split("+"):
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"irreps: expected terms such as '32x1o', got {term!r} in {text!r}")
        blocks.append((int(match[1] or 1), Irrep(int(match[2]), 1 if match[3] == "e" else -1)))
    return tuple(blocks)


@dataclass(frozen=True)
class FeatureLayout:
    """Rows of a channel-fastest array ``[n, dim, channels]``: one block of rows per irrep."""

    channels: int
    irreps: tuple[Irrep, ...]

    @classmethod
    def parse(cls, text: str) -> FeatureLayout:
        """Read irreps whose multiplicities are all the same.

        Raises:
            ValueError: Multiplicities differ, or an irrep is written twice.
        """
        blocks = parse_irreps(text)
        irreps = tuple(irrep for _, irrep in blocks)
        channels = {mul for mul, _ in blocks}
        if len(channels) != 1:
            raise ValueError(
                f"irreps {text!r}: expected one multiplicity for all, got {sorted(channels)};"
                " models with unequal channels are not supported"
            )
        if len(set(irreps)) != len(irreps):
            raise ValueError(f"irreps {text!r}: expected every irrep once; simplify them")
        return cls(channels.pop(), irreps)

    @property
    def dim(self) -> int:
        """Number of rows."""
        return sum(irrep.dim for irrep in self.irreps)

    def rows(self, irrep: Irrep) -> slice:
        """Rows of one irrep.

        Raises:
            ValueError: The layout does not hold it.
        """
        if irrep not in self.irreps:
            raise ValueError(f"irrep {irrep}: expected one of {', '.join(map(str, self.irreps))}")
        start = sum(other.dim for other in self.irreps[: self.irreps.index(irrep)])
        return slice(start, start + irrep.dim)
