"""What a model says about distances: tables of its radial modules, and its pair repulsion."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mace_stream.kernels.inference import Repulsion
from mace_stream.tables import building
from mace_stream.tables.building import Pair, RadialKind, RadialModel
from mace_stream.tables.grid import RadialFunction
from mace_stream.tables.radial import RadialTables
from mace_stream.torch.interaction import DensityNorm, MeanNorm
from mace_stream.torch.model import MACE
from mace_stream.torch.radial import (
    EdgeFeatures,
    NormalizedNetwork,
    NoTransform,
    RadialNetwork,
)

PIECE = 2048
"""Distances per evaluation, to bound memory."""

Network = RadialNetwork | NormalizedNetwork
OfFeatures = Callable[[EdgeFeatures], Tensor]
"""From what radial networks read of n edges to [n, width]."""


def build_tables(
    model: MACE, species: Sequence[int], n_coef: int, bound: float, r_0: float = building.R_0
) -> RadialTables:
    """Tabulate every function of the distance that the passes read.

    ``1 / avg_num_neighbors`` is folded into the path weights of the later layers.

    Args:
        model: In float64.
        species: Elements that are present, as indices into the model's.
        n_coef: Coefficients of the polynomials: 4 (cubic) or 6 (quintic).
        bound: Largest error of values and of derivatives, relative to the largest of each path of
            each layer and pair, of each pair's hidden features, and of each pair's density.
        r_0: Start of the grid in Å.

    Raises:
        TableError: No grid is fine enough, or the tables would be too large.
        ValueError: The model is not in float64.
    """
    if model.dtype != torch.float64:
        raise ValueError(f"radial table: expected a model in float64, got {model.dtype}")
    return building.build_tables(radial_model(model), species, n_coef, bound, r_0)


def radial_model(model: MACE) -> RadialModel:
    """Return what ``model`` says about distances."""
    read = any(isinstance(x.radial, NormalizedNetwork) for x in model.interactions)
    return RadialModel(
        kinds=[
            RadialKind(name, partial(_function, model, function), weight)
            for name, function, weight in _kinds(model)
        ],
        elements=model.elements,
        n_layers=len(model.interactions),
        r_max=model.r_max,
        share=partial(
            building.shared_pair,
            reads_elements=read,
            is_transformed=not isinstance(model.radial.transform, NoTransform),
        ),
    )


def build_repulsion(model: MACE, species: Sequence[int]) -> Repulsion | None:
    """Pair repulsion of present species, the head's scale folded in; None where there is none."""
    zbl = model.pair_repulsion
    if zbl is None:
        return None

    def of_present(buffer: Tensor) -> np.ndarray:
        return buffer[list(species)].cpu().numpy()

    return building.build_repulsion(
        *map(of_present, (zbl.charge, zbl.inverse_length, zbl.radius)),
        coefficients=zbl.coefficients,
        decays=zbl.DECAYS,
        p=zbl.p,
        scale=model.scale,
    )


def _kinds(model: MACE) -> Iterator[tuple[str, OfFeatures, np.ndarray | None]]:
    """Name of every kind of table, its function, and in what of it the passes are linear.

    Path weights are the last hidden features times a matrix, the mean norm included.
    """
    for t, interaction in enumerate(model.interactions):
        norm, network = interaction.normalize, _twice_differentiable(interaction.radial)
        if t == 0:
            yield "hidden features", network.hidden, None
        else:
            scale = 1 / norm.avg_num_neighbors if isinstance(norm, MeanNorm) else 1.0
            weight = scale * network.last_weight.unflatten(1, (network.n_paths, -1))
            yield f"path weights {t}", network.hidden, weight.cpu().numpy()
        if isinstance(norm, DensityNorm):
            yield f"density {t}", _density(norm), None


def _twice_differentiable(network: Network) -> Network:
    """The same network, its activation spelled out: torch has one forward derivative of silu."""
    if isinstance(network, NormalizedNetwork):
        return network
    network = copy.copy(network)
    if network.activation is torch.nn.functional.silu:
        network.activation = lambda x: x * torch.sigmoid(x)
    return network


def _density(norm: DensityNorm) -> OfFeatures:
    """The passes divide by one plus a sum; alpha is folded into the linear layer."""
    return lambda feats: (norm.beta / norm.alpha) * norm.per_edge(feats)


def _function(model: MACE, of_features: OfFeatures, pairs: Sequence[Pair]) -> RadialFunction:
    """Of pairs of receivers and senders, a family each; with exact derivatives, in pieces."""
    device = model.atomic_energies.device
    receiver, sender = torch.tensor(pairs, device=device).T

    def value(length: Tensor) -> Tensor:
        ends = sender.repeat(len(length)), receiver.repeat(len(length))
        basis, cutoff = model.radial(length.repeat_interleave(len(pairs))[:, None], *ends)
        return of_features(EdgeFeatures(basis, cutoff, *ends)).unflatten(0, (-1, len(pairs)))

    def function(r: np.ndarray, order: int) -> list[np.ndarray]:
        pieces = torch.as_tensor(r, device=device).split(PIECE)
        with torch.no_grad():
            parts = [_derivatives(value, piece, order) for piece in pieces]
        return [torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True)]

    return function


def _derivatives(function: Callable[[Tensor], Tensor], r: Tensor, order: int) -> list[Tensor]:
    """The function and its derivatives up to ``order``, forwards through every operation."""
    if order == 0:
        return [function(r)]
    lower, slopes = torch.func.jvp(
        lambda x: _derivatives(function, x, order - 1), (r,), (torch.ones_like(r),)
    )
    return [*lower, slopes[-1]]
