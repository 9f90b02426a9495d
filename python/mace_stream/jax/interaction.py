"""One interaction: node features to messages, normalised, with the element-dependent skip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.couplings import FeatureLayout
from mace_stream.jax.conv import conv
from mace_stream.jax.folding import Parameters, Tree, activation
from mace_stream.jax.geometry import Graph
from mace_stream.jax.linear import ElementLinear, IrrepLinear, MessageLinear, SpeciesGroups
from mace_stream.jax.radial import (
    EdgeFeatures,
    NormalizedNetwork,
    NormalizedRadialNetwork,
    RadialNetwork,
)
from mace_stream.parameters import build_plan
from mace_stream.spec import BLOCKS, GateSpec, LayerSpec, ModelSpec

RESIDUAL = ("RR", "DR", "NL")
"""Blocks whose skip connection acts on the node features, not on the message."""


class GhostExchange(Protocol):
    """Brings features of ghost nodes from the ranks that own them."""

    def forward(self, features: Array) -> Array:
        """Return features of owned and ghost nodes; its gradient returns them to their owners."""


@dataclass(frozen=True)
class Edges:
    """What every layer reads of a graph's edges, in the model's precision."""

    graph: Graph
    attrs: Array
    """Spherical harmonics [n_edges, (l_max + 1)**2]."""
    feats: EdgeFeatures


class Interaction:
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
        names = ("linear_up", "radial", "normalize", "linear", "skip", "gated")
        parts = {name: getattr(self, name) for name in names}
        self.parameters: Tree = {n: part.parameters for n, part in parts.items() if part}

    def __call__(
        self,
        tree: Tree,
        node_feats: Array,
        edges: Edges,
        groups: SpeciesGroups,
        halo: GhostExchange | None,
    ) -> tuple[Array, Array | None]:
        """Return the message [n_receivers, dim_message, C] and the skip connection, if any.

        ``halo`` brings the features of ghost nodes to this rank.
        """
        skip = None
        if self.residual:
            skip = self.skip(tree["skip"], node_feats[: edges.graph.n_receivers], groups)
        up = self.linear_up(tree["linear_up"], node_feats)
        if halo is not None:
            up = halo.forward(up)
        return self.convolve(tree, up, edges, groups), skip

    def convolve(self, tree: Tree, up: Array, edges: Edges, groups: SpeciesGroups) -> Array:
        """Everything from the convolution to the message; ``up`` [n_nodes, dim_up, C_up]."""
        graph = edges.graph
        weights = self.radial(tree["radial"], edges.feats)
        message = conv(
            *(up, edges.attrs, weights, graph.indptr, graph.sender, self.plan, self.conv_mode),
            deterministic=self.deterministic,
        )
        message = self.linear(tree["linear"], message)
        message = self.normalize(tree["normalize"], message, edges)
        if self.gated is not None:
            return self.gated(tree["gated"], message, up[: len(message)])
        return message if self.residual else self.skip(tree["skip"], message, groups)


class FirstInteraction(Interaction):
    """The first layer: node features depend on the species alone, so tables replace layers."""

    def __init__(
        self,
        spec: ModelSpec,
        layer: LayerSpec,
        params: Parameters,
        conv_mode: str,
        embedding: np.ndarray,
    ) -> None:
        """Fold ``embedding`` [Z, C], float64, through ``linear_up`` and the skip connection."""
        exact = Parameters(params.tensors, np.float64, params.prefix)
        super().__init__(spec, layer, exact, conv_mode)
        table, every = embedding[:, None], range(len(embedding))
        up_table = self.linear_up(self.linear_up.parameters, table)
        if self.residual:
            groups = SpeciesGroups.build(jnp.arange(len(embedding)), every, 1)
            skip_table = self.skip(self.skip.parameters, jnp.asarray(table), groups)
        super().__init__(spec, layer, params, conv_mode)
        del self.linear_up, self.parameters["linear_up"]
        self.parameters["up_table"] = params.cast(up_table)
        if self.residual:
            del self.skip, self.parameters["skip"]
            self.parameters["skip_table"] = params.cast(skip_table)

    def __call__(
        self,
        tree: Tree,
        node_feats: Array | None,
        edges: Edges,
        groups: SpeciesGroups,
        halo: GhostExchange | None,
    ) -> tuple[Array, Array | None]:
        """As :meth:`Interaction.__call__`; features follow from species: no halo is needed."""
        del node_feats, halo
        species = edges.graph.species
        message = self.convolve(tree, tree["up_table"][species], edges, groups)
        own = species[: edges.graph.n_receivers]
        return message, tree["skip_table"][own] if self.residual else None


class MeanNorm:
    """Divide by the mean number of neighbours in the training set."""

    def __init__(self, params: Parameters) -> None:
        self.avg_num_neighbors = params.scalar("avg_num_neighbors")
        self.parameters: Tree = {}

    def __call__(self, tree: Tree, message: Array, edges: Edges) -> Array:
        """Normalise [n_receivers, dim, C]."""
        del tree, edges
        return message / self.avg_num_neighbors


class DensityNorm:
    """Divide by ``alpha + beta rho``, rho the sum over neighbours of ``tanh(g(edge_feats)^2)``.

    Here alpha and beta are 1 and g is one matrix.
    """

    def __init__(self, params: Parameters) -> None:
        self.parameters: Tree = {"weight": params.cast(params.linear("density"))}

    def function(self, tree: Tree, feats: EdgeFeatures) -> Array:
        """Map features of edges to g, [n_edges, 1]."""
        return feats.basis @ tree["weight"]

    def per_edge(self, tree: Tree, feats: EdgeFeatures) -> Array:
        """Map features of edges to the density of each edge [n_edges, 1]."""
        return feats.with_cutoff(jnp.tanh(self.function(tree, feats) ** 2))

    def __call__(self, tree: Tree, message: Array, edges: Edges) -> Array:
        """Normalise [n_receivers, dim, C]."""
        per_edge = self.per_edge(tree, edges.feats)[:, 0]
        density = jnp.zeros(len(message), per_edge.dtype).at[edges.graph.receiver].add(per_edge)
        alpha, beta = tree.get("alpha", 1.0), tree.get("beta", 1.0)
        return message / (alpha + beta * density)[:, None, None]


class GatedDensityNorm(DensityNorm):
    """The same with learned alpha and beta, and a network for g: block NL."""

    def __init__(self, layer: LayerSpec, n_basis: int, params: Parameters) -> None:
        self.network = NormalizedNetwork(layer.density_widths, "density", n_basis, params)
        self.parameters: Tree = {
            "network": self.network.parameters,
            "alpha": params.cast(params.array("alpha")),
            "beta": params.cast(params.array("beta")),
        }

    def function(self, tree: Tree, feats: EdgeFeatures) -> Array:
        """Map features of edges to g, [n_edges, 1]."""
        return self.network(tree["network"], feats)


class GatedMessage:
    """What block NL adds to the message, and the gate that it passes through.

    Rows of the input are scalars, a row of gates for every irrep of l > 0, and those irreps.
    """

    def __init__(self, layer: LayerSpec, params: Parameters) -> None:
        layout_up = FeatureLayout.parse(layer.irreps_up)
        layout = FeatureLayout.parse(layer.irreps_message)
        self.residual = IrrepLinear(layout_up, layout, params.under("residual"))
        self.linear = IrrepLinear(layout, layout, params.under("linear_2"))
        self.gate = Gate(layer.gate, [irrep.dim for irrep in layout.irreps[1:]])
        self.parameters: Tree = {
            "residual": self.residual.parameters,
            "linear": self.linear.parameters,
        }

    def __call__(self, tree: Tree, message: Array, up: Array) -> Array:
        """Map [n, n_gates + dim, C] and the node's own ``up`` [n, dim_up, C_up] to [n, dim, C]."""
        gated = self.gate(message + self.residual(tree["residual"], up))
        return self.linear(tree["linear"], gated)


class Gate:
    """Scalars through one activation, other irreps times another of their gates."""

    def __init__(self, gate: GateSpec, dims: Sequence[int]) -> None:
        self.scalar, self.scalar_scale = activation(gate.activation), gate.activation_scale
        self.factor, self.factor_scale = (
            activation(gate.gate_activation),
            gate.gate_activation_scale,
        )
        self.n_gates = len(dims)
        self.row_of_gate = np.repeat(np.arange(len(dims)), dims)

    def __call__(self, x: Array) -> Array:
        """Map [n, 1 + n_gates + rest, C] to [n, 1 + rest, C]."""
        scalars, gates, rest = jnp.split(x, [1, 1 + self.n_gates], axis=1)
        factors = (self.factor_scale * self.factor(gates))[:, self.row_of_gate]
        return jnp.concatenate([self.scalar_scale * self.scalar(scalars), rest * factors], axis=1)
