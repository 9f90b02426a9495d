"""Reading tensors of a model file as float64 and folding constants into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

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


class Parameters:
    """Tensors under one prefix of a model file, read as float64, cast after folding."""

    def __init__(
        self, tensors: Mapping[str, np.ndarray], dtype: np.dtype | str, prefix: str = ""
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.tensors = tensors
        self.prefix = prefix

    def under(self, prefix: str) -> Parameters:
        """The tensors whose names start with ``prefix`` and a dot."""
        return Parameters(self.tensors, self.dtype, f"{self.prefix}{prefix}.")

    def array(self, name: str) -> np.ndarray:
        """One tensor in float64 (integers as int64).

        Raises:
            ValueError: The file lacks it.
        """
        full_name = self.prefix + name
        if full_name not in self.tensors:
            raise ValueError(f"tensor {full_name}: missing; convert the model again")
        array = np.asarray(self.tensors[full_name])
        return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)

    def scalar(self, name: str) -> float:
        """One number."""
        return float(self.array(name))

    def linear(self, name: str) -> np.ndarray:
        """A weight ``[..., fan_in, out]`` or ``[C_in, Z, C_out]`` divided by ``sqrt(fan_in)``."""
        weight = self.array(name)
        return weight / sqrt(max(1, weight.size // weight.shape[-1]))

    def cast(self, array: np.ndarray) -> np.ndarray:
        """Cast a folded float64 array to the model's precision."""
        return np.asarray(array).astype(self.dtype)

    def names(self) -> list[str]:
        """Names under the prefix, prefix removed."""
        start = len(self.prefix)
        return [name[start:] for name in self.tensors if name.startswith(self.prefix)]
