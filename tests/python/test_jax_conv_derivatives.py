"""Derivatives of the JAX convolution: every composition of forward and reverse mode."""

from functools import cache

import numpy as np
import pytest
from conv_cpu_support import problem, random_normal
from jax_support import (
    NAMES,
    ad,
    adjoint_gap,
    assert_trees_equal,
    check_grads,
    force_loss,
    gradient,
    jax,
    jnp,
    loss_of,
    message_of,
    ops,
    plain_conv,
)

SMALL = problem(l_in=0, rows=[3, 0, 2], channels=2)


def directions(given):
    return tuple(random_normal(given, a.shape, seed) for seed, a in enumerate(given.arrays, 11))


def along(function, given):
    return lambda *arrays: jax.jvp(function, arrays, directions(given))[1]


def product_by_double_backward(loss, given):
    """Differentiate a product of the Hessian and v with respect to v, which it is linear in."""

    def product(v):
        def inner(*arrays):
            pairs = zip(gradient(loss)(*arrays), v, strict=True)
            return sum(jnp.vdot(bar, x) for bar, x in pairs)

        return sum(jnp.sum(jnp.sin(x)) for x in gradient(inner)(*given.arrays))

    return jax.grad(product)(directions(given))


COMPOSITIONS = {
    "grad": lambda f, given: gradient(f)(*given.arrays),
    "grad of weights only": lambda f, given: jax.grad(f, 2)(*given.arrays),
    "jvp": lambda f, given: along(f, given)(*given.arrays),
    "jvp of grad": lambda f, given: along(gradient(f), given)(*given.arrays),
    "grad of grad": lambda f, given: gradient(force_loss(f))(*given.arrays),
    "grad of grad, jit": lambda f, given: jax.jit(gradient(force_loss(jax.jit(f))))(*given.arrays),
    "grad of jvp": lambda f, given: gradient(along(f, given))(*given.arrays),
    "jvp of jvp": lambda f, given: along(along(f, given), given)(*given.arrays),
    "double backward": product_by_double_backward,
    "checkpoint": lambda f, given: gradient(jax.checkpoint(f))(*given.arrays),
    "grad of grad, checkpoint": lambda f, given: gradient(force_loss(jax.checkpoint(f)))(
        *given.arrays
    ),
    "jvp of grad, checkpoint": lambda f, given: along(gradient(jax.checkpoint(f)), given)(
        *given.arrays
    ),
    "hessian": lambda f, given: jax.hessian(f, (1, 2))(*given.arrays),
    "jvp of weights only": lambda f, given: jax.jvp(
        lambda w: jax.grad(f, 1)(*given.arrays[:2], w), given.arrays[2:], directions(given)[2:]
    ),
}


@pytest.mark.parametrize("mode", ["streaming", "standard"])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_derivatives_equal_those_of_plain_jax(jax_device, name, mode):
    check_composition(jax_device, name, mode=mode)


@pytest.mark.parametrize("name", ["grad", "jvp of grad", "grad of grad"])
def test_deterministic_derivatives_equal_those_of_plain_jax(jax_device, name):
    check_composition(jax_device, name, deterministic=True)


def check_composition(device, name, **kwargs):
    actual = COMPOSITIONS[name](loss_of(SMALL, **kwargs), SMALL)
    assert_trees_equal(actual, plain_derivatives(device, name), bound=1e-11)


@cache
def plain_derivatives(device, name):
    return jax.jit(lambda: COMPOSITIONS[name](loss_of(SMALL, plain_conv), SMALL))()


@pytest.mark.parametrize("modes", [["rev"], ["fwd"], ["fwd", "rev"]], ids=["rev", "fwd", "both"])
def test_derivatives_equal_finite_differences(jax_device, modes):
    check_finite_differences(modes)


def check_finite_differences(modes):
    given = problem(rows=[2, 0, 1], channels=1)
    check_grads(lambda *arrays: message_of(given, arrays), given.arrays, order=2, modes=modes)


@pytest.mark.parametrize("last", [jax.grad, lambda f: lambda x: jax.jvp(f, (x,), (x,))[1]])
def test_the_third_derivative_is_refused(jax_device, last):
    given = problem(rows=[2, 1], channels=1)
    nodes, attrs, weights = given.arrays
    loss = loss_of(given)

    def squares(function):
        return lambda x: jnp.sum(jax.grad(function)(x) ** 2)

    twice = squares(squares(lambda x: loss(nodes, x, weights)))
    assert np.isfinite(squares(lambda x: loss(nodes, x, weights))(attrs))
    with pytest.raises(NotImplementedError, match="no third derivative"):
        last(twice)(attrs)


# ---- the checks above reject planted mistakes ----


@pytest.mark.parametrize("index", range(3), ids=NAMES)
def test_vjp_is_the_adjoint(jax_device, index):
    assert adjoint_gap(problem(seed=3), index) < 1e-11


@pytest.mark.parametrize("index", [1, 2], ids=NAMES[1:])
def test_the_adjoint_check_catches_a_lost_edge(jax_device, index):
    def forget_last_edge(bar):
        return np.concatenate([bar[:-1], 0 * bar[-1:]])

    assert adjoint_gap(problem(seed=3), index, forget_last_edge) > 1e-3


MISTAKES = {
    "edge_attrs": (ops._forward, 1, ["grad", "jvp", "jvp of jvp"], ["rev", "fwd"]),
    "message_bar": (ops._backward, 3, ["jvp of grad", "grad of grad", "double backward"], ["rev"]),
    "node_feats": (ops._backward, 0, ["jvp of grad", "grad of grad"], ["rev"]),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_tangent_counted_twice_is_caught(jax_device, monkeypatch, mistake):
    primitive, place, names, modes = mistake
    right = ad.primitive_jvps[primitive]

    def wrong(operands, tangents, *, settings):
        tangents = list(tangents)
        if type(tangents[place]) is not ad.Zero:
            tangents[place] = 2 * tangents[place]
        return right(operands, tangents, settings=settings)

    monkeypatch.setitem(ad.primitive_jvps, primitive, wrong)
    for name in names:
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            check_composition(jax_device, name)
    for mode in modes:
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            check_finite_differences([mode])
