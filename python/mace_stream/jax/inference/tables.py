"""What a model says about distances: its radial modules as functions to tabulate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.folded.layers import last_radial_weight
from mace_stream.jax.folding import Parameters, Tree
from mace_stream.jax.interaction import DensityNorm, GatedDensityNorm
from mace_stream.jax.radial import (
    EdgeFeatures,
    NormalizedRadialNetwork,
    NoTransform,
    RadialEmbedding,
    RadialNetwork,
    ZBLRepulsion,
)
from mace_stream.kernels.inference import Repulsion
from mace_stream.spec import ModelSpec
from mace_stream.tables import building
from mace_stream.tables.building import Pair, RadialKind, RadialModel
from mace_stream.tables.grid import RadialFunction

PIECE = 512
"""Distances per evaluation, always: one compilation serves all."""

OfFeatures = Callable[[EdgeFeatures], Array]
"""From what radial networks read of n edges to [n, width]."""


def radial_model(spec: ModelSpec, tensors: Mapping[str, np.ndarray]) -> RadialModel:
    """Return the functions of the distance that the passes read; they are evaluated in float64.

    ``1 / avg_num_neighbors`` is folded into the path weights of the later layers.
    """
    params = Parameters(tensors, np.float64)
    embedding = RadialEmbedding(spec, params)
    reads_elements = any(layer.block == "NL" for layer in spec.layers)
    return RadialModel(
        kinds=[
            RadialKind(name, partial(_function, _compiled(embedding, of_features)), weight)
            for name, of_features, weight in _kinds(spec, params)
        ],
        elements=spec.elements,
        n_layers=len(spec.layers),
        r_max=spec.r_max,
        share=partial(
            building.shared_pair,
            reads_elements=reads_elements,
            is_transformed=not isinstance(embedding.transform, NoTransform),
        ),
    )


def repulsion(
    spec: ModelSpec, tensors: Mapping[str, np.ndarray], head: int, species: Sequence[int]
) -> Repulsion | None:
    """Pair repulsion of present species, the head's scale folded in; None where there is none."""
    if spec.pair_repulsion == "none":
        return None
    params, present = Parameters(tensors, np.float64), list(species)
    zbl = ZBLRepulsion(spec, params)
    return building.build_repulsion(
        *(zbl.charge[present], zbl.inverse_length[present], zbl.radius[present]),
        coefficients=zbl.coefficients,
        decays=zbl.DECAYS,
        p=zbl.p,
        scale=float(params.array("scale")[head]),
    )


def _kinds(
    spec: ModelSpec, params: Parameters
) -> Iterator[tuple[str, OfFeatures, np.ndarray | None]]:
    """Name of every kind of table, its function, and in what of it the passes are linear.

    Path weights are the last hidden features times a matrix, the mean norm included.
    """
    for t, layer in enumerate(spec.layers):
        mine, n_basis = params.under(f"layers.{t}"), spec.radial.n_basis
        is_gated = layer.block == "NL"
        has_density = layer.block not in ("R", "RR")
        network = (
            NormalizedRadialNetwork(layer, n_basis, mine)
            if is_gated
            else RadialNetwork(layer, mine)
        )
        hidden = partial(network.hidden, _arrays(network.parameters))
        if t == 0:
            yield "hidden features", hidden, None
        else:
            scale = 1.0 if has_density else 1 / mine.scalar("avg_num_neighbors")
            weight = scale * last_radial_weight(layer, mine)
            yield f"path weights {t}", hidden, weight.reshape(len(weight), len(layer.paths), -1)
        if has_density:
            norm = GatedDensityNorm(layer, n_basis, mine) if is_gated else DensityNorm(mine)
            yield f"density {t}", partial(_density, norm, _arrays(norm.parameters)), None


def _arrays(parameters: Tree) -> Tree:
    return jax.tree.map(jnp.asarray, parameters)


def _density(norm: DensityNorm, tree: Tree, feats: EdgeFeatures) -> Array:
    """The passes divide by one plus a sum; alpha is folded into the linear layer."""
    return tree.get("beta", 1.0) / tree.get("alpha", 1.0) * norm.per_edge(tree, feats)


Derivatives = Callable[[Array, Array, Array], list[Array]]
"""Maps distances [PIECE] and pairs, receivers and senders [n], to the function and its first and
second derivatives, [PIECE, n, width] each."""


def _compiled(embedding: RadialEmbedding, of_features: OfFeatures) -> Derivatives:
    """One kind of function, compiled once for all pairs."""

    def value(receiver: Array, sender: Array, length: Array) -> Array:
        ends = jnp.tile(sender, len(length)), jnp.tile(receiver, len(length))
        basis, cutoff = embedding(jnp.repeat(length, len(sender))[:, None], *ends)
        out = of_features(EdgeFeatures(basis, cutoff, *ends))
        return out.reshape(len(length), len(sender), -1)

    @jax.jit
    def derivatives(length: Array, receiver: Array, sender: Array) -> list[Array]:
        return _derivatives(partial(value, receiver, sender), length, 2)

    return derivatives


def _function(derivatives: Derivatives, pairs: Sequence[Pair]) -> RadialFunction:
    """Of pairs of receivers and senders, a family each; in pieces."""
    ends = np.array(pairs).T

    def function(r: np.ndarray, order: int) -> list[np.ndarray]:
        pieces = [r[start : start + PIECE] for start in range(0, len(r), PIECE)]
        parts = [derivatives(np.resize(piece, PIECE), *ends) for piece in pieces]
        found = [np.concatenate([np.asarray(part[k]) for part in parts]) for k in range(order + 1)]
        return [array[: len(r)] for array in found]

    return function


def _derivatives(function: Callable[[Array], Array], r: Array, order: int) -> list[Array]:
    """The function and its derivatives up to ``order``, forwards through every operation."""
    if order == 0:
        return [function(r)]
    lower, slopes = jax.jvp(
        lambda x: _derivatives(function, x, order - 1), (r,), (jnp.ones_like(r),)
    )
    return [*lower, slopes[-1]]
