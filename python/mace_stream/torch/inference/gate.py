"""The gate of block NL between convolution and message, forward and backward.

Rows of the gate's input [n_gates + dim, n, C]: scalars, a row of gates for every irrep of l > 0,
and those irreps. Its output [dim, n, C] goes through a linear layer to the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mace_stream.torch.inference.blocks import Block, linear, linear_transposed, multiply

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Gate:
    """What lies between the convolution's linear layer and the message."""

    dims: tuple[int, ...]
    """Components of every gated irrep."""
    scalar: tuple[Function, Function]
    """Activation of scalars and its slope, scale included."""
    factor: tuple[Function, Function]
    """The same of gates."""
    linear: tuple[Block, ...]
    """From the gate's output to the message."""
    residual: tuple[Block, ...]
    """From the node's own ``up`` to the gate's input; empty in the first layer."""
    constant: Tensor | None
    """First layer: the same, from the species, [S, n_gates + dim, C]."""

    @property
    def n_gates(self) -> int:
        """Rows of gates."""
        return len(self.dims)

    def to(self, device: torch.device) -> Gate:
        """The same on a device."""
        return replace(
            self,
            linear=tuple(block.to(device) for block in self.linear),
            residual=tuple(block.to(device) for block in self.residual),
            constant=None if self.constant is None else self.constant.to(device),
        )

    def forward(
        self, x: Tensor, up: Tensor | None, species: int, gated: Tensor, message: Tensor
    ) -> None:
        """Complete the input ``x`` and turn it into the message.

        Args:
            x: What the convolution gives; the residual connection is added to it.
            up: Features of the tile's own nodes [dim_up, n, C_up]; None in the first layer.
            species: Of the tile.
            gated: Space for the gate's output [dim, n, C].
            message: [dim, n, C], is written.
        """
        if self.constant is not None:
            x.add_(self.constant[species][:, None])
        for block in self.residual:
            multiply(x[block.target], up[block.source], block.weight, add=True)
        gated[0] = self.scalar[0](x[0])
        for gate, rows, rest in self._gates():
            torch.mul(x[rest], self.factor[0](x[gate]), out=gated[rows])
        linear(message, gated, self.linear)

    def backward(
        self,
        x: Tensor,
        message_bar: Tensor,
        up: Tensor | None,
        up_bar: Tensor | None,
        species: int,
        gated_bar: Tensor,
    ) -> Tensor:
        """Turn the input ``x``, as :meth:`forward` left it, into its cotangent.

        Args:
            x: Is overwritten.
            message_bar: Cotangent of the message.
            up: As in :meth:`forward`.
            up_bar: Cotangent of ``up``, is added to; None in the first layer.
            species: Of the tile.
            gated_bar: Space for the cotangent of the gate's output.

        Returns:
            ``<x, x_bar>`` [n] of the part of ``x`` that comes from the convolution.
        """
        linear_transposed(gated_bar, message_bar, self.linear)
        scalar_bar = gated_bar[0] * self.scalar[1](x[0])
        dot = x[0] * scalar_bar
        x[0] = scalar_bar
        for gate, rows, rest in self._gates():
            factor = self.factor[0](x[gate])
            inner = (gated_bar[rows] * x[rest]).sum(0)
            gate_bar = inner * self.factor[1](x[gate])
            dot += inner * factor + x[gate] * gate_bar
            torch.mul(gated_bar[rows], factor, out=x[rest])
            x[gate] = gate_bar
        dot = dot.sum(1)
        if self.constant is not None:
            dot -= (self.constant[species][:, None] * x).sum((0, 2))
        for block in self.residual:
            bar = x[block.target] @ block.weight.T
            dot -= (up[block.source] * bar).sum((0, 2))
            up_bar[block.source] += bar
        return dot

    def _gates(self) -> Iterator[tuple[int, slice, slice]]:
        """Row of every gate, and the rows of the output and of the input that it multiplies."""
        row = 1
        for gate, dim in enumerate(self.dims):
            start = row + self.n_gates
            yield 1 + gate, slice(row, row + dim), slice(start, start + dim)
            row += dim
