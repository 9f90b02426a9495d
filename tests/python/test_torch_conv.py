"""The torch convolution against the oracle, its adjoint, and its second derivative."""

import numpy as np
import pytest
import torch
from test_couplings import PATHS, harmonics, plan_of, unit_vectors

from mace_stream import reference
from mace_stream.torch import conv

ROWS = {
    "ragged": [3, 0, 11, 1, 0],
    "no_edges": [0, 0],
    "no_receivers": [],
}


def problem(l_in, rows, seed=0, channels=3, dtype=np.float64):
    """Random inputs; two senders are ghosts, repeated pairs occur."""
    rng = np.random.default_rng(seed)
    plan = plan_of(l_in, channels)
    n_edges, n_nodes = sum(rows), len(rows) + 2
    arrays = (
        rng.normal(size=(n_nodes, plan.dim_in, channels)),
        harmonics(unit_vectors(n_edges, seed), 3) if n_edges else np.zeros((0, 16)),
        rng.normal(size=(n_edges, plan.n_paths, channels)),
    )
    indptr = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    sender = rng.integers(0, n_nodes, n_edges)
    return [a.astype(dtype) for a in arrays], indptr, sender, plan


def torch_conv(arrays, indptr, sender, plan, **kwargs):
    tensors = [torch.as_tensor(array) for array in (*arrays, indptr, sender)]
    return conv(*tensors, plan, **kwargs)


@pytest.mark.parametrize("mode", ["streaming", "standard"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("l_in", PATHS)
def test_conv_equals_the_oracle(l_in, rows, mode):
    arrays, indptr, sender, plan = problem(l_in, rows)
    expected = reference.conv(*arrays, indptr, sender, plan)
    actual = torch_conv(arrays, indptr, sender, plan, mode=mode).numpy()
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * (1 + np.abs(expected).sum()))


@pytest.mark.parametrize("l_in", PATHS)
def test_float32_errs_at_most_twice_as_much_as_plain_numpy(l_in):
    arrays, indptr, sender, plan = problem(l_in, [40, 55, 60], channels=8, dtype=np.float32)
    exact = reference.conv(*(a.astype(np.float64) for a in arrays), indptr, sender, plan)
    plain = reference.conv(*arrays, indptr, sender, plan)
    assert plain.dtype == np.float32
    error = np.abs(torch_conv(arrays, indptr, sender, plan).numpy() - exact).max()
    allowed = 2 * np.abs(plain - exact).max() + np.finfo(np.float32).eps * np.abs(exact).max()
    assert error <= allowed


def adjoint_gap(index, forget_last_edge=False):
    """|<J v, m> - <v, J^T m>|: zero to rounding, as the convolution is linear in each input."""
    arrays, indptr, sender, plan = problem(1, ROWS["ragged"], seed=3)
    leaves = [torch.tensor(array, requires_grad=True) for array in arrays]
    message = torch_conv(leaves, indptr, sender, plan)
    message_bar = torch.randn(message.shape, generator=torch.Generator().manual_seed(1)).double()
    bars = torch.autograd.grad(message, leaves, message_bar)
    direction = torch.randn_like(leaves[index])
    bar = bars[index].clone()
    if forget_last_edge:
        bar[-1] = 0
    pushed = torch_conv([*leaves[:index], direction, *leaves[index + 1 :]], indptr, sender, plan)
    return abs(((pushed * message_bar).sum() - (direction * bar).sum()).item())


@pytest.mark.parametrize("index", range(3), ids=["node_feats", "edge_attrs", "path_weights"])
def test_vjp_is_the_adjoint(index):
    assert adjoint_gap(index) < 1e-11


@pytest.mark.parametrize("index", [1, 2], ids=["edge_attrs", "path_weights"])
def test_the_adjoint_check_catches_a_lost_edge(index):
    assert adjoint_gap(index, forget_last_edge=True) > 1e-3


def test_second_derivative():
    arrays, indptr, sender, plan = problem(1, [2, 0, 1], channels=1)
    leaves = [torch.tensor(array, requires_grad=True) for array in arrays]

    def function(*tensors):
        return torch_conv(tensors, indptr, sender, plan)

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_the_third_derivative_is_refused():
    arrays, indptr, sender, plan = problem(1, [2, 1], channels=1)
    leaf, *others = [torch.tensor(array, requires_grad=True) for array in arrays]
    value = torch_conv([leaf, *others], indptr, sender, plan).square().sum()
    for _ in range(2):
        value = torch.autograd.grad(value, others[1], create_graph=True)[0].square().sum()
    with pytest.raises(NotImplementedError, match="no third derivative"):
        torch.autograd.grad(value, others[1])


def test_modes():
    given = problem(0, ROWS["ragged"])
    chosen = torch_conv(*given)
    assert torch.equal(torch_conv(*given, mode="streaming"), chosen)
    torch.testing.assert_close(torch_conv(*given, mode="standard"), chosen, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="expected one of auto, streaming, standard, got 'fast'"):
        torch_conv(*given, mode="fast")


@pytest.mark.parametrize("index", range(3), ids=["node_feats", "edge_attrs", "path_weights"])
def test_wrong_shapes_are_named(index):
    arrays, indptr, sender, plan = problem(1, ROWS["ragged"])
    arrays[index] = arrays[index][:, 1:]
    name = ("node_feats", "edge_attrs", "path_weights")[index]
    with pytest.raises(ValueError, match=f"{name}: expected shape"):
        torch_conv(arrays, indptr, sender, plan)
