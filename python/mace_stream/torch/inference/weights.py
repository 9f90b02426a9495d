"""Matrices of the inference path, folded in float64 when a model is loaded.

Node features are component-major, [dim, n, C]: each irrep of a layer is one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mace_stream.torch.folding import ACTIVATIONS
from mace_stream.torch.inference.blocks import Block
from mace_stream.torch.inference.gate import FoldedGate, Function
from mace_stream.torch.interaction import DensityNorm, FirstInteraction, Interaction
from mace_stream.torch.linear import ElementLinear, IrrepLinear, MessageLinear
from mace_stream.torch.model import MACE
from mace_stream.torch.product import Product
from mace_stream.torch.readout import Readout


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
    readouts: tuple[FoldedReadout, ...]
    dim_message: int
    dim_out: int
    has_density: bool
    gate: FoldedGate | None

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
class FoldedReadout:
    """``act(x W1) . w2`` or ``x . w2`` of the scalars x [n, C]; scale included."""

    row: int
    hidden: Tensor | None
    weight: Tensor
    activation: Callable[[Tensor], Tensor] | None
    slope: Callable[[Tensor], Tensor] | None

    def to(self, device: torch.device) -> FoldedReadout:
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


def fold_layers(model: MACE, species: Sequence[int], dtype: torch.dtype) -> list[Layer]:
    """Fold all that is linear in the layers of ``model``, which is in float64.

    Args:
        model: The model.
        species: Elements that are present, as indices into the model's.
        dtype: Of the results.
    """
    layers = []
    for t, (interaction, product) in enumerate(
        zip(model.interactions, model.products, strict=True)
    ):
        readouts = [r for r in model.readouts if r.layer == t]
        layers.append(_fold_layer(interaction, product, readouts, species, dtype))
    return layers


def _fold_layer(
    interaction: Interaction,
    product: Product,
    readouts: Sequence[Readout],
    species: Sequence[int],
    dtype: torch.dtype,
) -> Layer:
    first = isinstance(interaction, FirstInteraction)
    message = [_message_blocks(interaction, z, species, first=first) for z in range(len(species))]
    joins = interaction.residual and product.use_sc
    constant = interaction.skip_table[list(species)] if first and joins else None
    skip = []
    if joins and not first:
        skip = [_element_blocks(interaction.skip, z) for z in species]
    dims = interaction.linear.blocks
    return Layer(
        message=tuple(tuple(_cast(block, dtype) for block in blocks) for blocks in message),
        up=() if first else _blocks(interaction.linear_up, dtype),
        product=_blocks(product.linear, dtype),
        skip=tuple(tuple(_cast(block, dtype) for block in blocks) for blocks in skip),
        constant=None if constant is None else constant.to(dtype),
        readouts=tuple(_fold_readout(readout, dtype) for readout in readouts),
        dim_message=sum(block.irrep.dim for block in dims),
        dim_out=product.contraction.dim_out,
        has_density=isinstance(interaction.normalize, DensityNorm),
        gate=_fold_gate(interaction, species, dtype),
    )


def _message_blocks(
    interaction: Interaction, own: int, species: Sequence[int], *, first: bool
) -> list[Block]:
    """Linear layer, mean norm of the first layer, and skip where it acts on the message.

    Weights several times as wide as the message give several rows: scalars and gates.
    """
    blocks = []
    linear: MessageLinear = interaction.linear
    row = 0
    for k, block in enumerate(linear.blocks):
        weight = getattr(linear, f"weight_{k}") / _norm(interaction, first=first)
        source = block.rows
        if first:
            weight = _first_weight(interaction, block, weight, species)
            path = next(p for p in interaction.plan.paths if p.rows_out.start == block.rows.start)
            source = path.rows_edge
        if not interaction.residual:
            weight = weight @ interaction.skip.weight(k, species[own])
        for part in weight.split(linear.channels_out, dim=1):
            blocks.append(Block(source, slice(row, row + block.irrep.dim), part))
            row += block.irrep.dim
    return blocks


def _norm(interaction: Interaction, *, first: bool) -> float:
    """The constant part of the norm; in later layers the tables hold the mean norm."""
    norm = interaction.normalize
    if not isinstance(norm, DensityNorm):
        return norm.avg_num_neighbors if first else 1.0
    if norm.alpha == 0.0:
        raise NotImplementedError("a density norm without a constant part")
    return norm.alpha


def _fold_gate(
    interaction: Interaction, species: Sequence[int], dtype: torch.dtype
) -> FoldedGate | None:
    gated = interaction.gated
    if gated is None:
        return None
    gate, constant, residual = gated.gate, None, ()
    if isinstance(interaction, FirstInteraction):
        constant = gated.residual(interaction.up_table)[list(species)].to(dtype)
    else:
        residual = _blocks(gated.residual, dtype)
    dims = tuple(block.irrep.dim for block in interaction.linear.blocks[1:])
    return FoldedGate(
        dims=dims,
        scalar=_scaled(gate.scalar, gate.scalar_scale),
        factor=_scaled(gate.factor, gate.factor_scale),
        linear=_blocks(gated.linear, dtype),
        residual=residual,
        constant=constant,
    )


def _scaled(function: Function, scale: float) -> tuple[Function, Function]:
    """An activation times its scale, and the slope of that."""
    slope = _slope_of(function)
    return lambda x: scale * function(x), lambda x: scale * slope(x)


def _first_weight(interaction, block, linear: Tensor, species) -> Tensor:  # noqa: ANN001
    """From sums over sender species and radial features to one irrep, [S * H, C].

    The convolution of scalars with Y_l gives Y_l times a constant; so path weights, sender
    features and the linear layer are one matrix.
    """
    paths = [
        (index, path)
        for index, path in enumerate(interaction.plan.paths)
        if block.rows.start <= path.rows_out.start < block.rows.stop
    ]
    if len(paths) != 1:
        raise NotImplementedError(
            f"first layer: expected one path that ends in {block.irrep}, got {len(paths)}; "
            "use radial exact"
        )
    (index, path), network = paths[0], interaction.radial
    per_channel = network.last_weight.unflatten(1, (network.n_paths, -1))[:, index]
    sent = interaction.up_table[list(species), 0]
    weight = sent[:, None, :] * per_channel[None] * _constant_coupling(path.coupling)
    return weight.flatten(0, 1) @ linear


def _constant_coupling(coupling) -> float:  # noqa: ANN001
    """The number that a coupling of a scalar with Y_l multiplies Y_l by."""
    matrix = torch.from_numpy(coupling[0].copy())
    value = float(matrix[0, 0])
    if not torch.allclose(matrix, value * torch.eye(len(matrix), dtype=matrix.dtype), atol=1e-7):
        raise NotImplementedError("first layer: couplings are no multiple of the unit matrix")
    return value


def _blocks(linear: IrrepLinear, dtype: torch.dtype) -> tuple[Block, ...]:
    """Blocks of a linear layer; an irrep without weights is not among them."""
    blocks, row = [], 0
    for k, (rows, dim) in enumerate(zip(linear.rows, linear.dims, strict=True)):
        if rows is None:
            row += dim
            continue
        weight = getattr(linear, f"weight_{k}").to(dtype)
        for part in weight.split(linear.channels_out, dim=1):
            blocks.append(Block(rows, slice(row, row + dim), part.contiguous()))
            row += dim
    return tuple(blocks)


def _element_blocks(linear: ElementLinear, element: int) -> list[Block]:
    blocks, row = [], 0
    for k, (rows, dim) in enumerate(zip(linear.rows, linear.dims, strict=True)):
        if rows is not None:
            weight = linear.weight(k, element)
            blocks.append(Block(rows, slice(row, row + dim), weight))
        row += dim
    return blocks


def _cast(block: Block, dtype: torch.dtype) -> Block:
    return Block(block.source, block.target, block.weight.to(dtype).contiguous())


def _fold_readout(readout: Readout, dtype: torch.dtype) -> FoldedReadout:
    if readout.hidden is None:
        return FoldedReadout(readout.rows.start, None, readout.weight.to(dtype), None, None)
    return FoldedReadout(
        readout.rows.start,
        readout.hidden.to(dtype),
        readout.weight.to(dtype),
        readout.activation,
        _slope_of(readout.activation),
    )


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
