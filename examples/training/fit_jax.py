"""A model's energies and forces fitted in JAX; ``fit_torch.py`` is the same, line for line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

import adam
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from titanium import Batch, Tensors

from mace_stream.jax import MACE, double_precision
from mace_stream.spec import ModelSpec
from mace_stream.tensors import trainable_names

FORCE_WEIGHT = 1.0
"""Weight of the forces' mean square, Å², against that of the energies per atom."""

jax.tree_util.register_dataclass(Batch, [field.name for field in fields(Batch)], [])


def energies_and_forces(model: MACE, batch: Batch) -> tuple[Array, Array]:
    """Energies [n_structures] and forces [n_atoms, 3], ready to be differentiated again."""

    def interaction_energy(x: Array) -> tuple[Array, Array]:
        edge_vec = x[batch.receiver] - x[batch.sender] - batch.offset
        return model(model.parameters, edge_vec, batch.indptr, batch.sender, batch.species)

    gradient, per_atom = jax.grad(interaction_energy, has_aux=True)(batch.positions)
    zeros = jnp.zeros(len(batch.energies), per_atom.dtype)
    return zeros.at[batch.structure].add(per_atom), -gradient


def loss(model: MACE, batch: Batch) -> Array:
    """Mean square of what energies per atom and forces lack."""
    energies, forces = energies_and_forces(model, batch)
    per_atom = (energies - batch.energies) / batch.atoms_per_structure
    return jnp.mean(per_atom**2) + FORCE_WEIGHT * jnp.mean((forces - batch.forces) ** 2)


def compile_loss_and_slopes(spec: ModelSpec, tensors: Tensors, **options: object) -> Callable:
    """Return a compiled function of weights and batch: loss, and its derivative by every weight.

    Through the forces that is a second derivative. Constants of the file are folded into the
    weights when the model is built, so that is part of what is compiled and differentiated.
    """

    def value(weights: dict[str, Array], batch: Batch) -> Array:
        model = MACE.from_spec(spec, {**tensors, **weights}, **options)
        return loss(model, batch)

    return jax.jit(jax.value_and_grad(value))


def fit(
    spec: ModelSpec, tensors: Tensors, batches: Sequence[Batch], rate: float, n_epochs: int
) -> Iterator[tuple[float, Tensors]]:
    """Train with one step per batch; yield the loss before every step, and the tensors after it."""
    with double_precision():
        loss_and_slopes = compile_loss_and_slopes(spec, tensors)
        weights = {name: jnp.asarray(tensors[name]) for name in trainable_names(spec)}
        state, advance = adam.start(weights), jax.jit(adam.advance)
    for _ in range(n_epochs):
        for batch in batches:
            with double_precision():
                value, slopes = loss_and_slopes(weights, batch)
                weights, state = advance(weights, slopes, state, rate)
            arrays = {name: np.asarray(weight) for name, weight in weights.items()}
            yield float(value), {**tensors, **arrays}
