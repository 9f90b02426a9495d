"""One interaction: node features to messages, normalised, with the element-dependent skip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mace_stream.couplings import FeatureLayout
from mace_stream.parameters import build_plan
from mace_stream.spec import BLOCKS, GateSpec, LayerSpec, ModelSpec
from mace_stream.torch.conv import conv
from mace_stream.torch.folding import Parameters, activation
from mace_stream.torch.geometry import Graph, gather_senders
from mace_stream.torch.linear import ElementLinear, IrrepLinear, MessageLinear, SpeciesGroups
from mace_stream.torch.radial import (
    EdgeFeatures,
    NormalizedNetwork,
    NormalizedRadialNetwork,
    RadialNetwork,
)

RESIDUAL = ("RR", "DR", "NL")
"""Blocks whose skip connection acts on the node features, not on the message."""


@dataclass(frozen=True)
class Edges:
    """What every layer reads of a graph's edges, in the model's precision."""

    graph: Graph
    attrs: Tensor
    """Spherical harmonics [n_edges, (l_max + 1)**2]."""
    feats: EdgeFeatures


class Interaction(nn.Module):
    """Blocks R, RR, D, DR and NL of MACE.

    R: agnostic, the skip acts on the message. RR: residual, the skip acts on the node features
    and joins after the product basis. D and DR: the same with a learned local density instead of
    the mean number of neighbours. NL: as DR, and the message passes through a gate.
    """

    deterministic = False
    """Whether the convolution must give the same bits every time."""

    def __init__(
        self, spec: ModelSpec, layer: LayerSpec, params: Parameters, conv_mode: str
    ) -> None:
        super().__init__()
        self.conv_mode = conv_mode
        if layer.block not in BLOCKS:
            raise ValueError(
                f"interaction block: expected one of {', '.join(BLOCKS)}, got {layer.block!r};"
                " this version does not support it"
            )
        self.residual = layer.block in RESIDUAL
        layout_in = FeatureLayout.parse(layer.irreps_in)
        layout_message = FeatureLayout.parse(layer.irreps_message)
        self.plan = build_plan(spec, layer, params)
        self.linear_up = IrrepLinear(
            layout_in, FeatureLayout.parse(layer.irreps_up), params.under("linear_up")
        )
        n_basis = spec.radial.n_basis
        if layer.block == "NL":
            self.radial = NormalizedRadialNetwork(layer, n_basis, params)
            self.normalize = GatedDensityNorm(layer, n_basis, params)
            self.gated = GatedMessage(layer, params)
        else:
            self.radial = RadialNetwork(layer, params)
            self.normalize = (MeanNorm if layer.block in ("R", "RR") else DensityNorm)(params)
            self.gated = None
        name = "linear" if self.gated is None else "linear_1"
        self.linear = MessageLinear(self.plan.outputs, layout_message, params.under(name))
        layout_out = FeatureLayout.parse(layer.irreps_out)
        source, target = (
            (layout_in, layout_out) if self.residual else (layout_message, layout_message)
        )
        self.skip = ElementLinear(source, target, params.under("skip"))

    def forward(
        self, node_feats: Tensor, edges: Edges, groups: SpeciesGroups, halo: Callable | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the message [n_receivers, dim_message, C] and the skip connection, if any.

        ``halo`` brings the features of ghost nodes to this rank.
        """
        graph = edges.graph
        skip = self.skip(node_feats[: graph.n_receivers], groups) if self.residual else None
        up = self.linear_up(node_feats)
        if halo is not None:
            up = halo.forward(up)
        return self.convolve(up, edges, groups), skip

    def convolve(self, up: Tensor, edges: Edges, groups: SpeciesGroups) -> Tensor:
        """Everything from the convolution to the message; ``up`` [n_nodes, dim_up, C_up]."""
        chunks = edges.graph.chunks
        sizes = [chunk.n_edges for chunk in chunks]
        parts = [
            conv(
                *(sent, attrs, self.radial(feats), chunk.indptr, chunk.sender),
                *(self.plan, self.conv_mode),
                deterministic=self.deterministic,
            )
            for chunk, sent, attrs, feats in zip(
                chunks,
                gather_senders(up, chunks),
                edges.attrs.split(sizes),
                edges.feats.split(sizes),
                strict=True,
            )
        ]
        message = self.normalize(self.linear(torch.cat(parts)), edges)
        if self.gated is not None:
            return self.gated(message, up[: len(message)])
        return message if self.residual else self.skip(message, groups)


class FirstInteraction(Interaction):
    """The first layer: node features depend on the species alone, so tables replace layers."""

    def __init__(
        self,
        spec: ModelSpec,
        layer: LayerSpec,
        params: Parameters,
        conv_mode: str,
        embedding: Tensor,
    ) -> None:
        """Fold ``embedding`` [Z, C], float64, through ``linear_up`` and the skip connection."""
        exact = Parameters(params.tensors, torch.float64, params.prefix)
        super().__init__(spec, layer, exact, conv_mode)
        table = embedding[:, None]
        species = torch.arange(len(table))
        every = SpeciesGroups.build(species, len(table))
        up_table = self.linear_up(table)
        skip_table = self.skip(table, every) if self.residual else None
        super().__init__(spec, layer, params, conv_mode)
        del self.linear_up
        self.register_buffer("up_table", params.cast(up_table))
        if self.residual:
            del self.skip
            self.register_buffer("skip_table", params.cast(skip_table))

    def forward(
        self, node_feats: Tensor | None, edges: Edges, groups: SpeciesGroups, halo: Callable | None
    ) -> tuple[Tensor, Tensor | None]:
        """As :meth:`Interaction.forward`; features follow from species, so no halo is needed."""
        del node_feats, halo
        species = edges.graph.species
        message = self.convolve(self.up_table[species], edges, groups)
        skip = self.skip_table[species[: edges.graph.n_receivers]] if self.residual else None
        return message, skip


class MeanNorm(nn.Module):
    """Divide by the mean number of neighbours in the training set."""

    def __init__(self, params: Parameters) -> None:
        super().__init__()
        self.avg_num_neighbors = params.scalar("avg_num_neighbors")

    def forward(self, message: Tensor, edges: Edges) -> Tensor:
        """Normalise [n_receivers, dim, C]."""
        del edges
        return message / self.avg_num_neighbors


class DensityNorm(nn.Module):
    """Divide by ``alpha + beta rho``, rho the sum over neighbours of ``tanh(g(edge_feats)^2)``.

    Here alpha and beta are 1 and g is one matrix.
    """

    alpha = beta = 1.0

    def __init__(self, params: Parameters) -> None:
        super().__init__()
        self.register_buffer("weight", params.cast(params.linear("density")))

    def function(self, feats: EdgeFeatures) -> Tensor:
        """Map features of edges to g, [n_edges, 1]."""
        return feats.basis @ self.weight

    def per_edge(self, feats: EdgeFeatures) -> Tensor:
        """Map features of edges to the density of each edge [n_edges, 1]."""
        return feats.with_cutoff(torch.tanh(self.function(feats) ** 2))

    def forward(self, message: Tensor, edges: Edges) -> Tensor:
        """Normalise [n_receivers, dim, C]."""
        per_edge = self.per_edge(edges.feats).squeeze(1)
        density = per_edge.new_zeros(len(message)).index_add(0, edges.graph.receiver, per_edge)
        return message / (self.alpha + self.beta * density)[:, None, None]


class GatedDensityNorm(DensityNorm):
    """The same with learned alpha and beta, and a network for g: block NL."""

    def __init__(self, layer: LayerSpec, n_basis: int, params: Parameters) -> None:
        nn.Module.__init__(self)
        self.alpha, self.beta = params.number("alpha"), params.number("beta")
        self.network = NormalizedNetwork(layer.density_widths, "density", n_basis, params)

    def function(self, feats: EdgeFeatures) -> Tensor:
        """Map features of edges to g, [n_edges, 1]."""
        return self.network(feats)


class GatedMessage(nn.Module):
    """What block NL adds to the message, and the gate that it passes through.

    Rows of the input are scalars, a row of gates for every irrep of l > 0, and those irreps.
    """

    def __init__(self, layer: LayerSpec, params: Parameters) -> None:
        super().__init__()
        layout_up = FeatureLayout.parse(layer.irreps_up)
        layout = FeatureLayout.parse(layer.irreps_message)
        self.residual = IrrepLinear(layout_up, layout, params.under("residual"))
        self.linear = IrrepLinear(layout, layout, params.under("linear_2"))
        self.gate = Gate(layer.gate, [irrep.dim for irrep in layout.irreps[1:]])

    def forward(self, message: Tensor, up: Tensor) -> Tensor:
        """Map [n, n_gates + dim, C] and the node's own ``up`` [n, dim_up, C_up] to [n, dim, C]."""
        return self.linear(self.gate(message + self.residual(up)))


class Gate(nn.Module):
    """Scalars through one activation, other irreps times another of their gates."""

    def __init__(self, gate: GateSpec, dims: Sequence[int]) -> None:
        super().__init__()
        self.scalar, self.scalar_scale = activation(gate.activation), gate.activation_scale
        self.factor, self.factor_scale = (
            activation(gate.gate_activation),
            gate.gate_activation_scale,
        )
        self.n_gates = len(dims)
        row_of_gate = [gate for gate, dim in enumerate(dims) for _ in range(dim)]
        self.register_buffer("row_of_gate", torch.tensor(row_of_gate, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, 1 + n_gates + rest, C] to [n, 1 + rest, C]."""
        scalars, gates, rest = x.split([1, self.n_gates, len(self.row_of_gate)], dim=1)
        factors = (self.factor_scale * self.factor(gates)).index_select(1, self.row_of_gate)
        return torch.cat([self.scalar_scale * self.scalar(scalars), rest * factors], dim=1)
