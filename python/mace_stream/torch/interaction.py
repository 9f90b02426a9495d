"""One interaction: node features to messages, normalised, with the element-dependent skip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mace_stream.couplings import ConvPlan, FeatureLayout
from mace_stream.spec import LayerSpec, ModelSpec
from mace_stream.torch.conv import conv
from mace_stream.torch.folding import Parameters
from mace_stream.torch.geometry import Graph, gather_senders
from mace_stream.torch.linear import ElementLinear, IrrepLinear, MessageLinear, SpeciesGroups
from mace_stream.torch.radial import RadialNetwork

RESIDUAL = ("RR", "DR")
DENSITY = ("D", "DR")
BLOCKS = ("R", "RR", "D", "DR")


@dataclass(frozen=True)
class Edges:
    """What every layer reads of a graph's edges, in the model's precision."""

    graph: Graph
    attrs: Tensor
    """Spherical harmonics [n_edges, (l_max + 1)**2]."""
    feats: Tensor
    """Radial basis times cutoff [n_edges, n_basis]."""


class Interaction(nn.Module):
    """Blocks R, RR, D and DR of MACE.

    R: agnostic, the skip acts on the message. RR: residual, the skip acts on the node features
    and joins after the product basis. D and DR: the same with a learned local density instead of
    the mean number of neighbours.
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
        self.radial = RadialNetwork(layer, params)
        self.linear_up = IrrepLinear(
            layout_in, FeatureLayout.parse(layer.irreps_up), params.under("linear_up")
        )
        self.linear = MessageLinear(self.plan.outputs, layout_message, params.under("linear"))
        if layer.block in DENSITY:
            self.normalize = DensityNorm(params)
        else:
            self.normalize = MeanNorm(params)
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
    """Divide by one plus the sum over neighbours of ``tanh(g(edge_feats)^2)``."""

    def __init__(self, params: Parameters) -> None:
        super().__init__()
        self.register_buffer("weight", params.cast(params.linear("density")))

    def per_edge(self, feats: Tensor) -> Tensor:
        """Map radial features [n_edges, n_basis] to the density of each edge [n_edges, 1]."""
        return torch.tanh((feats @ self.weight) ** 2)

    def forward(self, message: Tensor, edges: Edges) -> Tensor:
        """Normalise [n_receivers, dim, C]."""
        per_edge = self.per_edge(edges.feats).squeeze(1)
        density = per_edge.new_zeros(len(message)).index_add(0, edges.graph.receiver, per_edge)
        return message / (1 + density)[:, None, None]


def build_plan(spec: ModelSpec, layer: LayerSpec, params: Parameters) -> ConvPlan:
    """Build the convolution's tables with the coupling tensors of the file."""
    w3j = {
        (path.ir_in, path.l_edge, path.ir_out): params.array(
            f"w3j.{path.ir_in}.{path.l_edge}.{path.ir_out}"
        )
        for path in layer.paths
    }
    return ConvPlan.build(layer.irreps_up, spec.l_max, layer.paths, w3j)
