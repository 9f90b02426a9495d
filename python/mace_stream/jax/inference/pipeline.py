"""One evaluation: the layers forward and backward, in tiles of receivers of one species.

As :mod:`mace_stream.torch.inference.pipeline`, but as a pure function: what torch's writes into
arrays that it keeps are values here, and XLA decides where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array

from mace_stream.folded import Tile
from mace_stream.jax.folding import Tree
from mace_stream.jax.inference.calls import Calls, Edges, Nodes
from mace_stream.jax.inference.layers import Layer
from mace_stream.kernels.inference import Setup


class Exchange(Protocol):
    """Brings rows of node arrays [dim, n, C] from other ranks, and cotangents home."""

    def forward(self, up: Array) -> Array:
        """Append rows of other ranks' nodes."""

    def home(self, up_bar: Array) -> Array:
        """Cotangents of own nodes, what others have found for them included."""


class Evaluated(NamedTuple):
    """Results; nodes are in the passes' order."""

    node_energy: Array
    """[n_nodes] float64, without constants."""
    forces: Array
    """[n_senders, 3] float64"""
    virial: Array
    """[9] float64"""
    closest: Array
    """[1] float64: the smallest distance below r_0, or infinity."""
    edges: Edges
    node_virials: list[Array]
    """Empty, or [n_nodes, 9] of receivers and [n_senders, 9] of senders, float64."""


@dataclass
class _Kept:
    """What the backward pass of one tile reads of its forward pass."""

    message: list[Array]
    """Rows [dim, n, C], in one or several parts."""
    gate_input: Array | None
    feats: Array
    bar: Array | None
    """Cotangent of the features, from readouts."""
    skip_bar: Array | None = None
    """Cotangent of the layer's input features, from the skip; filled backwards."""


class Pipeline:
    """The layers of a model over the arrays of one neighbor list.

    Args:
        setup: Sizes of the model.
        layers: What its matrices do.
        calls: The passes.
        tiles: Cover all nodes.
        n_nodes: Own nodes, padding included.
        exchange: On several ranks.
        per_node: Whether virials of every node are wanted.
    """

    def __init__(
        self,
        setup: Setup,
        layers: Sequence[Layer],
        calls: Calls,
        tiles: Sequence[Tile],
        n_nodes: int,
        exchange: Exchange | None = None,
        *,
        per_node: bool = False,
    ) -> None:
        self.per_node = per_node
        self.setup, self.layers, self.calls = setup, layers, calls
        self.tiles, self.n_nodes, self.exchange = tiles, n_nodes, exchange

    def __call__(self, tree: Tree, nodes: Nodes, x: Array) -> Evaluated:
        """Evaluate at positions ``x``; ``tree`` holds the numbers of the model."""
        return _Step(self, tree, nodes, x).run()


class _Step:
    """One evaluation while it is traced: arrays that passes change are replaced as it goes on."""

    def __init__(self, pipeline: Pipeline, tree: Tree, nodes: Nodes, x: Array) -> None:
        self.p, self.tree, self.nodes = pipeline, tree, nodes
        self.calls, self.tiles = pipeline.calls, pipeline.tiles
        self.edges, self.energy, self.closest = self.calls.edges(nodes, x)
        real, n = pipeline.setup.dtype, pipeline.n_nodes
        layers = pipeline.layers
        self.norm = [jnp.zeros(n, real) if layer.has_density else None for layer in layers]
        self.dot = jnp.zeros(n, real)
        self.up: list[Array | None] = [None] * len(layers)
        self.up_bar: list[Array | None] = [None] * len(layers)
        self.kept: list[list[_Kept]] = [[] for _ in layers]
        self._energies: list[list[Array]] = [[] for _ in layers]

    def run(self) -> Evaluated:
        last = len(self.p.layers) - 1
        for t in range(last):
            self.kept[t] = [self._forward(t, k) for k in range(len(self.tiles))]
            self._read_out(t)
            self._linear_up(t + 1)
        self._last_layer(last)
        for t in reversed(range(last)):
            bars = self._linear_up_backward(t + 1)
            for k in range(len(self.tiles)):
                self._backward(t, k, bars[k])
        forces, virial, *node_virials = self.calls.forces(
            self.nodes, self.edges, per_node=self.p.per_node
        )
        return Evaluated(self.energy, forces, virial, self.closest, self.edges, node_virials)

    def _last_layer(self, t: int) -> None:
        """Forward and straight back."""
        for k in range(len(self.tiles)):
            self.kept[t].append(self._forward(t, k))
            bar = self.kept[t][k].bar
            self._backward(t, k, jnp.zeros_like(self.kept[t][k].feats) if bar is None else bar)
        self._read_out(t)

    def _read_out(self, t: int) -> None:
        """Add the energies of a layer."""
        self.energy = self.energy + _joined(self._energies[t], 0)

    # ---- one layer, one tile ----

    def _forward(self, t: int, k: int) -> _Kept:
        """Edges to message to features, and what is read out."""
        layer, tree, tile = self.p.layers[t], self.tree["layers"][t], self.tiles[k]
        rows, self.norm[t] = self._convolve(t, tile)
        message = layer.messages[tile.species](rows, tree["messages"][tile.species])
        gate_input = None
        if layer.gate is not None:
            own, mixed = self._own(self.up[t], tile), _joined(message, 0)
            gate_input = layer.gate.complete(mixed, own, tile.species, tree["gate"])
            message = [layer.gate.forward(gate_input, tree["gate"])]
        coefs = self.tree["tables"]["coefs"][t]
        product = self.calls.contract(t, tile, self.nodes.species, coefs, message)
        feats = layer.product(product, tree["product"])
        if layer.skips:
            inputs = self.kept[t - 1][k].feats
            feats = feats + layer.skips[tile.species](inputs, tree["skips"][tile.species])
        if tree["constant"] is not None:
            feats = feats + tree["constant"][tile.species][:, None]
        energy, bar = layer.read_out(feats, tree)
        self._energies[t].append(energy)
        return _Kept(message, gate_input, feats, bar)

    def _backward(self, t: int, k: int, feats_bar: Array) -> None:
        """From the cotangent of a layer's features to gradients of edges and input features."""
        layer, tree, tile = self.p.layers[t], self.tree["layers"][t], self.tiles[k]
        kept = self.kept[t][k]
        if layer.skips:
            weights = tree["skips"][tile.species]
            kept.skip_bar = layer.skips[tile.species].transposed(feats_bar, weights)
        product_bar = layer.product.transposed(feats_bar, tree["product"])
        coefs = self.tree["tables"]["coefs"][t]
        message_bar, self.dot = self.calls.contract_backward(
            t, tile, self.nodes.species, coefs, kept.message, product_bar, self.dot
        )
        if layer.gate is not None:
            message_bar = [self._gate_backward(t, tile, kept.gate_input, message_bar[0])]
        rows_bar = layer.messages[tile.species].transposed(
            message_bar, tree["messages"][tile.species]
        )
        self._convolve_backward(t, tile, rows_bar)

    def _gate_backward(self, t: int, tile: Tile, gate_input: Array, message_bar: Array) -> Array:
        own, tree = self._own(self.up[t], tile), self.tree["layers"][t]["gate"]
        gate = self.p.layers[t].gate
        bar, up_bar, dot = gate.backward(gate_input, message_bar, own, tile.species, tree)
        rows = slice(tile.first, tile.last)
        self.dot = self.dot.at[rows].set(dot)
        if up_bar is not None:
            self.up_bar[t] = self.up_bar[t].at[:, rows].add(up_bar)
        return bar

    def _convolve(self, t: int, tile: Tile) -> tuple[Array, Array | None]:
        tables, arrays = self.tree["tables"], (self.nodes, self.edges)
        density, norm = tables["densities"][t], self.norm[t]
        if t == 0:
            return self.calls.scatter(tile, *arrays, tables["hidden"], density, norm)
        table = tables["convs"][t]
        return self.calls.conv(t, tile, *arrays, self.up[t], table, density, norm)

    def _convolve_backward(self, t: int, tile: Tile, rows_bar: Array) -> None:
        tables, arrays = self.tree["tables"], (self.nodes, self.edges)
        rest = tables["densities"][t], rows_bar, self.norm[t], self.dot
        if t == 0:
            self.edges = self.calls.scatter_backward(tile, *arrays, tables["hidden"], *rest)
            return
        up, up_bar = self.up[t], self.up_bar[t]
        self.edges, self.up_bar[t] = self.calls.conv_backward(
            t, tile, *arrays, up, tables["convs"][t], *rest, up_bar
        )

    # ---- between layers ----

    def _linear_up(self, t: int) -> None:
        """Features before layer ``t`` to what its convolution reads."""
        feats = _joined([kept.feats for kept in self.kept[t - 1]], 1)
        up = self.p.layers[t].up(feats, self.tree["layers"][t]["up"])
        self.up[t] = up if self.p.exchange is None else self.p.exchange.forward(up)
        self.up_bar[t] = jnp.zeros_like(self.up[t])

    def _linear_up_backward(self, t: int) -> list[Array]:
        """Cotangents of the features before layer ``t``, tile by tile."""
        up_bar = self.up_bar[t]
        if self.p.exchange is not None:
            up_bar = self.p.exchange.home(up_bar)
        bar = self.p.layers[t].up.transposed(up_bar, self.tree["layers"][t]["up"])
        return [
            _sum(self._own(bar, tile), before.bar, after.skip_bar)
            for tile, before, after in zip(self.tiles, self.kept[t - 1], self.kept[t], strict=True)
        ]

    def _own(self, array: Array | None, tile: Tile) -> Array | None:
        """Rows of a tile's own nodes."""
        if array is None or (tile.first, tile.last) == (0, array.shape[1]):
            return array
        return array[:, tile.first : tile.last]


def _joined(parts: Sequence[Array], axis: int) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def _sum(product: Array, *others: Array | None) -> Array:
    """All added up, the others first: XLA then lets the matrix product start from their sum."""
    present = [other for other in others if other is not None]
    return product + sum(present[1:], present[0]) if present else product
