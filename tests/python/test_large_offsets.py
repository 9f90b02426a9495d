"""More than 2^31 edges, slots and features on the CPU: real arithmetic at the far end of arrays
that exist as addresses only."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from conv_cpu_support import Core, assert_equal, cotangents, problem_of
from inference_run_support import Run, address, layers_with_conv
from large_support import LARGE, far, sparse_array, wrapped_array
from test_couplings import plan_of

from mace_stream.kernels.inference import EdgeArrays, EdgeList
from mace_stream.testing.inference import random_problem, random_setup

GHOSTS_AFTER = 2**27
"""Nodes between the receivers and the ghosts: with 8 channels and 4 rows, 2^32 features."""


# ---- inference path ----


class FarRun:
    """The problem of ``near`` with every slot LARGE places later."""

    def __init__(self, near: Run):
        self.near, self.real = near, near.real
        first, node_atom, slot_atom, slot_node, species = near.lists
        self.lists = [first + LARGE, node_atom, far(slot_atom), far(slot_node), species]
        self.nodes = EdgeList(
            near.nodes.n_nodes,
            near.nodes.n_senders,
            near.nodes.n_slots + LARGE,
            *map(address, self.lists),
        )
        self.arrays = [near.arrays[0], *(far(array) for array in near.arrays[1:])]
        self.edges = EdgeArrays(*map(address, self.arrays))

    @property
    def grad(self):
        return self.arrays[-1][LARGE:]

    def with_far_ghosts(self):
        """The same where ghosts are numbered after GHOSTS_AFTER more nodes."""
        n = self.nodes.n_nodes
        self.species = sparse_array((self.nodes.n_senders + GHOSTS_AFTER,), "int32")
        self.species[:n] = self.lists[-1][:n]
        self.species[n + GHOSTS_AFTER :] = self.lists[-1][n:]
        sender = self.arrays[1][LARGE:]
        sender[sender >= n] += GHOSTS_AFTER
        self.nodes = dataclasses.replace(
            self.nodes,
            n_senders=self.nodes.n_senders + GHOSTS_AFTER,
            species=address(self.species),
        )
        return self

    def spread(self, ups):
        """Features [dim, n_senders, C] with a gap before the ghosts."""
        n = self.nodes.n_nodes
        spread = sparse_array((len(ups), self.nodes.n_senders, ups.shape[2]), self.real)
        spread[:, :n] = ups[:, :n]
        spread[:, n + GHOSTS_AFTER :] = ups[:, n:]
        return spread

    def gathered(self, spread):
        n = self.nodes.n_nodes
        return np.concatenate([spread[:, :n], spread[:, n + GHOSTS_AFTER :]], axis=1)


@pytest.fixture(params=["float64", "float32"])
def near(core, request):
    setup = random_setup(dtype=request.param, channels=8)
    return Run(core, setup, random_problem(setup))


def test_edges_of_far_slots(near):
    count, sender, row, t, direction, grad, energy, closest = near.find_edges()
    run = FarRun(near)
    for array in run.arrays[1:]:
        array[LARGE:] = 0
    found_energy, found_closest = np.full(len(energy), np.nan), np.array([np.inf])
    x = np.ascontiguousarray(near.problem.x)
    near.passes.edges(run.nodes, run.edges, *map(address, (x, found_energy, found_closest)))
    np.testing.assert_array_equal(run.arrays[0], count)
    slots = near.problem.edges.slots(near.problem.nodes)[0]
    for found, expected in zip(run.arrays[1:], (sender, row, t, direction, grad), strict=True):
        np.testing.assert_array_equal(found[LARGE:][slots], expected[slots])
    np.testing.assert_array_equal(found_energy, energy)
    assert found_closest[0] == closest


def test_scatter_of_far_slots(near):
    expected, norm = near.scatter()
    expected_grad = near.scatter_backward()
    run, p = FarRun(near), near.problem
    out, found_norm = near.poisoned(*expected.shape), near.poisoned(len(norm))
    table = near.cast(p.hidden)
    arrays = (table, near.density, out, found_norm)
    near.passes.scatter(run.nodes, run.edges, *map(address, arrays))
    np.testing.assert_array_equal(out, expected)
    bar = near.cast(p.scatter_bar)
    dot = near.cast((np.float64(out) * bar).sum(axis=(0, 2, 3)))
    run.grad[:] = 1
    arrays = (table, near.density, bar, found_norm, dot)
    near.passes.scatter_backward(run.nodes, run.edges, *map(address, arrays))
    assert_equal(run.grad - 1, expected_grad)


def test_convolution_of_far_slots_and_ghosts(near):
    """The features of ghosts lie beyond 2^31 numbers, too."""
    p, tile = near.problem, (0, near.nodes.n_nodes)
    for layer in layers_with_conv(near.setup):
        run = FarRun(near).with_far_ghosts()
        up = run.spread(p.ups[layer])
        assert up.size > 2**31
        expected, _ = near.conv(layer, tile)
        out, table = near.poisoned(len(expected)), near.cast(p.convs[layer])
        arrays = *map(address, (up, table, near.density)), near.blocks(layer, tile, out)
        near.passes.conv(layer, tile, run.nodes, run.edges, *arrays, address(near.norm))
        np.testing.assert_array_equal(out, expected)


def test_backward_convolution_of_far_slots_and_ghosts(near):
    p, tile = near.problem, (0, near.nodes.n_nodes)
    for layer in layers_with_conv(near.setup):
        run = FarRun(near).with_far_ghosts()
        table, bar = near.cast(p.convs[layer]), near.cast(p.conv_bars[layer])
        up, up_bar = near.cast(p.ups[layer]), near.cast(np.zeros(p.ups[layer].shape))
        far_up, far_up_bar = run.spread(up), run.spread(up_bar)
        near.grad[:] = run.grad[:] = 0
        for own, features, features_bar in ((near, up, up_bar), (run, far_up, far_up_bar)):
            arrays = address(features), address(table), 0, near.blocks(layer, tile, bar), 0, 0
            near.passes.conv_backward(
                layer, tile, own.nodes, own.edges, *arrays, address(features_bar)
            )
        assert np.abs(up_bar).max() > 0.1
        assert_equal(run.grad, near.grad)
        # Threads add to these in any order, which shows in single precision.
        bound = 1e-12 if up_bar.dtype == np.float64 else 1e-5
        assert_equal(run.gathered(far_up_bar), up_bar, bound)


def test_forces_of_far_slots(near):
    expected = near.forces()
    run = FarRun(near)
    run.grad[:] = near.problem.edges.grad
    out = [np.full(array.shape, np.nan) for array in expected]
    near.passes.forces(run.nodes, run.edges, *map(address, out))
    for found, numbers in zip(out, expected, strict=True):
        np.testing.assert_array_equal(found, numbers)


# ---- convolution of the exact path ----


CHANNELS, PATHS = 512, 4
BEFORE = 2**31 // (CHANNELS * PATHS) + 7
"""Edges of zeros before the others: more than 2^31 weights."""


class LargeCore(Core):
    """The problem of ``small`` after another receiver, which has BEFORE edges of zeros."""

    def __init__(self, library, small):
        super().__init__(library, small)
        counts = np.bincount(small.sender + 1, minlength=self.graph.n_nodes + 1)
        self.graph_arrays = {
            "indptr": np.concatenate([[0], small.indptr + BEFORE]),
            "sender": far(small.sender.astype(np.int32) + 1, BEFORE),
            "sender_indptr": np.concatenate([[0], np.cumsum(counts) + BEFORE]),
            "edge_of": far(np.argsort(small.sender, kind="stable") + BEFORE, BEFORE),
        }
        for name, array in self.graph_arrays.items():
            setattr(self.graph, name, address(array))
        self.graph.n_nodes += 1
        self.graph.n_receivers += 1
        self.graph.n_edges += BEFORE

    def nodes(self, array):
        return np.concatenate([np.zeros((1, *array.shape[1:]), self.dtype), array])

    def inputs(self, arrays):
        node, attrs, weights = arrays
        return self.nodes(node), far(attrs, BEFORE), far(weights, BEFORE)

    def per_edge_output(self, like):
        return wrapped_array((BEFORE + len(like)) * like[0].size, self.dtype)


@pytest.fixture
def two_sizes(core):
    plan = plan_of(0, CHANNELS)
    small = problem_of(plan, CHANNELS, [5, 0, 11, 3]).cast(np.float32)
    assert plan.n_paths == PATHS
    return Core(core, small), LargeCore(core, small)


@pytest.mark.slow
def test_more_than_2_31_weights(two_sizes):
    small, large = two_sizes
    expected = small.forward()
    message = large.poisoned(len(expected) + 1, *expected.shape[1:])
    large.call("forward", large.inputs(small.problem.arrays), [message])
    np.testing.assert_array_equal(message[1:], expected)
    assert not message[0].any()


@pytest.mark.slow
def test_more_than_2_31_cotangents_of_weights(two_sizes):
    """Written one after the other into the same memory; the last stay."""
    small, large = two_sizes
    arrays = small.problem.arrays
    message_bar, _ = cotangents(small.problem)
    expected = small.backward(message_bar)
    node_bar = large.poisoned(len(arrays[0]) + 1, *arrays[0].shape[1:])
    outputs = [node_bar, *(large.per_edge_output(array) for array in arrays[1:])]
    large.call("backward", (*large.inputs(arrays), large.nodes(message_bar)), outputs)
    assert_equal(node_bar[1:], expected[0])
    for output, bar in zip(outputs[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(output[-bar.size :].reshape(bar.shape), bar)
