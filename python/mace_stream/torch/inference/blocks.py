"""Matrix products over component-major features [dim, n, C]: one per irrep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Rows ``source`` times ``weight`` [K, C] give rows ``target``."""

    source: slice
    target: slice
    weight: Tensor

    def to(self, device: torch.device) -> Block:
        """The same on a device."""
        return Block(self.source, self.target, self.weight.to(device))


def linear(out: Tensor, x: Tensor, blocks: Sequence[Block]) -> None:
    """Mix channels within each irrep; rows that no block writes become zero."""
    written = sum(block.target.stop - block.target.start for block in blocks)
    if written < len(out):
        out.zero_()
    for block in blocks:
        multiply(out[block.target], x[block.source], block.weight)


def linear_transposed(x_bar: Tensor, out_bar: Tensor, blocks: Sequence[Block]) -> None:
    """The cotangent of ``x`` in :func:`linear`."""
    read = sum(block.source.stop - block.source.start for block in blocks)
    if read < len(x_bar):
        x_bar.zero_()
    for block in blocks:
        multiply(x_bar[block.source], out_bar[block.target], block.weight.T)


def multiply(out: Tensor, x: Tensor, weight: Tensor, *, add: bool = False) -> None:
    """``out`` [d, n, C] = or += ``x`` [d, n, K] @ ``weight`` [K, C]; closely packed, in one go."""
    if out.is_contiguous() and x.is_contiguous():
        out, x = out.view(1, -1, out.shape[-1]), x.view(1, -1, x.shape[-1])
    for out_row, x_row in zip(out, x, strict=True):
        if add:
            out_row.addmm_(x_row, weight)
        else:
            torch.mm(x_row, weight, out=out_row)
