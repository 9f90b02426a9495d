"""The passes of the inference path on the CPU, against the float64 oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conv_cpu_support import assert_equal
from inference_run_support import (
    SETUPS,
    Run,
    address,
    conv_bar_of,
    layers_with_conv,
    own,
    run_of,
    tiles_of,
)
from test_conv_cpu import irregular_plan

from mace_stream.kernels.inference import Contraction
from mace_stream.kernels.inference_cpu import CpuPasses
from mace_stream.reference.inference import Neighbors, ReferencePasses
from mace_stream.testing.inference import random_problem, random_setup

CPU_SETUPS = {**SETUPS, "eighth_order": {"n_coef": 8}}


@pytest.fixture(params=CPU_SETUPS)
def setup(request):
    return random_setup(**CPU_SETUPS[request.param])


@pytest.fixture(params=[True, False], ids=["density", "no_density"])
def with_density(request):
    return request.param


# ---- every pass equals the oracle ----


def test_edges(core, setup):
    run, oracle = run_of(core, setup)
    count, sender, row, t, direction, grad, energy, closest = run.find_edges()
    edges, exact_energy, exact_closest = oracle.edges(run.problem.nodes, run.problem.x)
    np.testing.assert_array_equal(count, edges.count)
    assert 0 < count.sum() < run.nodes.n_slots
    np.testing.assert_array_equal(sender, edges.sender)
    np.testing.assert_array_equal(row, edges.row)
    assert_equal(own(run, t), own(run, edges.t))
    assert_equal(own(run, direction), own(run, edges.dir))
    assert_equal(own(run, grad), own(run, edges.grad))
    assert_equal(energy, exact_energy)
    assert closest == exact_closest == np.inf


def test_scatter(core, setup, with_density):
    run, oracle = run_of(core, setup, with_density)
    p = run.problem
    density = p.density if with_density else None
    expected, norm = oracle.scatter(p.nodes, p.edges, p.hidden, density)
    out, actual_norm = run.scatter()
    assert_equal(out, expected)
    assert_equal(actual_norm, norm)


def test_scatter_backward(core, setup, with_density):
    run, oracle = run_of(core, setup, with_density)
    p = run.problem
    density = p.density if with_density else None
    expected = oracle.scatter_backward(p.nodes, p.edges, p.hidden, density, p.scatter_bar)
    assert_equal(run.scatter_backward(), expected)


def test_conv(core, setup, with_density):
    run, oracle = run_of(core, setup, with_density)
    p = run.problem
    density = p.density if with_density else None
    for layer in layers_with_conv(setup):
        for tile in tiles_of(run):
            expected, norm = oracle.conv(
                layer, tile, p.nodes, p.edges, p.ups[layer], p.convs[layer], density
            )
            out, actual_norm = run.conv(layer, tile)
            assert_equal(out, expected)
            if with_density:
                assert_equal(actual_norm, norm)


def test_conv_backward(core, setup, with_density):
    run, oracle = run_of(core, setup, with_density)
    p = run.problem
    density = p.density if with_density else None
    for layer in layers_with_conv(setup):
        for tile in tiles_of(run):
            bar = conv_bar_of(run, layer, tile)
            expected, up_bar = oracle.conv_backward(
                layer, tile, p.nodes, p.edges, p.ups[layer], p.convs[layer], density, bar
            )
            grad, actual_up_bar = run.conv_backward(layer, tile, bar)
            assert_equal(grad, expected)
            assert_equal(actual_up_bar, up_bar)
            assert_equal(run.conv_backward(layer, tile, bar, up_bar=False)[0], expected)


def test_contract(core, setup):
    run, oracle = run_of(core, setup)
    p = run.problem
    for layer in range(len(setup.contractions)):
        for tile in tiles_of(run):
            msg = p.messages[layer][:, slice(*tile)]
            expected = oracle.contract(layer, tile, p.nodes.species, p.coefs[layer], msg)
            assert_equal(run.contract(layer, tile), expected)


def test_contract_backward(core, setup):
    run, oracle = run_of(core, setup)
    p = run.problem
    for layer in range(len(setup.contractions)):
        for tile in tiles_of(run):
            msg, bar = (a[layer][:, slice(*tile)] for a in (p.messages, p.basis_bars))
            expected, dot = oracle.contract_backward(
                layer, tile, p.nodes.species, p.coefs[layer], msg, bar
            )
            actual, actual_dot = run.contract_backward(layer, tile)
            assert_equal(actual, expected)
            assert_equal(actual_dot, dot)
            assert_equal(run.contract_backward(layer, tile, with_dot=False)[0], expected)


def test_forces(core, setup):
    run, oracle = run_of(core, setup)
    p = run.problem
    for actual, expected in zip(run.forces(), oracle.forces(p.nodes, p.edges), strict=True):
        assert_equal(actual, expected)
    forces, virial, *_ = run.forces(virials=False)
    assert_equal(forces, oracle.forces(p.nodes, p.edges)[0])
    assert_equal(virial, oracle.forces(p.nodes, p.edges)[1])


# ---- what is awkward ----


def test_a_path_in_several_pieces_and_one_that_couples_nothing(core):
    setup = random_setup(channels=5)
    setup = replace(setup, plans=(None, replace(irregular_plan(), channels=5)))
    run, oracle = run_of(core, setup)
    p, tile = run.problem, (0, run.nodes.n_nodes)
    expected, _ = oracle.conv(1, tile, p.nodes, p.edges, p.ups[1], p.convs[1], p.density)
    assert_equal(run.conv(1, tile)[0], expected)
    bars = oracle.conv_backward(
        1, tile, p.nodes, p.edges, p.ups[1], p.convs[1], p.density, p.conv_bars[1]
    )
    for actual, bar in zip(run.conv_backward(1, tile, p.conv_bars[1]), bars, strict=True):
        assert_equal(actual, bar)


def test_the_convolution_may_have_channels_of_its_own(core):
    narrow = random_setup(channels=3)
    problem = random_problem(narrow)
    run, oracle = Run(core, replace(narrow, channels=6), problem), ReferencePasses(narrow)
    tile, up, table = (0, problem.nodes.n_nodes), problem.ups[1], problem.convs[1]
    expected, _ = oracle.conv(1, tile, problem.nodes, problem.edges, up, table, problem.density)
    assert_equal(run.conv(1, tile)[0], expected)


def test_monomials_in_any_order_with_a_constant(core):
    setup = random_setup(correlation=3, channels=9)
    first, second = setup.contractions
    terms = np.concatenate([first.terms, [[1, -1, -1, -1], [3, -1, 2, 0]]])
    terms = np.random.default_rng(0).permutation(terms)
    setup = replace(setup, contractions=(Contraction(terms, first.dim, first.dim_out), second))
    run, oracle = run_of(core, setup)
    p, tile = run.problem, (2, 11)
    msg, bar = (array[0][:, slice(*tile)] for array in (p.messages, p.basis_bars))
    expected = oracle.contract(0, tile, p.nodes.species, p.coefs[0], msg)
    assert_equal(run.contract(0, tile), expected)
    expected, _ = oracle.contract_backward(0, tile, p.nodes.species, p.coefs[0], msg, bar)
    assert_equal(run.contract_backward(0, tile)[0], expected)


def test_many_edges_per_row(core):
    run, oracle = run_of(core, random_setup(channels=3, n_species=2), mean_slots=150)
    p, tile = run.problem, (0, run.nodes.n_nodes)
    assert p.edges.count.max() > 64
    for actual, expected in (
        (run.scatter()[0], oracle.scatter(p.nodes, p.edges, p.hidden, p.density)[0]),
        (
            run.conv(1, tile)[0],
            oracle.conv(1, tile, p.nodes, p.edges, p.ups[1], p.convs[1], p.density)[0],
        ),
    ):
        assert_equal(actual, expected)


def test_no_nodes_at_all(core):
    setup = random_setup()
    problem = random_problem(setup, n_nodes=1, n_ghosts=0, mean_slots=0)
    none = np.zeros(0, np.int64)
    nodes = Neighbors(np.zeros(1, np.int64), none, none, none, none)
    run = Run(core, setup, replace(problem, nodes=nodes))
    run.find_edges()
    run.passes.scatter(run.nodes, run.edges, address(problem.hidden), 0, 0, 0)
    blocks = [0] * len(setup.plans[1].outputs)
    run.passes.conv(1, (0, 0), run.nodes, run.edges, 0, address(problem.convs[1]), 0, blocks, 0)
    run.passes.contract(0, (0, 0), 0, 0, [0] * setup.contractions[0].dim, 0)
    virial = np.full(9, np.nan)
    run.passes.forces(run.nodes, run.edges, 0, address(virial), 0, 0)
    np.testing.assert_array_equal(virial, 0)


def shifted(problem, slot, distance):
    """The problem with the sender of one slot at this distance."""
    nodes, x = problem.nodes, problem.x.copy()
    receiver = np.searchsorted(nodes.first, slot, side="right") - 1
    centre = x[nodes.node_atom[receiver]]
    unit = x[nodes.slot_atom[slot]] - centre
    x[nodes.slot_atom[slot]] = centre + distance * unit / np.linalg.norm(unit)
    return replace(problem, x=x)


def test_the_closest_pair_is_reported_and_changes_no_other(core):
    setup = random_setup()
    problem = random_problem(setup)
    close = shifted(shifted(problem, 3, 0.31), 20, 0.4)
    before, after = (Run(core, setup, p).find_edges() for p in (problem, close))
    assert before[-1] == np.inf
    assert after[-1] == pytest.approx(0.31, rel=1e-12)
    assert (after[3] == 0).sum() == 2
    same = after[0] == before[0]
    assert same.sum() >= len(same) - 2


def test_nan_positions_give_nan_energies(core):
    setup = random_setup()
    problem = random_problem(setup)
    problem.x[problem.nodes.slot_atom[0]] = np.nan
    *_, energy, closest = Run(core, setup, problem).find_edges()
    assert np.isnan(energy).sum() == 1
    assert closest == np.inf


# ---- refusals ----


@pytest.mark.parametrize(
    "wrong",
    [
        {"l_max": 5},
        {"l_max": 2},
        {"n_coef": 5},
        {"n_knots": 0},
        {"r_max": 0.5},
        {"n_species": 0},
        {"plans": (None,), "contractions": (Contraction(np.array([[4, 0]]), 16, 4),)},
        {"plans": (None,), "contractions": (Contraction(np.array([[0, 16]]), 16, 4),)},
    ],
    ids=",".join,
)
def test_inconsistent_tables_are_refused(core, wrong):
    with pytest.raises(ValueError, match="inconsistent"):
        CpuPasses(replace(random_setup(), **wrong), core)


def test_plans_that_mix_channels_are_refused(core):
    setup = random_setup()
    mixing = replace(setup.plans[1], refusal="instruction 0 mixes channels (uvw)")
    with pytest.raises(ValueError, match="mixes channels"):
        CpuPasses(replace(setup, plans=(None, mixing)), core)


def test_arguments_that_are_missing_are_named(core):
    run, _ = run_of(core, random_setup())
    nodes, edges, n = run.nodes, run.edges, run.nodes.n_nodes
    table, up = address(run.problem.convs[1]), address(run.problem.ups[1])
    out = address(run.problem.conv_bars[1])
    passes, blocks = run.passes, run.blocks(1, (0, n), run.problem.conv_bars[1])
    one_missing, dim = [*blocks[:-1], 0], run.setup.contractions[0].dim
    for name, call in {
        "x": lambda: passes.edges(nodes, edges, 0, out, out),
        "nodes.first": lambda: passes.edges(replace(nodes, first=0), edges, out, out, out),
        "edges.t": lambda: passes.forces(nodes, replace(edges, t=0), out, out, 0, 0),
        "table": lambda: passes.scatter(nodes, edges, 0, 0, out, 0),
        "norm": lambda: passes.scatter(nodes, edges, table, table, out, 0),
        "dot": lambda: passes.scatter_backward(nodes, edges, table, table, out, out, 0),
        "up": lambda: passes.conv(1, (0, n), nodes, edges, 0, table, 0, blocks, 0),
        "out": lambda: passes.conv(1, (0, n), nodes, edges, up, table, 0, one_missing, 0),
        "layer": lambda: passes.conv(0, (0, n), nodes, edges, up, table, 0, blocks, 0),
        "tile": lambda: passes.conv(1, (0, n + 1), nodes, edges, up, table, 0, blocks, 0),
        "msg": lambda: passes.contract(0, (0, n), out, out, [out] * (dim - 1) + [0], out),
        "virial": lambda: passes.forces(nodes, edges, out, 0, 0, 0),
    }.items():
        with pytest.raises(RuntimeError, match=f"^mace_stream: {name}: expected"):
            call()


def test_arrays_that_are_too_few_are_counted(core):
    run, _ = run_of(core, random_setup())
    setup, n = run.setup, run.nodes.n_nodes
    blocks, rows = [1] * len(setup.plans[1].outputs), [1] * setup.contractions[1].dim
    passes, graph = run.passes, (1, (0, n), run.nodes, run.edges)
    for expected, call in (
        (len(blocks), lambda: passes.conv(*graph, 1, 1, 0, blocks[1:], 0)),
        (len(blocks), lambda: passes.conv_backward(*graph, 1, 1, 0, blocks[1:], 0, 0, 0)),
        (len(rows), lambda: passes.contract(1, (0, n), 1, 1, rows[1:], 1)),
        (len(rows), lambda: passes.contract_backward(1, (0, n), 1, 1, [*rows, 1], 1, 0)),
    ):
        with pytest.raises(ValueError, match=f"^expected {expected} arrays, got"):
            call()


def test_nodes_must_be_at_least_receivers(core):
    run, _ = run_of(core, random_setup())
    fewer = replace(run.nodes, n_senders=run.nodes.n_nodes - 1)
    with pytest.raises(RuntimeError, match="n_nodes <= n_senders"):
        run.passes.forces(fewer, run.edges, 1, 1, 0, 0)
