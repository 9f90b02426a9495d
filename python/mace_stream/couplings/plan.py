"""Static tables of one convolution: which rows couple to which, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from mace_stream.couplings.irreps import FeatureLayout, Irrep
from mace_stream.spec import Path

_ZERO = 1e-12
"""Couplings below this are rounding noise of a symbol whose Frobenius norm is one."""


@dataclass(frozen=True)
class PathBlock:
    """One path: the rows it reads and writes, and its dense coupling."""

    rows_in: slice
    rows_edge: slice
    rows_out: slice
    """Strided: the components of one output irrep are interleaved with its other paths."""
    coupling: np.ndarray
    """``[2l_in+1, 2l_edge+1, 2l_out+1]``, path weight ``sqrt(2l_out+1)`` included."""


@dataclass(frozen=True)
class OutputBlock:
    """All paths that end in one irrep: rows ``[component, path]``, component slowest."""

    irrep: Irrep
    rows: slice
    n_paths: int


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

    @property
    def n_paths(self) -> int:
        """Number of paths."""
        return len(self.paths)

    @property
    def sender_owned(self) -> bool:
        """Whether node cotangents move fewer bytes when each sender walks its own edges."""
        by_receiver, by_sender = self.node_cotangent_numbers()
        return by_sender < by_receiver

    def node_cotangent_numbers(self) -> tuple[int, int]:
        """Numbers moved per edge and channel for the cotangents of the nodes.

        Adding them atomically while a receiver's edges are walked reads and writes ``dim_in``
        numbers. A walk over a sender's edges reads weights and message cotangents once more.
        """
        return 2 * self.dim_in, self.n_paths + self.dim_out

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
        terms, values = _sparse_terms(blocks)
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
    return sqrt(ir_out.dim) * np.where(np.abs(symbol) > _ZERO, symbol, 0.0)


def _sparse_terms(paths: Sequence[PathBlock]) -> tuple[np.ndarray, np.ndarray]:
    terms, values = [], []
    for index, path in enumerate(paths):
        m_in, m_edge, m_out = np.nonzero(path.coupling)
        values.append(path.coupling[m_in, m_edge, m_out])
        columns = (
            path.rows_in.start + m_in,
            path.rows_edge.start + m_edge,
            np.full(len(m_in), index),
            path.rows_out.start + m_out * path.rows_out.step,
        )
        terms.append(np.stack(columns, axis=1))
    return np.concatenate(terms).astype(np.int32), np.concatenate(values)
