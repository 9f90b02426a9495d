"""Reading tensors of a model file as float64 and folding constants into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream import parameters

Tree = dict[str, Any]
"""Parameters of one layer, by name: arrays and the trees of its parts."""

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "abs": jnp.abs,
    "none": lambda x: x,
}


def activation(name: str) -> Callable[[Array], Array]:
    """Look an activation up by its name in the file.

    Raises:
        ValueError: It is not supported.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation: expected one of {sorted(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


class Parameters(parameters.Parameters):
    """Tensors under one prefix of a model file, read as float64, cast after folding.

    Where one is an array of JAX, what is folded from it can be differentiated by it.
    """

    def array(self, name: str) -> np.ndarray | Array:
        """As NumPy's."""
        given = self.tensors.get(self.prefix + name)
        return given.astype(jnp.float64) if isinstance(given, Array) else super().array(name)

    def join(self, arrays: Sequence[np.ndarray | Array]) -> np.ndarray | Array:
        """Put arrays one below the other."""
        is_traced = any(isinstance(array, jax.core.Tracer) for array in arrays)
        return (jnp if is_traced else np).concatenate(arrays)

    def cast(self, array: np.ndarray | Array) -> np.ndarray | Array:
        """Cast a folded float64 array to the model's precision."""
        kept = array if isinstance(array, jax.core.Tracer) else np.asarray(array)
        return kept.astype(np.dtype(self.dtype))
