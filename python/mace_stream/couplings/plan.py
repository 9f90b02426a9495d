"""Static tables of one convolution: which rows couple to which, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from math import sqrt

import numpy as np

from mace_stream.couplings.blocks import (
    ZERO,
    OutputBlock,
    PathBlock,
    ProductBlock,
    path_terms,
)
from mace_stream.couplings.instructions import read_instructions
from mace_stream.couplings.irreps import FeatureLayout, Irrep
from mace_stream.couplings.tensor_product import E3nnLayout, build_tables
from mace_stream.couplings.traffic import PassTraffic, Sizes, count_traffic, describe_traffic
from mace_stream.spec import Path

_plans: dict[str, ConvPlan] = {}


@dataclass(frozen=True, eq=False)
class ConvPlan:
    """Everything about a convolution but its numbers per node and edge.

    ``terms[k] = (m_in, m_edge, path, m_out)`` and ``values[k]`` say that edge e adds
    ``values[k] * path_weights[e, path] * node_feats[sender[e], m_in] * edge_attrs[e, m_edge]``
    to row ``m_out`` of its receiver. Within an output irrep rows run over (component, path), so
    that the linear layer after it is one matrix product without a copy per path.
    """

    channels: int
    dim_in: int
    dim_edge: int
    dim_out: int
    paths: tuple[PathBlock, ...]
    outputs: tuple[OutputBlock, ...]
    terms: np.ndarray
    values: np.ndarray
    products: tuple[ProductBlock, ...] = ()
    """Instead of paths, where :attr:`refusal` is not empty."""
    refusal: str = ""
    """Why mode ``streaming`` cannot serve, if it cannot."""
    e3nn: E3nnLayout | None = None
    """Places in e3nn's vectors, if the plan was made from e3nn's instructions."""
    name: str = field(default="", init=False)
    """By which operators of a framework know the plan. Equal plans have one name, and the first of
    them lives until the process ends: loading a model again leaves nothing behind."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"plan{self._digest()}")
        _plans.setdefault(self.name, self)

    def _digest(self) -> str:
        rows = [(path.rows_in, path.rows_edge, path.rows_out) for path in self.paths]
        products = [
            tuple(value for key, value in vars(product).items() if key != "coupling")
            for product in self.products
        ]
        sizes = self.channels, self.dim_in, self.dim_edge, self.dim_out
        text = repr((sizes, rows, self.outputs, products, self.refusal))
        parts = text.encode(), self.terms.tobytes(), self.values.tobytes()
        return sha256(b"".join(parts)).hexdigest()[:16]

    @staticmethod
    def by_name(name: str) -> ConvPlan:
        """Return a plan of that name."""
        return _plans[name]

    @property
    def n_paths(self) -> int:
        """Rows of the path weights."""
        if self.products:
            return self.products[-1].rows_weight.stop
        return len(self.paths)

    @cached_property
    def traffic(self) -> tuple[PassTraffic, PassTraffic, PassTraffic]:
        """Numbers moved per edge by forward, first and second derivative."""
        sizes = Sizes(self.n_paths, self.dim_in, self.dim_edge, self.dim_out, self.channels)
        return count_traffic(sizes)

    @property
    def sender_owned(self) -> bool:
        """Whether node cotangents move fewer bytes when each sender walks its own edges."""
        return self.traffic[1].sender_owned

    @property
    def sender_owned_second(self) -> bool:
        """The same for the second derivative, where that walk is done twice."""
        return self.traffic[2].sender_owned

    def describe(self, dtype: str = "float32") -> str:
        """Say which kernels ``mode="auto"`` takes, why, and the bytes per edge of every way.

        Args:
            dtype: ``float32`` or ``float64``.
        """
        sizes = (
            f"{self.n_paths} paths, {self.channels} channels, {len(self.values)} couplings; rows:"
            f" {self.dim_in} of the input, {self.dim_edge} of the harmonics, {self.dim_out} of the"
            " output"
        )
        if self.refusal:
            return f"{sizes}\nmode standard: {self.refusal}; batched products in plain torch"
        head = "mode streaming: every path keeps its channels (uvu)"
        table = describe_traffic(self.traffic, dtype)
        return "\n".join([sizes, head, f"bytes per edge, {dtype}:", *table])

    @classmethod
    def from_irreps(
        cls,
        irreps_in: object,
        irreps_sh: object,
        irreps_out: object,
        instructions: Sequence[tuple],
        *,
        irrep_normalization: str = "component",
        path_normalization: str = "element",
    ) -> ConvPlan:
        """Build the tables that stand for ``e3nn.o3.TensorProduct`` and a sum over edges.

        Give what the product was built from, or the attributes ``irreps_in1``, ``irreps_in2``,
        ``irreps_out`` and ``instructions`` of the product itself. Weights come per edge
        (``shared_weights=False, internal_weights=False``). The number of channels is the greatest
        that divides every multiplicity.

        Args:
            irreps_in: Of the nodes, for example ``"128x0e+128x1o"``, or e3nn's ``Irreps``.
            irreps_sh: Of the edges.
            irreps_out: Of the message.
            instructions: ``(i_in, i_sh, i_out, mode, has_weight[, path_weight])``, mode ``uvu``
                or ``uvw``.
            irrep_normalization: ``component``, ``norm`` or ``none``.
            path_normalization: ``element``, ``path`` or ``none``.

        Raises:
            ValueError: An instruction breaks a rule, or has a mode that is not supported.
        """
        irreps = (str(irreps_in), str(irreps_sh), str(irreps_out))
        read = read_instructions(irreps, instructions, irrep_normalization, path_normalization)
        return cls(**build_tables(irreps, read))

    @classmethod
    def build(
        cls,
        irreps_in: str,
        l_max: int,
        paths: Sequence[Path],
        w3j: Mapping[tuple[str, int, str], np.ndarray],
    ) -> ConvPlan:
        """Build the tables of paths that couple ``irreps_in`` with harmonics up to ``l_max``.

        Args:
            irreps_in: Node features that the convolution reads, equal multiplicities.
            l_max: Highest degree of the spherical harmonics.
            paths: In the order of the path weights; those with one output irrep stand together.
            w3j: Coupling tensor ``[2l_in+1, 2l_edge+1, 2l_out+1]`` of every path.

        Raises:
            ValueError: A path breaks a selection rule, or its coupling is missing or misshapen.
        """
        layout = FeatureLayout.parse(irreps_in)
        outputs = _output_blocks(paths)
        blocks = tuple(_path_blocks(layout, l_max, paths, outputs, w3j))
        terms, values = path_terms(blocks)
        return cls(
            channels=layout.channels,
            dim_in=layout.dim,
            dim_edge=(l_max + 1) ** 2,
            dim_out=sum(block.irrep.dim * block.n_paths for block in outputs),
            paths=blocks,
            outputs=outputs,
            terms=terms,
            values=values,
        )


def _output_blocks(paths: Sequence[Path]) -> tuple[OutputBlock, ...]:
    blocks: list[OutputBlock] = []
    start = 0
    names = [path.ir_out for path in paths]
    for name in dict.fromkeys(names):
        first, count = names.index(name), names.count(name)
        if names[first : first + count] != [name] * count:
            raise ValueError(f"paths: expected those that end in {name} to stand together")
        irrep = Irrep.parse(name)
        stop = start + irrep.dim * count
        blocks.append(OutputBlock(irrep, slice(start, stop), count))
        start = stop
    return tuple(blocks)


def _path_blocks(layout, l_max, paths, outputs, w3j):  # noqa: ANN001, ANN202  see ConvPlan.build
    seen: dict[Irrep, int] = {}
    for path in paths:
        ir_in, ir_out = Irrep.parse(path.ir_in), Irrep.parse(path.ir_out)
        _check_selection_rules(path, ir_in, ir_out, l_max)
        block = next(block for block in outputs if block.irrep == ir_out)
        position = seen.get(ir_out, 0)
        seen[ir_out] = position + 1
        yield PathBlock(
            rows_in=layout.rows(ir_in),
            rows_edge=slice(path.l_edge**2, (path.l_edge + 1) ** 2),
            rows_out=slice(block.rows.start + position, block.rows.stop, block.n_paths),
            coupling=_coupling(path, ir_in, ir_out, w3j),
        )


def _check_selection_rules(path: Path, ir_in: Irrep, ir_out: Irrep, l_max: int) -> None:
    triangle = abs(ir_in.l - path.l_edge) <= ir_out.l <= ir_in.l + path.l_edge
    parity = ir_in.parity * (-1) ** path.l_edge == ir_out.parity
    if not (triangle and parity and path.l_edge <= l_max):
        raise ValueError(
            f"path {path.ir_in} x {path.l_edge} -> {path.ir_out}: expected degrees within the"
            f" triangle rule, conserved parity and an edge degree up to {l_max}"
        )


def _coupling(path: Path, ir_in: Irrep, ir_out: Irrep, w3j: Mapping) -> np.ndarray:
    key = (path.ir_in, path.l_edge, path.ir_out)
    shape = (ir_in.dim, 2 * path.l_edge + 1, ir_out.dim)
    if key not in w3j or w3j[key].shape != shape:
        got = w3j[key].shape if key in w3j else "none"
        raise ValueError(f"w3j of path {key}: expected shape {shape}, got {got}")
    symbol = np.asarray(w3j[key], dtype=np.float64)
    return sqrt(ir_out.dim) * np.where(np.abs(symbol) > ZERO, symbol, 0.0)
