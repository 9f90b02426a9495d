"""Matrices of the inference path as tensors; :mod:`mace_stream.folded` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mace_stream.folded import Activation, FoldedGate, FoldedLayer, FoldedReadout
from mace_stream.folded import Block as FoldedBlock
from mace_stream.torch.folding import ACTIVATIONS, activation
from mace_stream.torch.inference.blocks import Block
from mace_stream.torch.inference.gate import Function, Gate


@dataclass(frozen=True)
class Layer:
    """One interaction, product and what is read out of them. Lists run over present species."""

    message: tuple[tuple[Block, ...], ...]
    """From the convolution to the message, or to the gate, species by species. ``source`` are rows
    of [dim, n, K] for the first layer, and of the convolution's output blocks for the others."""
    up: tuple[Block, ...]
    """From node features to what the convolution reads; empty in the first layer."""
    product: tuple[Block, ...]
    """From the contraction to node features."""
    skip: tuple[tuple[Block, ...], ...]
    """From the layer's input features to its output, species by species; may be empty."""
    constant: Tensor | None
    """First layer: what the skip adds to each output row, [S, dim_out, C]."""
    readouts: tuple[Readout, ...]
    dim_message: int
    dim_out: int
    has_density: bool
    gate: Gate | None

    @property
    def n_gates(self) -> int:
        """Rows of gates beside the message's."""
        return 0 if self.gate is None else self.gate.n_gates

    def to(self, device: torch.device) -> Layer:
        """The same on a device."""
        return replace(
            self,
            message=tuple(tuple(b.to(device) for b in blocks) for blocks in self.message),
            up=tuple(b.to(device) for b in self.up),
            product=tuple(b.to(device) for b in self.product),
            skip=tuple(tuple(b.to(device) for b in blocks) for blocks in self.skip),
            constant=None if self.constant is None else self.constant.to(device),
            readouts=tuple(readout.to(device) for readout in self.readouts),
            gate=None if self.gate is None else self.gate.to(device),
        )


@dataclass(frozen=True)
class Readout:
    """``act(x W1) . w2`` or ``x . w2`` of the scalars x [n, C]; scale included."""

    row: int
    hidden: Tensor | None
    weight: Tensor
    activation: Callable[[Tensor], Tensor] | None
    slope: Callable[[Tensor], Tensor] | None

    def to(self, device: torch.device) -> Readout:
        """The same on a device."""
        hidden = None if self.hidden is None else self.hidden.to(device)
        return replace(self, hidden=hidden, weight=self.weight.to(device))

    def energy_and_slope(self, scalars: Tensor) -> tuple[Tensor, Tensor]:
        """Energies [n] and their derivatives with respect to ``scalars``, [n, C]."""
        if self.hidden is None:
            return scalars @ self.weight, self.weight.expand_as(scalars)
        inner = scalars @ self.hidden
        bar = self.slope(inner) * self.weight
        return self.activation(inner) @ self.weight, bar @ self.hidden.T


def layers_of(folded: Sequence[FoldedLayer], dtype: torch.dtype) -> list[Layer]:
    """Return the layers with tensors of type ``dtype`` for arrays."""
    return [_layer(layer, dtype) for layer in folded]


def _layer(folded: FoldedLayer, dtype: torch.dtype) -> Layer:
    return Layer(
        message=tuple(_blocks(blocks, dtype) for blocks in folded.message),
        up=_blocks(folded.up, dtype),
        product=_blocks(folded.product, dtype),
        skip=tuple(_blocks(blocks, dtype) for blocks in folded.skip),
        constant=_tensor(folded.constant, dtype),
        readouts=tuple(_readout(readout, dtype) for readout in folded.readouts),
        dim_message=folded.dim_message,
        dim_out=folded.dim_out,
        has_density=folded.has_density,
        gate=None if folded.gate is None else _gate(folded.gate, dtype),
    )


def _blocks(blocks: Sequence[FoldedBlock], dtype: torch.dtype) -> tuple[Block, ...]:
    return tuple(Block(b.source, b.target, _tensor(b.weight, dtype)) for b in blocks)


def _tensor(array: np.ndarray | None, dtype: torch.dtype) -> Tensor | None:
    return None if array is None else torch.from_numpy(np.ascontiguousarray(array)).to(dtype)


def _gate(folded: FoldedGate, dtype: torch.dtype) -> Gate:
    return Gate(
        dims=folded.dims,
        scalar=_scaled(folded.scalar),
        factor=_scaled(folded.factor),
        linear=_blocks(folded.linear, dtype),
        residual=_blocks(folded.residual, dtype),
        constant=_tensor(folded.constant, dtype),
    )


def _scaled(named: Activation) -> tuple[Function, Function]:
    """An activation times its scale, and the slope of that."""
    function, scale = activation(named.name), named.scale
    slope = _slope_of(function)
    return lambda x: scale * function(x), lambda x: scale * slope(x)


def _readout(folded: FoldedReadout, dtype: torch.dtype) -> Readout:
    arrays = _tensor(folded.hidden, dtype), _tensor(folded.weight, dtype)
    if folded.hidden is None:
        return Readout(folded.row, *arrays, None, None)
    function = activation(folded.activation)
    return Readout(folded.row, *arrays, function, _slope_of(function))


def _slope_of(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Derivative of an activation."""
    slopes = {
        torch.nn.functional.silu: _silu_slope,
        torch.tanh: lambda x: 1 - torch.tanh(x).square(),
        torch.sigmoid: lambda x: torch.sigmoid(x) * torch.sigmoid(-x),
        torch.abs: torch.sign,
        ACTIVATIONS["none"]: torch.ones_like,
    }
    return slopes[function]


def _silu_slope(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate * (1 + x * (1 - gate))
