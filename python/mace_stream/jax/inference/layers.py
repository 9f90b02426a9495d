"""One layer of the inference path: what its matrices do, apart from their numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from mace_stream.folded import FoldedLayer, FoldedReadout
from mace_stream.jax.folding import Tree, activation
from mace_stream.jax.inference.blocks import FirstMessageMix, MessageMix, Mix
from mace_stream.jax.inference.gate import Gate


class Layer:
    """A :class:`FoldedLayer` for arrays [dim, n, C]; numbers are arguments of its parts.

    Args:
        folded: The layer.
        dim_in: Rows of the features that it starts from; 0 in the first layer.
    """

    def __init__(self, folded: FoldedLayer, dim_in: int) -> None:
        self.folded, self.has_density = folded, folded.has_density
        self.dim_out, plan = folded.dim_out, folded.plan
        self.is_first = not dim_in
        n_gates = 0 if folded.gate is None else len(folded.gate.dims)
        rows = folded.dim_message + n_gates
        self.messages = [
            FirstMessageMix(blocks, plan.dim_edge, rows)
            if self.is_first
            else MessageMix(blocks, plan)
            for blocks in folded.message
        ]
        self.up = Mix(folded.up, dim_in, plan.dim_in)
        self.product = Mix(folded.product, folded.dim_out, folded.dim_out)
        self.skips = [Mix(blocks, dim_in, folded.dim_out) for blocks in folded.skip]
        self.readouts = [Readout(readout) for readout in folded.readouts]
        gate = folded.gate
        self.gate = None if gate is None else Gate(gate, folded.dim_message, plan.dim_in)

    def weights(self) -> Tree:
        """All numbers, float64."""
        return {
            "messages": [mix.weights() for mix in self.messages],
            "up": self.up.weights(),
            "product": self.product.weights(),
            "skips": [mix.weights() for mix in self.skips],
            "constant": self.folded.constant,
            "readouts": [readout.weights() for readout in self.readouts],
            "gate": None if self.gate is None else self.gate.weights(),
        }

    def read_out(self, feats: Array, tree: Tree) -> tuple[Array, Array | None]:
        """Energies [n] of all readouts in float64, and what they add to the cotangent, or None."""
        energy, slopes = jnp.zeros(feats.shape[1], jnp.float64), {}
        for readout, weights in zip(self.readouts, tree["readouts"], strict=True):
            added, slope = readout(feats[readout.row], weights)
            energy = energy + added
            slopes[readout.row] = slopes.get(readout.row, 0) + slope
        if not slopes:
            return energy, None
        zeros = jnp.zeros_like(feats[0])
        bar = jnp.stack([slopes.get(row, zeros) for row in range(len(feats))])
        return energy, bar


class Readout:
    """A :class:`FoldedReadout` without its numbers."""

    def __init__(self, folded: FoldedReadout) -> None:
        self.folded, self.row = folded, folded.row

    def weights(self) -> Tree:
        """The numbers, float64."""
        return {"hidden": self.folded.hidden, "weight": self.folded.weight}

    def __call__(self, scalars: Array, tree: Tree) -> tuple[Array, Array]:
        """Energies [n] and their derivatives with respect to ``scalars`` [n, C]."""

        def energies(x: Array) -> Array:
            if tree["hidden"] is None:
                return x @ tree["weight"]
            return activation(self.folded.activation)(x @ tree["hidden"]) @ tree["weight"]

        values, pull = jax.vjp(energies, scalars)
        (slope,) = pull(jnp.ones_like(values))
        return values, slope
