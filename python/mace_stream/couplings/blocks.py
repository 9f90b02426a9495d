"""Pieces of a convolution's tables: paths, outputs, and products that mix channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mace_stream.couplings.irreps import Irrep

ZERO = 1e-12
"""Couplings below this are rounding noise of a symbol whose Frobenius norm is one."""


@dataclass(frozen=True)
class PathBlock:
    """One path: the rows it reads and writes, and its dense coupling. Channels stay apart."""

    rows_in: slice
    rows_edge: slice
    rows_out: slice
    """Strided: the components of one output block are interleaved with its other paths."""
    coupling: np.ndarray
    """``[2l_in+1, 2l_edge+1, 2l_out+1]``, normalisation included."""


@dataclass(frozen=True)
class OutputBlock:
    """All paths that end in one block: rows ``[component, path]``, component slowest."""

    irrep: Irrep
    rows: slice
    n_paths: int


@dataclass(frozen=True)
class ProductBlock:
    """One instruction of a convolution that mixes channels, which here are rows.

    Rows are those of e3nn's layout: ``[mul, component]``, component fastest. So are the weights:
    ``[mul_in, mul_edge, mul_out]`` for ``uvw``, ``[mul_in, mul_edge]`` for ``uvu``.
    """

    name: str
    mode: str
    muls: tuple[int, int, int]
    rows_in: slice
    rows_edge: slice
    rows_out: slice
    rows_weight: slice
    coupling: np.ndarray
    """``[2l_in+1, 2l_edge+1, 2l_out+1]``, normalisation included."""

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Multiplicities that the weights run over."""
        return self.muls if self.mode == "uvw" else self.muls[:2]


def path_terms(paths: Sequence[PathBlock]) -> tuple[np.ndarray, np.ndarray]:
    """Return ``terms [n, 4]`` and ``values [n]`` of paths; see ``ConvPlan``."""
    tables = []
    for index, path in enumerate(paths):
        m_in, m_edge, m_out = np.nonzero(path.coupling)
        columns = (
            path.rows_in.start + m_in,
            path.rows_edge.start + m_edge,
            np.full(len(m_in), index),
            path.rows_out.start + m_out * path.rows_out.step,
        )
        tables.append((np.stack(columns, axis=1), path.coupling[m_in, m_edge, m_out]))
    return _joined(tables)


def product_terms(products: Sequence[ProductBlock]) -> tuple[np.ndarray, np.ndarray]:
    """Return the same for products: every weight is a path of one channel."""
    return _joined(_terms_of_product(product) for product in products)


def _terms_of_product(product: ProductBlock) -> tuple[np.ndarray, np.ndarray]:
    m_in, m_edge, m_out = np.nonzero(product.coupling)
    values = product.coupling[m_in, m_edge, m_out]
    weights = np.indices(product.weight_shape).reshape(len(product.weight_shape), -1, 1)
    u, v, w = weights[0], weights[1], weights[-1 if product.mode == "uvw" else 0]
    dim_in, dim_edge, dim_out = product.coupling.shape
    columns = (
        product.rows_in.start + u * dim_in + m_in,
        product.rows_edge.start + v * dim_edge + m_edge,
        product.rows_weight.start + np.arange(u.size)[:, None] + 0 * m_in,
        product.rows_out.start + w * dim_out + m_out,
    )
    terms = np.stack(columns, axis=-1).reshape(-1, 4)
    return terms, np.broadcast_to(values, (u.size, len(values))).reshape(-1)


def _joined(
    tables: Sequence[tuple[np.ndarray, np.ndarray]] | Iterator[tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    terms, values = zip(*tables, strict=True)
    return np.concatenate(terms).astype(np.int32), np.concatenate(values)
