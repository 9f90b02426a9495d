"""Readouts: scalars of one layer to one energy per node, for one head."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from mace_stream.couplings import FeatureLayout, Irrep
from mace_stream.jax.folding import Parameters, Tree, activation
from mace_stream.spec import ModelSpec, ReadoutSpec


class Readout:
    """Linear or one-hidden-layer readout, cut down to one head, scale folded in."""

    def __init__(
        self, spec: ModelSpec, readout: ReadoutSpec, head: int, params: Parameters
    ) -> None:
        """Fold the scale of head number ``head``.

        Raises:
            ValueError: Kind or activation is not supported.
        """
        layout = FeatureLayout.parse(spec.layers[readout.layer].irreps_out)
        self.rows = layout.rows(Irrep(0, 1))
        self.layer = readout.layer
        self.parameters: Tree = {}
        scale = params.array("scale")[head]
        params = params.under(f"readouts.{spec.readouts.index(readout)}")
        if readout.kind == "linear":
            weight = params.linear("linear")[:, head]
        elif readout.kind == "nonlinear":
            self.activation = activation(readout.activation)
            kept = slice(head * readout.hidden, (head + 1) * readout.hidden)
            self.parameters["hidden"] = params.cast(params.linear("linear_1")[:, kept])
            fan_in = spec.n_heads_source * readout.hidden
            weight = params.array("linear_2")[kept, head] / fan_in**0.5
            weight = weight * readout.activation_scale
        else:
            raise ValueError(f"readout: expected linear or nonlinear, got {readout.kind!r}")
        self.parameters["weight"] = params.cast(scale * weight)

    def __call__(self, tree: Tree, node_feats: Array) -> Array:
        """Map [n, dim, C] to energies [n] in eV, float64."""
        scalars = node_feats[:, self.rows][:, 0]
        if "hidden" in tree:
            scalars = self.activation(scalars @ tree["hidden"])
        return (scalars @ tree["weight"]).astype(jnp.float64)
