"""A model's energies and forces fitted in torch; ``fit_jax.py`` is the same, line for line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import adam
import numpy as np
import torch
from titanium import Batch, Tensors
from torch import Tensor

from mace_stream.spec import ModelSpec
from mace_stream.tensors import trainable_names
from mace_stream.torch import MACE

FORCE_WEIGHT = 1.0
"""Weight of the forces' mean square, Å², against that of the energies per atom."""


def energies_and_forces(model: MACE, batch: Batch, *, again: bool = True) -> tuple[Tensor, Tensor]:
    """Energies [n_structures] and forces [n_atoms, 3]; ``again``: to be differentiated again."""
    put = _putter(model)
    x = put(batch.positions).requires_grad_()
    receiver, sender = put(batch.receiver), put(batch.sender)
    edge_vec = x[receiver] - x[sender] - put(batch.offset)
    energy, per_atom = model(edge_vec, put(batch.indptr), sender, put(batch.species))
    (gradient,) = torch.autograd.grad(energy, x, create_graph=again)
    zeros = per_atom.new_zeros(len(batch.energies))
    return zeros.index_add(0, put(batch.structure), per_atom), -gradient


def loss(model: MACE, batch: Batch) -> Tensor:
    """Mean square of what energies per atom and forces lack."""
    put = _putter(model)
    energies, forces = energies_and_forces(model, batch)
    per_atom = (energies - put(batch.energies)) / batch.atoms_per_structure
    return (per_atom**2).mean() + FORCE_WEIGHT * ((forces - put(batch.forces)) ** 2).mean()


def loss_and_slopes(
    spec: ModelSpec,
    tensors: Tensors,
    weights: dict[str, Tensor],
    batch: Batch,
    **options: object,
) -> tuple[float, dict[str, Tensor]]:
    """Loss, and its derivative by every weight: through the forces, a second derivative.

    Constants of the file are folded into the weights when the model is built, so that is part of
    what is differentiated; it takes some milliseconds.
    """
    model = MACE.from_spec(spec, {**tensors, **weights}, **options)
    value = loss(model, batch)
    slopes = torch.autograd.grad(value, list(weights.values()))
    return value.item(), dict(zip(weights, slopes, strict=True))


def fit(
    spec: ModelSpec, tensors: Tensors, batches: Sequence[Batch], rate: float, n_epochs: int
) -> Iterator[tuple[float, Tensors]]:
    """Train with one step per batch; yield the loss before every step, and the tensors after it."""
    weights = {name: torch.tensor(tensors[name]) for name in trainable_names(spec)}
    state = adam.start(weights)
    for _ in range(n_epochs):
        for batch in batches:
            leaves = {name: weight.requires_grad_() for name, weight in weights.items()}
            value, slopes = loss_and_slopes(spec, tensors, leaves, batch)
            with torch.no_grad():
                weights, state = adam.advance(weights, slopes, state, rate)
            arrays = {name: weight.numpy() for name, weight in weights.items()}
            yield value, {**tensors, **arrays}


def _putter(model: MACE) -> Callable[[np.ndarray], Tensor]:
    """Return what brings arrays to the model's device."""
    device = model.atomic_energies.device
    return lambda array: torch.tensor(np.asarray(array), device=device)
