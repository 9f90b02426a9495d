"""Plans that mix channels in JAX: plain products, against the oracle and torch."""

import numpy as np
import pytest
import torch
from conv_cpu_support import Problem, assert_equal, cotangents, oracle
from jax_support import (
    assert_trees_equal,
    check_grads,
    force_loss,
    gradient,
    jax,
    loss_of,
    message_of,
    pulled,
    twice_pulled,
)
from test_conv_e3nn import CASES, MIXED

from mace_stream.couplings import ConvPlan
from mace_stream.torch import conv as torch_conv

ROWS = (3, 0, 2, 1)


def mixed(name):
    plan = ConvPlan.from_irreps(*CASES[name])
    rng = np.random.default_rng(0)
    n_edges, n_nodes = sum(ROWS), len(ROWS) + 2
    shapes = (n_nodes, plan.dim_in, 1), (n_edges, plan.dim_edge), (n_edges, plan.n_paths, 1)
    arrays = tuple(rng.normal(size=shape) for shape in shapes)
    indptr = np.concatenate([[0], np.cumsum(ROWS)])
    return Problem(plan, arrays, indptr, rng.integers(0, n_nodes, n_edges))


@pytest.mark.parametrize("mode", ["auto", "standard"])
@pytest.mark.parametrize("name", sorted(MIXED))
def test_messages_equal_the_oracle(jax_device, name, mode):
    given = mixed(name)
    compiled = jax.jit(lambda *arrays: message_of(given, arrays, mode=mode))
    assert_equal(np.asarray(compiled(*given.arrays)), oracle(given))


@pytest.mark.parametrize("name", sorted(MIXED))
def test_derivatives_equal_torch(jax_device, name):
    given = mixed(name)
    message_bar, cts = cotangents(given)
    actual = twice_pulled(given, message_bar, cts)
    leaves = [torch.tensor(array, requires_grad=True) for array in given.arrays]
    bar = torch.tensor(message_bar, requires_grad=True)
    message = torch_conv(*leaves, *map(torch.tensor, (given.indptr, given.sender)), given.plan)
    bars = torch.autograd.grad(message, leaves, bar, create_graph=True)
    expected = [*bars, *torch.autograd.grad(bars, [bar, *leaves], list(map(torch.tensor, cts)))]
    for a, b in zip(actual[1:], expected, strict=True):
        assert_equal(np.asarray(a), b.detach().numpy(), bound=1e-13)


def test_both_modes_of_differentiation(jax_device):
    given = mixed("uvw")
    check_grads(jax.jit(loss_of(given)), given.arrays, order=1)


def test_force_training_and_vmap(jax_device):
    given = mixed("uvw and the rest")
    grads = gradient(force_loss(loss_of(given)))
    one = jax.jit(grads)(*given.arrays)
    many = jax.vmap(grads)(*(np.stack([array] * 2) for array in given.arrays))
    assert_trees_equal(jax.tree.map(lambda leaf: leaf[1], many), one)


def test_a_transposed_weight_is_caught(jax_device):
    given = mixed("uvw")
    node, attrs, weights = given.arrays
    wrong = np.asarray(message_of(given, (node, attrs, weights[:, ::-1])))
    with pytest.raises(AssertionError):
        assert_equal(wrong, oracle(given))


def test_refusals_are_those_of_torch():
    given = mixed("uvw").cast(np.float32)
    with pytest.raises(ValueError, match=r"\(uvw\) mixes channels"):
        message_of(given, mode="streaming")
    with pytest.raises(ValueError, match="deterministic: expected False"):
        message_of(given, deterministic=True)
    node, attrs, weights = given.arrays
    with pytest.raises(ValueError, match=r"node_feats: expected shape \(6, 18, 1\)"):
        message_of(given, (np.repeat(node, 2, axis=2), attrs, weights))


def test_empty_graphs(jax_device):
    given = mixed("uvw")
    empty = Problem(
        given.plan,
        (given.arrays[0], *(a[:0] for a in given.arrays[1:])),
        np.zeros(3, int),
        np.zeros(0, int),
    )
    message_bar = np.ones((2, given.plan.dim_out, 1))
    assert all(not array.any() for array in pulled(empty, message_bar))
