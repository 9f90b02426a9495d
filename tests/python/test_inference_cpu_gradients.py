"""CPU passes of the inference path: gradients by differences, single precision, threads."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from conv_cpu_support import assert_equal
from conv_torch_support import assert_within_yardstick
from inference_run_support import Run, address

from mace_stream.couplings import spherical_harmonics
from mace_stream.kernels.inference import EdgeArrays
from mace_stream.reference.inference import split_blocks
from mace_stream.testing.inference import random_problem, random_setup

# ---- an energy that is linear in the sums, and its forces ----


class Energy:
    """Repulsion, plus the sums of the first layer and of a convolution times fixed numbers."""

    def __init__(self, core, setup, problem):
        self.run = Run(core, setup, problem)
        n, n_slots = self.run.nodes.n_nodes, self.run.nodes.n_slots
        self.arrays = [
            *(np.zeros(size, np.int32) for size in (n, n_slots, n_slots)),
            *(np.zeros(shape) for shape in (n_slots, (n_slots, 4), (n_slots, 3))),
        ]
        self.run.edges = EdgeArrays(*map(address, self.arrays))
        self.run.grad = self.arrays[-1]

    def value(self, x):
        run, p = self.run, self.run.problem
        node_energy, closest = np.zeros(run.nodes.n_nodes), np.array([np.inf])
        run.passes.edges(run.nodes, run.edges, *map(address, (x, node_energy, closest)))
        scattered = (run.scatter()[0] * p.scatter_bar).sum()
        tile = (0, run.nodes.n_nodes)
        return node_energy.sum() + scattered + (run.conv(1, tile)[0] * p.conv_bars[1]).sum()

    def forces(self, x):
        """Forces on nodes, as if every slot were an image of its sender; virial."""
        run, p = self.run, self.run.problem
        self.value(x)
        grad = self.arrays[-1].copy()
        grad += run.scatter_backward()
        grad += run.conv_backward(1, (0, run.nodes.n_nodes), p.conv_bars[1])[0]
        run.grad[:] = grad
        forces, virial = np.zeros((run.nodes.n_senders, 3)), np.zeros(9)
        run.passes.forces(run.nodes, run.edges, address(forces), address(virial), 0, 0)
        return forces, virial.reshape(3, 3)

    def moved(self, node, step):
        """Positions with a node and all its images moved."""
        nodes, x = self.run.problem.nodes, self.run.problem.x.copy()
        x[nodes.slot_atom[nodes.slot_node == node]] += step
        if node < len(nodes.node_atom):
            x[nodes.node_atom[node]] += step
        return x


@pytest.fixture(params=[4, 6, 8])
def energy(core, request):
    setup = random_setup(n_coef=request.param, channels=11)
    return Energy(core, setup, random_problem(setup))


STEP, BOUND = 1e-5, 1e-7
"""Å; relative, of central differences."""


def test_forces_are_differences_of_the_energy(energy):
    x = energy.run.problem.x
    forces, _ = energy.forces(x)
    assert np.abs(forces).max() > 1
    for node, axis in [(0, 0), (3, 1), (8, 2), (14, 0), (16, 1)]:
        step = STEP * np.eye(3)[axis]
        ends = [energy.value(energy.moved(node, sign * step)) for sign in (1, -1)]
        difference = -(ends[0] - ends[1]) / (2 * STEP)
        assert abs(forces[node, axis] - difference) < BOUND * np.abs(forces).max()


def test_the_virial_is_the_derivative_by_strain(energy):
    x = energy.run.problem.x
    _, virial = energy.forces(x)
    for a, b in [(0, 0), (1, 2), (2, 1)]:
        strain = np.zeros((3, 3))
        strain[a, b] = STEP
        ends = [energy.value(np.ascontiguousarray(x + sign * x @ strain)) for sign in (1, -1)]
        difference = -(ends[0] - ends[1]) / (2 * STEP)
        assert abs(virial[a, b] - difference) < BOUND * np.abs(virial).max()


def test_the_difference_sees_an_edge_without_gradient(energy):
    x = energy.run.problem.x
    forces, _ = energy.forces(x)
    energy.run.grad[0] = 0
    spoiled, virial = np.zeros_like(forces), np.zeros(9)
    run = energy.run
    run.passes.forces(run.nodes, run.edges, address(spoiled), address(virial), 0, 0)
    assert np.abs(spoiled - forces).max() > 1e3 * BOUND * np.abs(forces).max()


# ---- single precision errs at most twice as much as plain torch ----


def rounded(value):
    """Every array of a problem as single precision knows it."""
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return value.astype(np.float32).astype(np.float64)
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


class Plain:
    """The passes in plain torch, in one precision; gradients by automatic differentiation."""

    def __init__(self, setup, problem, dtype):
        self.setup, self.problem, self.dtype = setup, problem, dtype
        edges, nodes = problem.edges, problem.nodes
        slots, receiver = edges.slots(nodes)
        self.slots, self.receiver = slots, torch.tensor(receiver)
        self.sender, self.row = (torch.tensor(a[slots]).long() for a in (edges.sender, edges.row))
        direction = self.cast(edges.dir[slots])
        self.vec = (direction[:, :3] / direction[:, 3:]).requires_grad_()
        length = self.vec.norm(dim=1)
        self.t = self.cast(edges.t[slots]) + (length - length.detach()) * setup.inverse_step
        unit = self.vec / length[:, None]
        self.attrs = torch.stack(spherical_harmonics(*unit.T, setup.l_max), dim=1)
        ones = torch.ones(nodes.n_nodes, dtype=dtype)
        density = self.polynomials(problem.density)
        self.norm = 1 / ones.index_add(0, self.receiver, density)

    def cast(self, array):
        return torch.tensor(array, dtype=self.dtype)

    def polynomials(self, table):
        coefs = self.cast(table)[self.row]
        t = self.t.reshape(-1, *[1] * (coefs.ndim - 2))
        value = coefs[:, -1]
        for k in range(coefs.shape[1] - 2, -1, -1):
            value = value * t + coefs[:, k]
        return value

    def sums(self, per_edge):
        out = per_edge.new_zeros(self.problem.nodes.n_nodes, *per_edge.shape[1:])
        norm = self.norm.reshape(-1, *[1] * (per_edge.ndim - 1))
        return norm * out.index_add(0, self.receiver, per_edge)

    def scatter(self):
        species = torch.tensor(self.problem.nodes.species).long()[self.sender]
        chosen = torch.nn.functional.one_hot(species, self.setup.n_species).to(self.dtype)
        hidden = self.polynomials(self.problem.hidden)
        features = self.attrs[:, :, None, None] * chosen[:, None, :, None] * hidden[:, None, None]
        return self.sums(features).movedim(1, 0)

    def conv(self):
        plan = self.setup.plans[1]
        self.up = self.cast(self.problem.ups[1]).requires_grad_()
        weights = self.polynomials(self.problem.convs[1].transpose(0, 2, 1, 3))
        sent = self.up[:, self.sender]
        rows = [0.0 * sent[0]] * plan.dim_out
        for (m_in, m_edge, path, m_out), value in zip(plan.terms, plan.values, strict=True):
            term = value * weights[:, path] * sent[m_in] * self.attrs[:, m_edge, None]
            rows[m_out] = rows[m_out] + term
        return self.sums(torch.stack(rows, dim=1))

    def contract(self):
        contraction = self.setup.contractions[0]
        self.msg = self.cast(self.problem.messages[0]).requires_grad_()
        coefs = self.cast(self.problem.coefs[0])[torch.tensor(self.problem.nodes.species).long()]
        rows = [0.0 * self.msg[0]] * contraction.dim_out
        for k, (row, *factors) in enumerate(contraction.terms):
            product = coefs[: self.msg.shape[1], k]
            for factor in factors:
                product = product * self.msg[factor] if factor >= 0 else product
            rows[row] = rows[row] + product
        return torch.stack(rows)

    def gradients(self, out, bar, *inputs):
        return torch.autograd.grad(out, inputs, self.cast(bar), retain_graph=True)


@pytest.fixture
def single(core):
    """The kernels, plain torch, and plain torch in float64, on the same rounded numbers."""
    setup = random_setup(dtype="float32", channels=32, n_hidden=16)
    problem = random_problem(setup, n_nodes=40, mean_slots=60)
    problem = replace(
        problem, **{f.name: rounded(getattr(problem, f.name)) for f in fields(problem)}
    )
    edges = problem.edges
    problem = replace(problem, edges=replace(edges, t=rounded(edges.t), dir=rounded(edges.dir)))
    plains = [Plain(setup, problem, dtype) for dtype in (torch.float32, torch.float64)]
    return Run(core, setup, problem), *plains


def compare(actual, plain, exact):
    assert_within_yardstick(torch.tensor(actual), plain.detach(), exact.detach())


def test_single_precision_of_the_first_layer(single):
    run, *plains = single
    outs = [plain.scatter() for plain in plains]
    compare(run.scatter()[0], *outs)
    bar = run.problem.scatter_bar
    grads = [p.gradients(out, bar, p.vec)[0] for p, out in zip(plains, outs, strict=True)]
    compare(run.scatter_backward()[plains[0].slots], *grads)


def test_single_precision_of_the_convolution(single):
    run, *plains = single
    n, plan = run.nodes.n_nodes, run.setup.plans[1]
    outs = [plain.conv() for plain in plains]
    compare(split_blocks(plan, run.conv(1, (0, n))[0], n), *outs)
    flat = run.problem.conv_bars[1]
    bar = split_blocks(plan, flat, n)
    grads = [p.gradients(out, bar, p.vec, p.up) for p, out in zip(plains, outs, strict=True)]
    edge_grad, up_bar = run.conv_backward(1, (0, n), flat)
    compare(edge_grad[plains[0].slots], *(grad[0] for grad in grads))
    compare(up_bar, *(grad[1] for grad in grads))


def test_single_precision_of_the_contraction(single):
    run, *plains = single
    tile = (0, run.nodes.n_nodes)
    outs = [plain.contract() for plain in plains]
    compare(run.contract(0, tile), *outs)
    bar = run.problem.basis_bars[0]
    grads = [p.gradients(out, bar, p.msg)[0] for p, out in zip(plains, outs, strict=True)]
    compare(run.contract_backward(0, tile)[0], *grads)


def test_edges_in_single_precision_are_rounded_once(core):
    setup = random_setup(channels=1)
    problem = random_problem(setup)
    exact = Run(core, setup, problem).find_edges()
    edges = Run(core, replace(setup, dtype="float32"), problem).find_edges()
    for single, double in zip(edges, exact, strict=True):
        expected = double.astype(single.dtype) if isinstance(double, np.ndarray) else double
        np.testing.assert_array_equal(single, expected)


def test_the_yardstick_sees_half_precision(single):
    run, *plains = single
    halved = run.scatter()[0].astype(np.float16).astype(np.float32)
    with pytest.raises(AssertionError, match="RMS error"):
        compare(halved, *(plain.scatter() for plain in plains))


# ---- threads ----


def results(core, threads):
    core.omp_set_num_threads(threads)
    setup = random_setup(channels=20)
    run = Run(core, setup, random_problem(setup, n_nodes=90, n_ghosts=0, mean_slots=30))
    tile = (0, run.nodes.n_nodes)
    return [
        *run.find_edges()[:-1],
        run.scatter()[0],
        run.scatter_backward(),
        run.conv(1, tile)[0],
        *run.conv_backward(1, tile, run.problem.conv_bars[1]),
        run.contract(0, tile),
        *run.contract_backward(0, tile),
        *run.forces(),
    ]


@pytest.fixture
def first(core):
    yield results(core, 1)
    core.omp_set_num_threads(torch.get_num_threads())


def test_bits_repeat_with_one_thread(core, first):
    for a, b in zip(first, results(core, 1), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_give_the_same(core, first, threads):
    for a, b in zip(results(core, threads), first, strict=True):
        assert_equal(np.nan_to_num(a), np.nan_to_num(b))
