"""The torch convolution against the oracle, plain torch, its adjoint, and its derivatives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conv_torch_support import (
    DEVICES,
    NAMES,
    PATHS,
    RAGGED,
    assert_within_yardstick,
    derivatives,
    gap,
    largest_gap,
    like,
    model_plan,
    problem,
    small_plan,
)

from mace_stream import reference

ROWS = {
    "ragged": RAGGED,
    "no edges": (0, 0),
    "no receivers": (),
    "one receiver without edges": (0,),
    "one edge": (1,),
}
PASSES = ("message", *(f"first: {n}" for n in NAMES), *(f"second: {n}" for n in NAMES), "bar")

on_devices = pytest.mark.parametrize("device", DEVICES)
in_modes = pytest.mark.parametrize("mode", ["streaming", "standard"])


# ---- values ----


def oracle(given):
    return torch.tensor(reference.conv(*given.numpy()))


@on_devices
@in_modes
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("l_in", PATHS)
def test_message_equals_the_oracle(l_in, rows, mode, device):
    given = problem(model_plan(l_in), rows, device)
    assert gap(given.conv(mode=mode).cpu(), oracle(given)) < 1e-12


def gap_to_plain(given, **settings):
    """Of message, first and second derivatives."""
    actual = derivatives(lambda *arrays: given.conv(*arrays, **settings), given.leaves())
    return largest_gap(actual, derivatives(given.plain, given.leaves()))


@on_devices
@in_modes
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("l_in", PATHS)
def test_derivatives_equal_those_of_plain_torch(l_in, rows, mode, device):
    assert gap_to_plain(problem(model_plan(l_in), rows, device), mode=mode) < 1e-12


@on_devices
@pytest.mark.parametrize("channels", [1, 7, 48, 96, 224])
def test_any_number_of_channels(channels, device):
    given = problem(model_plan(1, channels), (3, 0, 9), device)
    assert gap_to_plain(given) < 1e-12
    assert gap_to_plain(given, deterministic=True) < 1e-12
    assert gap_to_plain(given, mode="standard") < 1e-12


DEGREES = {"one receiver with 1e5 edges": (100_000,), "1e5 receivers with one": (1,) * 100_000}


@on_devices
@in_modes
@pytest.mark.parametrize("rows", DEGREES.values(), ids=DEGREES)
def test_extreme_degrees(rows, mode, device):
    given = problem(model_plan(0, 2), rows, device)
    assert gap_to_plain(given, mode=mode) < 1e-11  # plain sums of 1e5 numbers have their own error


@on_devices
@in_modes
@pytest.mark.parametrize("l_in", PATHS)
def test_float32_errs_at_most_twice_as_much_as_plain_torch(l_in, mode, device):
    given = problem(model_plan(l_in, 32), (40, 55, 60), device, torch.float32)
    actual = derivatives(lambda *arrays: given.conv(*arrays, mode=mode), given.leaves())
    plain = derivatives(given.plain, given.leaves())
    exact = derivatives_in_float64(given)
    for name, *results in zip(PASSES, actual, plain, exact, strict=True):
        assert results[0].dtype == torch.float32, name
        assert_within_yardstick(*results)


def derivatives_in_float64(given):
    """The same numbers as in ``given``'s precision, to the last bit of the random cotangents."""
    exact = given.to(torch.float64)
    message = given.plain()
    (bar,) = (b.double().requires_grad_() for b in like([message], 5))
    leaves = exact.leaves()
    message = exact.plain(*leaves)
    first = torch.autograd.grad(message, leaves, bar, create_graph=True)
    cts = [ct.double() for ct in like(given.arrays, 6)]
    total = sum((b * ct).sum() for b, ct in zip(first, cts, strict=True))
    second = torch.autograd.grad(total, [*leaves, bar])
    return [t.detach() for t in (message, *first, *second)]


# ---- inputs as they come ----


def transposed(array):
    return array.transpose(0, -1).contiguous().transpose(0, -1)


def shifted(array):
    """The same numbers, starting one number behind an aligned address."""
    storage = array.new_empty(array.numel() + 1)
    storage[1:] = array.reshape(-1)
    return storage[1:].view(array.shape)


@on_devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("spread", [transposed, shifted])
def test_inputs_of_any_strides_and_alignment(spread, dtype, device):
    given = problem(model_plan(1, 8), RAGGED, device, dtype)
    odd = replace(given, arrays=tuple(map(spread, given.arrays)))
    assert spread is not transposed or not odd.arrays[0].is_contiguous()
    assert spread is not shifted or odd.arrays[0].data_ptr() % 16
    leaves = [array.detach().requires_grad_() for array in odd.arrays]
    actual = derivatives(lambda *arrays: odd.conv(*arrays, deterministic=True), leaves)
    expected = derivatives(lambda *a: given.conv(*a, deterministic=True), given.leaves())
    assert all(map(torch.equal, actual, expected))


@on_devices
def test_a_transposed_cotangent(device):
    given = problem(model_plan(), RAGGED, device)
    leaves = given.leaves()
    message = given.conv(*leaves)
    (bar,) = like([message])
    actual = torch.autograd.grad(message, leaves, transposed(bar), retain_graph=True)
    assert largest_gap(actual, torch.autograd.grad(message, leaves, bar)) < 1e-15


@on_devices
def test_senders_of_either_width_and_stride(device):
    given = problem(model_plan(), RAGGED, device)
    doubled = torch.stack([given.sender, given.sender + 1], dim=1)[:, 0]
    for sender in (given.sender.int(), doubled):
        assert torch.equal(replace(given, sender=sender).conv(), given.conv())


@on_devices
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_what_is_wanted(wanted, device):
    given = problem(model_plan(), RAGGED, device)
    arrays = list(given.arrays)
    for index in wanted:
        arrays[index] = arrays[index].clone().requires_grad_()
    leaves = [arrays[index] for index in wanted]
    actual = torch.autograd.grad(given.conv(*arrays).square().sum(), leaves)
    expected = torch.autograd.grad(given.plain(*arrays).square().sum(), leaves)
    assert largest_gap(actual, expected) < 1e-12


# ---- repeats ----


@on_devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_deterministic_repeats_bit_for_bit(dtype, device):
    given = problem(model_plan(1, 32), (200, 0, 300), device, dtype)

    def run():
        return derivatives(lambda *arrays: given.conv(*arrays, deterministic=True), given.leaves())

    expected = run()
    for _ in range(3):
        assert all(map(torch.equal, run(), expected))


@pytest.fixture
def poisoned():
    """Memory that nobody wrote to holds NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@on_devices
@in_modes
@pytest.mark.usefixtures("poisoned")
def test_every_output_is_written(mode, device):
    given = problem(model_plan(2, 40), RAGGED, device)
    settings = {"mode": mode}
    assert gap_to_plain(given, **settings) < 1e-12
    given = problem(model_plan(2, 40), (0, 0, 0), device)
    for result in derivatives(lambda *arrays: given.conv(*arrays, **settings), given.leaves()):
        assert not result.isnan().any()


@pytest.mark.usefixtures("poisoned")
def test_poison_shows_a_pass_that_does_nothing(monkeypatch):
    from mace_stream.torch import ops

    monkeypatch.setattr(ops._Call, "run", lambda *_: None)
    assert problem(model_plan()).conv().isnan().all()


# ---- derivatives ----


def adjoint_gap(index, device="cpu", mode="auto", spoil=lambda bar: bar):
    """|<J v, m> - <v, J^T m>|: zero to rounding, as the convolution is linear in each input."""
    given = problem(model_plan(), RAGGED, device, seed=3)
    leaves = given.leaves()
    message = given.conv(*leaves, mode=mode)
    (message_bar,) = like([message])
    bar = spoil(torch.autograd.grad(message, leaves, message_bar)[index])
    (direction,) = like([bar], 2)
    arrays = [*leaves[:index], direction, *leaves[index + 1 :]]
    pushed = given.conv(*arrays, mode=mode)
    return abs(((pushed * message_bar).sum() - (direction * bar).sum()).item())


@on_devices
@in_modes
@pytest.mark.parametrize("index", range(3), ids=NAMES)
def test_vjp_is_the_adjoint(index, mode, device):
    assert adjoint_gap(index, device, mode) < 1e-11


@pytest.mark.parametrize("index", range(3), ids=NAMES)
def test_the_adjoint_check_catches_a_lost_row(index):
    def forget_a_row(bar):
        bar[bar.abs().flatten(1).sum(1).argmax()] = 0
        return bar

    assert adjoint_gap(index, spoil=forget_a_row) > 1e-3


@on_devices
def test_gradcheck_and_gradgradcheck(device):
    given = problem(small_plan(), (2, 0), device, ghosts=0)
    for settings in ({}, {"deterministic": True}, {"mode": "standard"}):

        def function(*arrays, settings=settings):
            return given.conv(*arrays, **settings)

        assert torch.autograd.gradcheck(function, given.leaves(), nondet_tol=1e-12)
        assert torch.autograd.gradgradcheck(function, given.leaves(), nondet_tol=1e-12)


@on_devices
@pytest.mark.parametrize("product", [torch.autograd.functional.hvp, torch.autograd.functional.vhp])
def test_products_of_the_hessian_with_a_vector(product, device):
    given = problem(model_plan(), RAGGED, device)
    direction = like(given.arrays)
    kept = [lambda *a: given.conv(*a).sin().sum(), lambda *a: given.plain(*a).sin().sum()]
    (value, actual), (plain, expected) = (product(f, given.arrays, direction) for f in kept)
    assert abs(value - plain) < 1e-10
    assert largest_gap(actual, expected) < 1e-12


@on_devices
def test_the_gradient_of_a_loss_on_forces(device):
    """Forces are gradients by positions; a loss on them is differentiated by the parameters."""
    given = problem(model_plan(1, 4), RAGGED, device)
    positions, parameters = like([given.arrays[1][:, :3], torch.empty(4)], 8)
    parameters = parameters.to(device)

    def gradient(function):
        x, p = positions.clone().requires_grad_(), parameters.clone().requires_grad_()
        attrs = given.arrays[1] * torch.sin(x.sum(1, keepdim=True))
        weights = given.arrays[2] * torch.tanh(p * x.square().sum(1)[:, None, None])
        message = function(given.arrays[0] * p, attrs, weights)
        energy = message.square().sum(1).tanh().sum()
        (forces,) = torch.autograd.grad(-energy, x, create_graph=True)
        return torch.autograd.grad(forces.square().sum() + energy, p)

    assert largest_gap(gradient(given.conv), gradient(given.plain)) < 1e-12


@on_devices
@pytest.mark.parametrize("index", range(3), ids=NAMES)
def test_the_third_derivative_is_refused(index, device):
    given = problem(model_plan(1, 1), (2, 1), device)
    leaves = given.leaves()
    value = given.conv(*leaves).square().sum()
    for _ in range(2):
        grads = torch.autograd.grad(value, leaves, create_graph=True)
        value = sum(grad.square().sum() for grad in grads)
    with pytest.raises(NotImplementedError, match="no third derivative"):
        torch.autograd.grad(value, leaves[index], retain_graph=True)
    with pytest.raises(NotImplementedError, match="no third derivative"):
        value.backward()


# ---- planted mistakes ----


def wrong_sign(given):
    values = given.plan.values.copy()
    values[3] *= -1
    return replace(given, plan=replace(given.plan, values=values))


def misplaced_edge(given):
    indptr = given.indptr.clone()
    indptr[1:4] -= 1
    return replace(given, indptr=indptr)


def swapped_senders(given):
    return replace(given, sender=given.sender.flip(0))


def swapped_paths(given):
    terms = given.plan.terms.copy()
    terms[:, 2] = given.plan.n_paths - 1 - terms[:, 2]
    return replace(given, plan=replace(given.plan, terms=terms))


@pytest.mark.parametrize("spoil", [wrong_sign, misplaced_edge, swapped_senders, swapped_paths])
def test_the_comparisons_reject(spoil):
    given = problem(model_plan())
    spoiled = spoil(given)
    assert gap(spoiled.conv(), oracle(given)) > 1e-3
    results = [derivatives(each, given.leaves()) for each in (spoiled.conv, given.plain)]
    assert all(gap(a, b) > 1e-3 for a, b in zip(*results, strict=True))


def test_the_yardstick_rejects_a_small_error():
    given = problem(model_plan(0, 32), (40, 55), dtype=torch.float32)
    plain, exact = given.plain(), given.to(torch.float64).plain()
    with pytest.raises(AssertionError, match="RMS error"):
        assert_within_yardstick(given.conv() * (1 + 1e-5), plain, exact)

    exact = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    one = exact.float()
    one[77] += 1e-5
    with pytest.raises(AssertionError, match="largest error"):
        assert_within_yardstick(one, exact.float(), exact)


def test_rows_of_the_support_are_those_of_its_edges():
    given = problem(model_plan())
    assert given.indptr.tolist() == np.concatenate([[0], np.cumsum(RAGGED)]).tolist()
    assert int(given.sender.max()) >= len(RAGGED)  # a ghost sends
