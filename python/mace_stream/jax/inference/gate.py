"""The gate of block NL between convolution and message, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.folded import Activation, FoldedGate
from mace_stream.jax.folding import Tree, activation
from mace_stream.jax.inference.blocks import Mix


class Gate:
    """A :class:`FoldedGate` for arrays [dim, n, C], without its numbers.

    Args:
        folded: The gate.
        dim: Rows of the message.
        dim_up: Rows of what the convolution reads.
    """

    def __init__(self, folded: FoldedGate, dim: int, dim_up: int) -> None:
        self.folded, self.n_gates = folded, len(folded.dims)
        self._scalar, self._factor = folded.scalar, folded.factor
        self._linear = Mix(folded.linear, dim, dim)
        self._residual = Mix(folded.residual, dim_up, dim + self.n_gates)
        self._row_of_gate = np.repeat(np.arange(self.n_gates), folded.dims)

    def weights(self) -> Tree:
        """The numbers, float64."""
        return {
            "linear": self._linear.weights(),
            "residual": self._residual.weights(),
            "constant": self.folded.constant,
        }

    def complete(self, x: Array, up: Array | None, species: int, tree: Tree) -> Array:
        """Add the residual connection to the convolution's rows [n_gates + dim, n, C]."""
        if tree["constant"] is not None:
            return x + tree["constant"][species][:, None]
        return x + self._residual(up, tree["residual"]) if self.folded.residual else x

    def forward(self, x: Array, tree: Tree) -> Array:
        """Turn the complete input into the message [dim, n, C]."""
        return self._linear(self._gated(x), tree["linear"])

    def _gated(self, x: Array) -> Array:
        scalars, gates, rest = jnp.split(x, [1, 1 + self.n_gates])
        factors = _scaled(self._factor)(gates)[self._row_of_gate]
        return jnp.concatenate([_scaled(self._scalar)(scalars), rest * factors])

    def backward(
        self, x: Array, message_bar: Array, up: Array | None, species: int, tree: Tree
    ) -> tuple[Array, Array | None, Array]:
        """Return the cotangents of the input and of ``up``, and ``dot``.

        ``dot`` [n] is ``<x, x_bar>`` of the part of ``x`` that comes from the convolution.
        """
        gated_bar = self._linear.transposed(message_bar, tree["linear"])
        (x_bar,) = jax.vjp(self._gated, x)[1](gated_bar)
        dot = jnp.sum(x * x_bar, axis=(0, 2))
        if tree["constant"] is not None:
            return x_bar, None, dot - jnp.sum(tree["constant"][species][:, None] * x_bar, (0, 2))
        if not self.folded.residual:
            return x_bar, None, dot
        up_bar = self._residual.transposed(x_bar, tree["residual"])
        return x_bar, up_bar, dot - jnp.sum(up * up_bar, axis=(0, 2))


def _scaled(function: Activation) -> Callable[[Array], Array]:
    named = activation(function.name)
    return lambda x: function.scale * named(x)
