"""Tables of a convolution that stands for ``e3nn.o3.TensorProduct`` and a sum over edges."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from mace_stream.couplings.blocks import (
    ZERO,
    OutputBlock,
    PathBlock,
    ProductBlock,
    path_terms,
    product_terms,
)
from mace_stream.couplings.instructions import Instruction
from mace_stream.couplings.irreps import Irrep, parse_irreps
from mace_stream.couplings.wigner import wigner_3j

MAX_DIM_EDGE = 32
"""Harmonics that the kernels hold: one per lane of a warp."""


@dataclass(frozen=True, eq=False)
class E3nnLayout:
    """Where every number of a plan's arrays stands in e3nn's flat vectors (``mul_ir``)."""

    irreps_in: str
    irreps_sh: str
    irreps_out: str
    n_weights: int
    """Numbers per edge in e3nn's order: instruction by instruction, last multiplicity fastest."""
    node_index: np.ndarray
    """``[dim_in, channels]``: a number that stands for all channels occurs in each."""
    weight_index: np.ndarray
    """``[n_paths, channels]``: -1 stands for the constant one of a path without weights."""
    message_index: np.ndarray
    """``[dim_out, channels]``: rows of the same index are summed."""

    @property
    def dim_in(self) -> int:
        """Length of e3nn's vector of a node."""
        return _total_dim(parse_irreps(self.irreps_in))

    @property
    def dim_out(self) -> int:
        """Length of e3nn's vector of a message."""
        return _total_dim(parse_irreps(self.irreps_out))


def first_places(index: np.ndarray) -> np.ndarray:
    """Return a mask of where each number of ``index`` occurs first; -1 is no number."""
    mask = np.zeros(index.size, dtype=bool)
    values, places = np.unique(index.reshape(-1), return_index=True)
    mask[places[values >= 0]] = True
    return mask.reshape(index.shape)


def build_tables(irreps: tuple[str, str, str], instructions: list[Instruction]) -> dict[str, Any]:
    """Return the fields of a ``ConvPlan``.

    Every instruction becomes one path per ``channels`` of its multiplicity and per copy of the
    harmonics, where ``channels`` divides all multiplicities. If an instruction mixes channels, all
    become products instead.

    Args:
        irreps: Of input, harmonics and output.
        instructions: From :func:`mace_stream.couplings.instructions.read_instructions`.
    """
    refusal = _refusal(irreps[1], instructions)
    tables = _product_tables if refusal else _path_tables
    return tables(irreps, instructions) | {"refusal": refusal}


def _refusal(irreps_sh: str, instructions: list[Instruction]) -> str:
    for entry in instructions:
        if entry.mixes_channels:
            return f"instruction {entry} mixes channels"
    dim_edge = _total_dim(parse_irreps(irreps_sh))
    if dim_edge > MAX_DIM_EDGE:
        return f"the harmonics have {dim_edge} components and the kernels hold {MAX_DIM_EDGE}"
    return ""


# ---- channels apart: paths ----


def _path_tables(irreps: tuple[str, str, str], instructions: list[Instruction]) -> dict[str, Any]:
    side_in, side_edge, side_out = (_Side.parse(text) for text in irreps)
    channels = gcd(*(entry.channels for entry in instructions))
    paths = list(_split(instructions, channels))
    starts_in, node_index = _input_rows(side_in, instructions, channels)
    outputs, places, message_index = _output_rows(side_out, paths, channels)
    blocks = []
    for path, rows_out in zip(paths, places, strict=True):
        dim_in, dim_edge, _ = (irrep.dim for irrep in path.entry.irreps)
        start = starts_in[path.entry.blocks[0]]
        start += dim_in * path.chunk if path.entry.muls[0] > 1 else 0
        edge = side_edge.starts[path.entry.blocks[1]] + dim_edge * path.copy
        rows = slice(start, start + dim_in), slice(edge, edge + dim_edge), rows_out
        blocks.append(PathBlock(*rows, _coupling(path.entry)))
    terms, values = path_terms(blocks)
    weight_index, n_weights = _weight_index(instructions, paths, channels)
    return {
        "channels": channels,
        "dim_in": len(node_index),
        "dim_edge": side_edge.dim,
        "dim_out": len(message_index),
        "paths": tuple(blocks),
        "outputs": outputs,
        "terms": terms,
        "values": values,
        "e3nn": E3nnLayout(*irreps, n_weights, node_index, weight_index, message_index),
    }


@dataclass(frozen=True)
class _Side:
    """Blocks of one of the three irreps, and where each starts in e3nn's vector."""

    blocks: tuple[tuple[int, Irrep], ...]
    starts: tuple[int, ...]
    dim: int

    @classmethod
    def parse(cls, text: str) -> _Side:
        blocks = parse_irreps(text)
        starts = tuple(_total_dim(blocks[:k]) for k in range(len(blocks)))
        return cls(blocks, starts, _total_dim(blocks))

    def index(self, block: int, mul: np.ndarray) -> np.ndarray:
        """Return ``[component, mul]``: places in e3nn's vector."""
        dim = self.blocks[block][1].dim
        return self.starts[block] + mul * dim + np.arange(dim)[:, None]


@dataclass(frozen=True)
class _Path:
    """Share of an instruction: one chunk of its channels, one copy of the harmonics."""

    entry: Instruction
    number: int
    copy: int
    chunk: int

    def members(self, channels: int) -> np.ndarray:
        """Return the multiplicities of the channels."""
        return self.chunk * channels + np.arange(channels)


def _split(instructions: list[Instruction], channels: int) -> list[_Path]:
    return [
        _Path(entry, number, copy, chunk)
        for number, entry in enumerate(instructions)
        for copy in range(entry.muls[1])
        for chunk in range(entry.channels // channels)
    ]


def _input_rows(
    side: _Side, instructions: list[Instruction], channels: int
) -> tuple[dict[int, int], np.ndarray]:
    """First row of every block that is read, and the places of all rows."""
    starts: dict[int, int] = {}
    rows: list[np.ndarray] = []
    for block in sorted({entry.blocks[0] for entry in instructions}):
        starts[block] = sum(map(len, rows))
        mul = side.blocks[block][0]
        if mul == 1:
            rows.append(side.index(block, np.zeros(channels, dtype=np.int64)))
        else:
            chunks = np.arange(mul).reshape(-1, channels)
            rows += [side.index(block, chunk) for chunk in chunks]
    return starts, np.concatenate(rows)


def _output_rows(
    side: _Side, paths: list[_Path], channels: int
) -> tuple[tuple[OutputBlock, ...], list[slice], np.ndarray]:
    """Output blocks, the rows of every path, and the places of all rows."""
    outputs: list[OutputBlock] = []
    rows: list[np.ndarray] = []
    places: dict[_Path, slice] = {}
    start = 0
    for block in sorted({path.entry.blocks[2] for path in paths}):
        mine = [path for path in paths if path.entry.blocks[2] == block]
        mul, irrep = side.blocks[block]
        stop = start + irrep.dim * len(mine)
        outputs.append(OutputBlock(irrep, slice(start, stop), len(mine)))
        places |= {p: slice(start + k, stop, len(mine)) for k, p in enumerate(mine)}
        members = [path.members(channels) * (mul > 1) for path in mine]
        table = np.stack([side.index(block, member) for member in members], axis=1)
        rows.append(table.reshape(-1, channels))
        start = stop
    return tuple(outputs), [places[path] for path in paths], np.concatenate(rows)


def _weight_index(
    instructions: list[Instruction], paths: list[_Path], channels: int
) -> tuple[np.ndarray, int]:
    starts, n_weights = _weight_starts(instructions)
    rows = []
    for path in paths:
        entry, members = path.entry, path.members(channels)
        if entry.mode == "uvw" and entry.muls[0] == 1:
            within = path.copy * entry.muls[2] + members
        else:
            within = members * entry.muls[1] + path.copy
        rows.append(starts[path.number] + within if entry.has_weight else np.full(channels, -1))
    return np.stack(rows), n_weights


def _weight_starts(instructions: list[Instruction]) -> tuple[list[int], int]:
    sizes = [entry.n_weights * entry.has_weight for entry in instructions]
    return [sum(sizes[:k]) for k in range(len(sizes))], sum(sizes)


# ---- channels mixed: products ----


def _product_tables(
    irreps: tuple[str, str, str], instructions: list[Instruction]
) -> dict[str, Any]:
    """One channel; rows and weights are e3nn's own."""
    sides = tuple(_Side.parse(text) for text in irreps)
    starts, n_weights = _weight_starts(instructions)
    products, weight_rows, first = [], [], 0
    for entry, start in zip(instructions, starts, strict=True):
        rows = [
            slice(side.starts[block], side.starts[block] + mul * irrep.dim)
            for side, block, mul, irrep in zip(
                sides, entry.blocks, entry.muls, entry.irreps, strict=True
            )
        ]
        weights = slice(first, first + entry.n_weights)
        first = weights.stop
        places = start + np.arange(entry.n_weights)
        weight_rows.append(places if entry.has_weight else np.full(entry.n_weights, -1))
        products.append(
            ProductBlock(str(entry), entry.mode, entry.muls, *rows, weights, _coupling(entry))
        )
    terms, values = product_terms(products)
    dims = [side.dim for side in sides]
    tables = (np.arange(dims[0]), np.concatenate(weight_rows), np.arange(dims[2]))
    return {
        "channels": 1,
        "dim_in": dims[0],
        "dim_edge": dims[1],
        "dim_out": dims[2],
        "paths": (),
        "outputs": (),
        "products": tuple(products),
        "terms": terms,
        "values": values,
        "e3nn": E3nnLayout(*irreps, n_weights, *(table[:, None] for table in tables)),
    }


def _coupling(entry: Instruction) -> np.ndarray:
    symbol = wigner_3j(*(irrep.l for irrep in entry.irreps))
    return entry.coefficient * np.where(np.abs(symbol) > ZERO, symbol, 0.0)


def _total_dim(blocks: tuple[tuple[int, Irrep], ...]) -> int:
    return sum(mul * irrep.dim for mul, irrep in blocks)
