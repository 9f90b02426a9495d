"""Matrix products over component-major features [dim, n, C]: one per irrep.

Irreps that lie one after the other in what is read and in what is written, with matrices of one
shape, are one batched product over their components: XLA then neither cuts nor joins arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.couplings import ConvPlan
from mace_stream.folded import Block


@dataclass(frozen=True)
class _Run:
    """Rows that one batched product maps."""

    source: slice
    target: slice
    weight: np.ndarray
    """[rows, K, C]"""

    def joined(self, block: Block) -> _Run | None:
        """This with a block at its end, or None where that does not fit."""
        follows = (block.source.start, block.target.start) == (self.source.stop, self.target.stop)
        if not follows or block.weight.shape != self.weight.shape[1:]:
            return None
        weight = np.concatenate([self.weight, _of_rows(block)])
        source, target = self.source.start, self.target.start
        ends = slice(source, block.source.stop), slice(target, block.target.stop)
        return _Run(*ends, weight)


def _of_rows(block: Block) -> np.ndarray:
    return np.repeat(block.weight[None], block.target.stop - block.target.start, axis=0)


class Mix:
    """A linear layer, without its numbers.

    Args:
        blocks: What maps which rows to which.
        dim_in: Rows of what it reads.
        dim_out: Rows of what it gives; those that no block writes are zero.
    """

    def __init__(self, blocks: Sequence[Block], dim_in: int, dim_out: int) -> None:
        self._dims = dim_in, dim_out
        self._channels_in, self._channels_out = blocks[0].weight.shape if blocks else (0, 0)
        self._runs: list[_Run] = []
        for block in sorted(blocks, key=lambda b: b.target.start):
            joined = self._runs[-1].joined(block) if self._runs else None
            if joined is not None:
                self._runs[-1] = joined
            else:
                self._runs.append(_Run(block.source, block.target, _of_rows(block)))

    def weights(self) -> list[np.ndarray]:
        """The numbers, float64: the last argument of the next two."""
        return [run.weight for run in self._runs]

    def __call__(self, x: Array, weights: Sequence[Array]) -> Array:
        """Map [dim_in, n, K] to [dim_out, n, C]."""
        parts = [
            (run.target, jnp.einsum("dnk,dkc->dnc", _rows(x, run.source), weight))
            for run, weight in zip(self._runs, weights, strict=True)
        ]
        return _filled(parts, self._dims[1], (x.shape[1], self._channels_out), x.dtype)

    def transposed(self, out_bar: Array, weights: Sequence[Array]) -> Array:
        """Map the cotangent of the result to that of the argument."""
        parts = [
            (run.source, jnp.einsum("dnc,dkc->dnk", _rows(out_bar, run.target), weight))
            for run, weight in zip(self._runs, weights, strict=True)
        ]
        return _added(parts, self._dims[0], (out_bar.shape[1], self._channels_in), out_bar.dtype)


class FirstMessageMix(Mix):
    """The linear layer after the first convolution; messages come and go in parts."""

    def __call__(self, sums: Array, weights: Sequence[Array]) -> list[Array]:
        """Map [dim_in, n, K] to [dim_out, n, C], in one part."""
        return [super().__call__(sums, weights)]

    def transposed(self, bars: Sequence[Array], weights: Sequence[Array]) -> Array:
        """Map the cotangent of the result to that of the argument."""
        return super().transposed(bars[0], weights)


class MessageMix:
    """The linear layer after a later convolution, which reads output blocks [dim, n, n_paths * C].

    Args:
        blocks: ``source`` are rows of the convolution's output, several paths side by side.
        plan: Of the convolution.
    """

    def __init__(self, blocks: Sequence[Block], plan: ConvPlan) -> None:
        self._blocks = sorted(blocks, key=lambda b: b.target.start)
        numbers = {block.rows.start: k for k, block in enumerate(plan.outputs)}
        self._sources = [numbers[block.source.start] for block in self._blocks]
        self._sizes = [(b.irrep.dim, b.n_paths * plan.channels) for b in plan.outputs]

    def weights(self) -> list[np.ndarray]:
        """The numbers, float64."""
        return [block.weight for block in self._blocks]

    def __call__(self, sums: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        """Map output blocks to [dim_out, n, C], a part for each irrep."""
        return [
            sums[source] @ weight for source, weight in zip(self._sources, weights, strict=True)
        ]

    def transposed(self, bars: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        """Map the cotangent of the result, in as many parts or in one, to those of the blocks."""
        if len(bars) < len(self._blocks):
            bars = [_rows(bars[0], block.target) for block in self._blocks]
        found: dict[int, Array] = {}
        for source, bar, weight in zip(self._sources, bars, weights, strict=True):
            part = bar @ weight.T
            found[source] = found[source] + part if source in found else part
        n, real = bars[0].shape[1], bars[0].dtype
        return [
            found[k] if k in found else jnp.zeros((dim, n, width), real)
            for k, (dim, width) in enumerate(self._sizes)
        ]


def _rows(x: Array, rows: slice) -> Array:
    return x if (rows.start, rows.stop) == (0, len(x)) else x[rows]


def _filled(
    parts: Sequence[tuple[slice, Array]], size: int, shape: tuple[int, ...], dtype: np.dtype
) -> Array:
    """Join parts in their order, with zeros in between."""
    pieces = list(_with_gaps(parts, size, shape, dtype))
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)


def _with_gaps(
    parts: Sequence[tuple[slice, Array]], size: int, shape: tuple[int, ...], dtype: np.dtype
) -> Iterator[Array]:
    end = 0
    for rows, part in parts:
        if rows.start > end:
            yield jnp.zeros((rows.start - end, *shape), dtype)
        yield part
        end = rows.stop
    if end < size:
        yield jnp.zeros((size - end, *shape), dtype)


def _added(
    parts: Sequence[tuple[slice, Array]], size: int, shape: tuple[int, ...], dtype: np.dtype
) -> Array:
    """Sum parts whose rows may overlap."""
    ordered = sorted(parts, key=lambda part: part[0].start)
    if all(a[0].stop <= b[0].start for a, b in pairwise(ordered)):
        return _filled(ordered, size, shape, dtype)
    total = jnp.zeros((size, *shape), dtype)
    for rows, part in ordered:
        total = total.at[rows].add(part)
    return total
