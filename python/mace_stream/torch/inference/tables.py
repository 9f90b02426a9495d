"""What a model says about distances: tables of its radial modules, and its pair repulsion."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from mace_stream.kernels.inference import Repulsion
from mace_stream.tables.grid import RadialFunction, TableError, Tabulated, refine, tabulate
from mace_stream.tables.radial import RadialTables
from mace_stream.torch.interaction import DensityNorm, MeanNorm
from mace_stream.torch.model import MACE
from mace_stream.torch.radial import (
    EdgeFeatures,
    NormalizedNetwork,
    NoTransform,
    RadialNetwork,
)

MAX_BYTES = 8 * 2**30
"""Of all tables in float64: some ten elements in double precision."""

PIECE = 2048
"""Distances per evaluation, to bound memory."""

BATCH = 4
"""Pairs of elements that are evaluated together, as every evaluation takes its time."""

Network = RadialNetwork | NormalizedNetwork
OfFeatures = Callable[[EdgeFeatures], Tensor]
"""From what radial networks read of n edges to [n, width]."""


def build_tables(
    model: MACE, species: Sequence[int], n_coef: int, bound: float, r_0: float = 0.5
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
    pairs = [_shared_pair(model, i, j) for i in species for j in species]
    different = list(dict.fromkeys(pairs))
    batches = [different[k : k + BATCH] for k in range(0, len(different), BATCH)]
    items = {
        kind: [Tabulated(_function(model, batch, function), weight) for batch in batches]
        for kind, function, weight in _kinds(model)
    }
    functions = {
        f"{kind} of elements {_names(model, batch)}": item
        for kind, of_batches in items.items()
        for batch, item in zip(batches, of_batches, strict=True)
    }
    order = n_coef // 2 - 1
    fine = refine(functions, model.r_max, order, bound, r_0)
    _check_size(model, len(pairs) * fine.grid.n_knots * n_coef)

    def stack(kind: str) -> np.ndarray | None:
        """Tables of one kind, pair after pair, [rows, families, n_coef, width]."""
        if kind not in items:
            return None
        tables = {}
        for batch, item in zip(batches, items[kind], strict=True):
            coefficients = tabulate(item.function, fine.grid, order)
            tables |= {pair: (item, coefficients[:, :, k]) for k, pair in enumerate(batch)}
        return np.concatenate([_of_families(*tables[pair]) for pair in pairs])

    layers = range(len(model.interactions))
    densities = [stack(f"density {t}") for t in layers]
    return RadialTables(
        grid=fine.grid,
        n_coef=n_coef,
        hidden=stack("hidden features")[:, 0],
        convs=[stack(f"path weights {t}") for t in layers],
        densities=[None if table is None else table[:, 0, :, 0] for table in densities],
        value_error=fine.value_error,
        slope_error=fine.slope_error,
    )


def _of_families(item: Tabulated, coefficients: np.ndarray) -> np.ndarray:
    """Polynomials of what is read, [n_knots, families, n_coef, width], of one pair's."""
    n_knots, n_coef, _ = coefficients.shape
    read = item.project(coefficients)
    return read.reshape(n_knots, n_coef, -1, read.shape[2]).transpose(0, 2, 1, 3)


def _names(model: MACE, pairs: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{model.elements[i]} and {model.elements[j]}" for i, j in pairs)


def _check_size(model: MACE, n_polynomials: int) -> None:
    """Raise ``TableError`` where the tables of all pairs would fill the memory of a machine."""
    plans = [interaction.plan for interaction in model.interactions[1:]]
    n_bytes = 8 * n_polynomials * sum(plan.n_paths * plan.channels for plan in plans)
    if n_bytes > MAX_BYTES:
        raise TableError(
            f"radial tables of so many pairs of elements would take {n_bytes / 2**30:.0f} GiB; "
            "name fewer elements in pair_coeff, use precision single, or use radial exact"
        )


def build_repulsion(model: MACE, species: Sequence[int]) -> Repulsion | None:
    """Pair repulsion of present species, the head's scale folded in; None where there is none."""
    zbl = model.pair_repulsion
    if zbl is None:
        return None

    def of_present(buffer: Tensor) -> np.ndarray:
        return buffer[list(species)].cpu().numpy()

    charge = of_present(zbl.charge)
    return Repulsion(
        charge=model.scale * np.multiply.outer(charge, charge),
        inverse_length=np.add.outer(*[of_present(zbl.inverse_length)] * 2),
        bond=np.add.outer(*[of_present(zbl.radius)] * 2),
        coefficients=tuple(zbl.coefficients),
        decays=zbl.DECAYS,
        p=zbl.p,
    )


def _shared_pair(model: MACE, i: int, j: int) -> tuple[int, int]:
    """A pair of species, receiver and sender, with the same functions.

    Transforms are symmetric, or are none at all; networks that read the elements tell all apart.
    """
    if any(isinstance(x.radial, NormalizedNetwork) for x in model.interactions):
        return i, j
    if isinstance(model.radial.transform, NoTransform):
        return 0, 0
    return min(i, j), max(i, j)


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


def _function(
    model: MACE, pairs: Sequence[tuple[int, int]], of_features: OfFeatures
) -> RadialFunction:
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
