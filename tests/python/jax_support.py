"""What the tests of the JAX convolution share. Skips them where it is not built."""

import numpy as np
import pytest
from conv_cpu_support import assert_equal, cotangents

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'mace-stream[jax]'")
pytest.importorskip("mace_stream.jax", exc_type=ImportError)

import jax.numpy as jnp  # noqa: E402
from jax.interpreters import ad  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from mace_stream.jax import conv, ops, plain_conv  # noqa: E402

__all__ = ["ad", "check_grads", "conv", "jax", "jnp", "ops", "plain_conv"]  # for those who skip

NAMES = ("node_feats", "edge_attrs", "path_weights")


def message_of(given, arrays=None, function=conv, **kwargs):
    return function(*(arrays or given.arrays), given.indptr, given.sender, given.plan, **kwargs)


def loss_of(given, function=conv, **kwargs):
    """A number with derivatives of every order, as a function of the three arrays."""

    def loss(*arrays):
        return jnp.sum(jnp.sin(message_of(given, arrays, function, **kwargs)))

    return loss


def gradient(loss):
    return jax.grad(loss, (0, 1, 2))


def force_loss(loss):
    """A sum of squared gradients, as training on forces has it."""
    return lambda *arrays: sum(jnp.sum(bar**2) for bar in gradient(loss)(*arrays))


def pulled(given, message_bar, function=conv, **kwargs):
    """Message and the cotangents of the three arrays, as NumPy arrays."""

    @jax.jit
    def both(message_bar, *arrays):
        message, pull = jax.vjp(lambda *a: message_of(given, a, function, **kwargs), *arrays)
        return message, *pull(message_bar)

    return [np.asarray(a) for a in both(message_bar, *given.arrays)]


def twice_pulled(given, message_bar, cts, **kwargs):
    """Message, cotangents, and the VJP of those: of ``message_bar`` first."""

    def pull(message_bar, *arrays):
        return jax.vjp(lambda *a: message_of(given, a, **kwargs), *arrays)[1](message_bar)

    @jax.jit
    def all_of_them(cts, *inputs):
        bars, pull_again = jax.vjp(pull, *inputs)
        return message_of(given, inputs[1:], **kwargs), *bars, *pull_again(cts)

    return all_of_them(tuple(cts), message_bar, *given.arrays)


def assert_trees_equal(actual, expected, bound=1e-12):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert_equal(np.asarray(a), np.asarray(b), bound)


def adjoint_gap(given, index, spoil=lambda bar: bar):
    """|<J v, m> - <v, J^T m>|: zero to rounding, as the convolution is linear in each input."""
    message_bar, cts = cotangents(given)
    arrays = list(given.arrays)
    arrays[index] = cts[index]
    bar = spoil(pulled(given, message_bar)[1 + index])
    pushed = np.asarray(message_of(given, arrays))
    return abs((pushed * message_bar).sum() - (cts[index] * bar).sum())
