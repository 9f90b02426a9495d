"""The compiled convolution on the CPU, through its C face, against oracle and plain torch."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from conv_cpu_support import (
    RAGGED,
    Core,
    assert_equal,
    cotangents,
    create,
    dims_of,
    oracle,
    problem,
    problem_of,
    torch_backward,
)
from test_couplings import PATHS, TRIPLES, natural, plan_of

from mace_stream.couplings import ConvPlan, wigner_3j
from mace_stream.spec import Path as ModelPath
from mace_stream.torch.conv import plain_conv

ROWS = {
    "ragged": RAGGED,
    "no_edges": [0, 0],
    "no_receivers": [],
}
NAMES = ("node_feats", "edge_attrs", "path_weights")


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("l_in", PATHS)
def test_forward_equals_the_oracle(core, l_in, rows):
    given = problem(l_in, rows)
    assert_equal(Core(core, given).forward(), oracle(given))


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("l_in", PATHS)
def test_backward_equals_torch(core, l_in, rows):
    given = problem(l_in, rows)
    message_bar, _ = cotangents(given)
    bars = Core(core, given).backward(message_bar)
    for actual, expected in zip(bars, torch_backward(given, message_bar), strict=True):
        assert_equal(actual, expected)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("l_in", PATHS)
def test_double_backward_equals_torch(core, l_in, rows):
    given = problem(l_in, rows)
    message_bar, cts = cotangents(given)
    grads = Core(core, given).double_backward(message_bar, cts)
    for actual, expected in zip(grads, torch_backward(given, message_bar, cts), strict=True):
        assert_equal(actual, expected)


@pytest.mark.parametrize("channels", [1, 7, 16, 48, 50])
def test_any_number_of_channels(core, channels):
    given = problem(channels=channels)
    message_bar, cts = cotangents(given)
    library = Core(core, given)
    assert_equal(library.forward(), oracle(given))
    for actual, expected in zip(
        library.double_backward(message_bar, cts),
        torch_backward(given, message_bar, cts),
        strict=True,
    ):
        assert_equal(actual, expected)


def plan_of_all_degrees():
    """Every path of degrees up to 4: blocks of 1, 3, 5, 7 and 9 rows on all sides."""
    triples = sorted(TRIPLES, key=lambda t: t[2])
    paths = [ModelPath(natural(a), b, natural(c)) for a, b, c in triples if (a + b + c) % 2 == 0]
    w3j = {
        (p.ir_in, p.l_edge, p.ir_out): wigner_3j(int(p.ir_in[0]), p.l_edge, int(p.ir_out[0]))
        for p in paths
    }
    return ConvPlan.build("+".join(f"3x{natural(a)}" for a in range(5)), 4, paths, w3j)


def test_all_degrees_up_to_four(core):
    given = problem_of(plan_of_all_degrees(), 3, [2, 0, 3])
    message_bar, _ = cotangents(given)
    library = Core(core, given)
    assert_equal(library.forward(), oracle(given))
    for actual, expected in zip(
        library.backward(message_bar), torch_backward(given, message_bar), strict=True
    ):
        assert_equal(actual, expected)


def irregular_plan(seed=0):
    """Random terms: even numbers of rows, more than nine, shared rows, and a path without terms."""
    rng = np.random.default_rng(seed)
    base = plan_of(1)
    terms = rng.integers(0, [4, 16, 9, 40], size=(300, 4))
    return replace(base, terms=terms, values=rng.normal(size=300))


def test_irregular_tables(core):
    given = problem_of(irregular_plan(), 5, [3, 20])
    library = Core(core, given)
    assert_equal(library.forward(), oracle(given))
    message_bar, cts = cotangents(given)
    for index, bar in enumerate(library.backward(message_bar)):
        arrays = list(given.arrays)
        arrays[index] = cts[index]
        pushed = (oracle(given, arrays) * message_bar).sum()
        assert abs(pushed - (bar * cts[index]).sum()) < 1e-11 * np.abs(bar * cts[index]).sum()


@pytest.mark.parametrize("seed", range(2))
def test_edges_in_any_order(core, seed):
    given = problem(seed=seed)
    order = np.random.default_rng(seed).permutation(len(given.sender))
    message_bar, cts = cotangents(given)
    shuffled, sorted_ = Core(core, given, any_order=order), Core(core, given)
    assert_equal(shuffled.forward(), sorted_.forward())
    pairs = [
        (shuffled.backward(message_bar), sorted_.backward(message_bar)),
        (shuffled.double_backward(message_bar, cts), sorted_.double_backward(message_bar, cts)),
    ]
    for actual, expected in pairs:
        for a, b in zip(actual, expected, strict=True):
            assert_equal(a, b)


def test_unwanted_node_cotangents_need_no_sender_rows(core):
    given = problem()
    message_bar, _ = cotangents(given)
    wanted = Core(core, given).backward(message_bar)
    bars = Core(core, given, by_sender=False).backward(message_bar, nodes=False)
    np.testing.assert_array_equal(bars[1], wanted[1])
    np.testing.assert_array_equal(bars[2], wanted[2])


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_null_cotangents_are_zero(core, wanted):
    given = problem()
    message_bar, cts = cotangents(given)
    library = Core(core, given)
    some = [ct if want else None for ct, want in zip(cts, wanted, strict=True)]
    full = [ct if want else np.zeros_like(ct) for ct, want in zip(cts, wanted, strict=True)]
    actual = library.double_backward(message_bar, some)
    for a, b in zip(actual, library.double_backward(message_bar, full), strict=True):
        assert_equal(a, b)


def test_float32_errs_at_most_twice_as_much_as_plain_torch(core):
    given = problem(rows=[40, 55, 60], channels=32).cast(np.float32)
    message_bar, _ = cotangents(given)
    tensors = [torch.tensor(a) for a in (*given.arrays, given.indptr, given.sender)]
    plain = [plain_conv(*tensors, given.plan).numpy(), *torch_backward(given, message_bar)]
    wide = given.cast(np.float64)
    wide_bar = message_bar.astype(np.float64)
    exact = [oracle(wide), *torch_backward(wide, wide_bar)]
    library = Core(core, given)
    for a, p, e in zip(
        [library.forward(), *library.backward(message_bar)], plain, exact, strict=True
    ):
        assert a.dtype == np.float32
        allowed = 2 * np.abs(p - e).max() + np.finfo(np.float32).eps * np.abs(e).max()
        assert np.abs(a - e).max() <= allowed


def test_float32_double_backward(core):
    given = problem(rows=[40, 55, 60], channels=32).cast(np.float32)
    message_bar, cts = cotangents(given)
    wide = given.cast(np.float64)
    exact = torch_backward(wide, message_bar.astype(float), [ct.astype(float) for ct in cts])
    plain = torch_backward(given, message_bar, cts)
    for a, p, e in zip(
        Core(core, given).double_backward(message_bar, cts), plain, exact, strict=True
    ):
        allowed = 2 * np.abs(p - e).max() + np.finfo(np.float32).eps * np.abs(e).max()
        assert np.abs(a - e).max() <= allowed


def results(core, given, threads):
    core.omp_set_num_threads(threads)
    message_bar, cts = cotangents(given)
    library = Core(core, given)
    order = np.random.default_rng(0).permutation(len(given.sender))
    shuffled = Core(core, given, any_order=order)
    return [
        library.forward(),
        *library.backward(message_bar),
        *library.double_backward(message_bar, cts),
        shuffled.forward(),
        *shuffled.backward(message_bar),
    ]


def test_bits_repeat_whatever_the_number_of_threads(core):
    given = problem(rows=[3, 0, 11, 1, 40] * 8, channels=20)
    first = results(core, given, 1)
    for threads in (1, 2, 3):
        for a, b in zip(first, results(core, given, threads), strict=True):
            np.testing.assert_array_equal(a, b)
    core.omp_set_num_threads(torch.get_num_threads())


def test_one_receiver_with_many_edges(core):
    given = problem(l_in=0, rows=[20_000], channels=2)
    message = Core(core, given).forward()
    tensors = [torch.tensor(a) for a in (*given.arrays, given.indptr, given.sender)]
    assert_equal(message, plain_conv(*tensors, given.plan).numpy())


# ---- the checks above reject planted mistakes ----


def adjoint_gap(core, index, spoil=lambda bar: None):
    """|<J v, m> - <v, J^T m>|: zero to rounding, as the convolution is linear in each input."""
    given = problem(seed=3)
    message_bar, cts = cotangents(given)
    library = Core(core, given)
    arrays = list(given.arrays)
    arrays[index] = cts[index]
    bar = library.backward(message_bar)[index]
    spoil(bar)
    return abs((library.forward(arrays) * message_bar).sum() - (cts[index] * bar).sum())


@pytest.mark.parametrize("index", range(3), ids=NAMES)
def test_vjp_is_the_adjoint(core, index):
    assert adjoint_gap(core, index) < 1e-11


@pytest.mark.parametrize("index", [1, 2], ids=NAMES[1:])
def test_the_adjoint_check_catches_a_lost_edge(core, index):
    def forget_last_edge(bar):
        bar[-1] = 0

    assert adjoint_gap(core, index, forget_last_edge) > 1e-3


def test_the_oracle_catches_a_lost_edge_and_a_swapped_path(core):
    given = problem()
    expected = oracle(given)
    node, attrs, weights = given.arrays
    lost = np.concatenate([weights[:-1], np.zeros_like(weights[:1])])
    swapped = weights[:, [0, 1, 2, 4, 3, *range(5, 10)]]
    for spoiled in (lost, swapped):
        with pytest.raises(AssertionError):
            assert_equal(Core(core, given).forward((node, attrs, spoiled)), expected)


# ---- misuse is refused in words ----


def spoil_sender(library):
    library.keep["sender"][2] = 99


def spoil_indptr(library):
    library.keep["indptr"] = library.keep["indptr"].copy()
    library.keep["indptr"][1:3] = [9, 2]
    library.graph.indptr = library.keep["indptr"].ctypes.data


MISUSE = {
    "n_edges": (lambda c: setattr(c.graph, "n_edges", -1), "n_edges: expected 0 or more, got -1"),
    "short": (lambda c: setattr(c.graph, "n_edges", 51), "end with n_edges = 51, got 52"),
    "channels": (lambda c: setattr(c.graph, "channels", 0), "channels: expected 1 or more, got 0"),
    "indptr": (lambda c: setattr(c.graph, "indptr", None), "indptr or receiver, got neither"),
    "indptr falls": (spoil_indptr, "rows of 0 or more edges, got -7 in row 1"),
    "no sender": (lambda c: setattr(c.graph, "sender", None), "graph.sender: expected an array"),
    "sender": (spoil_sender, r"sender\[2\]: expected at least 0 and less than 8, got 99"),
    "plan": (lambda c: setattr(c, "plan", None), "plan: expected what ms_conv_create returned"),
}


@pytest.mark.parametrize(("spoil", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_is_refused(core, spoil, message):
    library = Core(core, problem())
    spoil(library)
    with pytest.raises(ValueError, match=message):
        library.forward()


def test_missing_arrays_are_named(core):
    given = problem()
    message_bar, _ = cotangents(given)
    node, attrs, _ = given.arrays
    with pytest.raises(ValueError, match="path_weights: expected an array of 2600 numbers, got"):
        Core(core, given).call("forward", (node, attrs, None), [message_bar])
    with pytest.raises(ValueError, match="expected the edges sorted by sender, got null"):
        Core(core, given, by_sender=False).backward(message_bar)


def test_bad_tables_make_no_plan(core):
    plan = plan_of(1)
    assert create(core, dims_of(replace(plan, dim_edge=15)), plan.terms, plan.values) is None
    assert create(core, dims_of(replace(plan, dim_edge=65)), plan.terms, plan.values) is None
    assert create(core, dims_of(replace(plan, dim_in=0)), plan.terms, plan.values) is None
    assert create(core, dims_of(plan), plan.terms - 1, plan.values) is None
