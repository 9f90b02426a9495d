"""Energies and gradients assembled from the oracle's passes, against the torch model."""

from dataclasses import replace

import numpy as np
import pytest
from inference_support import Assembly, Step, edge_arguments, neighbors_of
from model_support import edge_gradient, small_twin, spec_and_tensors, structures

from mace_stream.reference.inference import ReferencePasses, join_blocks, split_blocks
from mace_stream.testing.inference import random_problem, random_setup

BOUND = 1e-8
"""Of the tables. Ten times as much is allowed of what follows from them."""

CASES = {
    "RR": ("MP-0a medium", {"channels": 4}),
    "RR_17_paths": ("MP-0a large", {"channels": 2}),
    "R_then_RR_zbl": ("MP-0b medium", {"channels": 4}),
    "R_and_R": ("MP-0b medium", {"channels": 3, "rest": "RealAgnosticInteractionBlock"}),
    "D_then_DR": ("MP-0b2 medium", {"channels": 4}),
    "D_and_D": ("OMAT-0 medium", {"channels": 3, "rest": "RealAgnosticDensityInteractionBlock"}),
    "scalars_only": ("OMAT-0 small", {"channels": 4}),
    "three_layers": ("OMAT-0 medium", {"channels": 2, "num_interactions": 3}),
    "one_layer": ("MP-0a medium", {"channels": 4, "num_interactions": 1}),
    "two_heads": ("MH-0", {"channels": 2, "heads": ("a", "b")}),
    "correlation_4": ("MP-0a medium", {"correlation": 4, "max_ell": 1, "channels": 2}),
    "l_max_1": ("MP-0b3 medium", {"max_ell": 1, "channels": 4}),
    "fewer_edge_channels": ("MP-0a medium", {"edge": "2x0e+2x1o"}),
    "last_layer_keeps_its_irreps": (
        "MP-0a medium",
        {"keep_last_layer_irreps": True, "channels": 2},
    ),
}


def errors(assembly, nodes, x, real):
    """Largest errors of the nodes' interaction energies and of dE/d(edge_vec), both relative."""
    step = Step(assembly, nodes, x)
    arguments, slots = edge_arguments(nodes, step.edges, assembly.present)
    energy, gradient = edge_gradient(assembly.model, *arguments)
    energy -= assembly.model.atomic_energies.numpy()[arguments[3]] + assembly.model.shift
    actual = step.energy.detach().numpy() - assembly.model.shift
    assert np.isinf(step.closest)
    return [
        np.abs(actual - energy)[real].max() / np.abs(energy[real]).max(),
        np.abs(step.edges.grad[slots] - gradient).max() / np.abs(gradient).max(),
    ]


@pytest.mark.parametrize("name", CASES)
def test_passes_give_the_torch_model(name):
    twin, override = CASES[name]
    spec, tensors = spec_and_tensors(small_twin(twin, **override))
    assembly = Assembly.build(spec, tensors, (0, 1), bound=BOUND, head=spec.heads[-1])
    for atoms in structures("triclinic", "cluster"):
        found = errors(assembly, *neighbors_of(atoms, spec.elements, spec.r_max))
        assert max(found) < 10 * BOUND


@pytest.fixture(scope="module")
def two_of_three():
    """A model of three elements, two of them present and in another order than in the model."""
    spec, tensors = spec_and_tensors(
        small_twin("OMAT-0 medium", channels=3, elements=(22, 14, 6), pair_repulsion=True)
    )
    assembly = Assembly.build(spec, tensors, (2, 1), bound=BOUND)
    atoms = structures("triclinic")[0]
    atoms.positions *= 0.6  # close enough for the pair repulsion to count
    atoms.cell *= 0.6
    return assembly, *neighbors_of(atoms, (6, 14), spec.r_max)


def test_present_elements_in_another_order(two_of_three):
    assembly, nodes, x, real = two_of_three
    assert max(errors(assembly, nodes, x, real)) < 10 * BOUND
    assert np.abs(Step(assembly, nodes, x).pair_energy).max() > 1e-2


@pytest.mark.parametrize("planted", ["density", "path weights", "repulsion", "terms", "hidden"])
def test_a_planted_mistake_is_seen(planted, two_of_three):
    assembly, *arguments = two_of_three
    tables, setup = assembly.tables, assembly.setup
    if planted == "density":
        tables = replace(tables, densities=[tables.densities[0], 1.001 * tables.densities[1]])
    elif planted == "path weights":
        tables = replace(tables, convs=[None, np.roll(tables.convs[1], 1, axis=1)])
    elif planted == "hidden":
        tables = replace(tables, hidden=np.roll(tables.hidden, tables.grid.n_knots, axis=0))
    elif planted == "repulsion":
        wrong = replace(setup.repulsion, charge=setup.repulsion.charge[::-1])
        setup = replace(setup, repulsion=wrong)
    else:
        first, last = setup.contractions
        wrong = replace(first, terms=np.roll(first.terms, 1, axis=0))
        setup = replace(setup, contractions=(wrong, last))
    spoiled = replace(assembly, tables=tables, setup=setup)
    assert min(errors(spoiled, *arguments)) > 10 * BOUND


# ---- single passes, on random problems ----


@pytest.fixture(scope="module")
def problem():
    setup = random_setup(n_species=3, irreps_up=(("0e", "1o"), ("0e",)), dims_out=(4, 1, 1))
    return ReferencePasses(setup), random_problem(setup, seed=5)


def test_problems_hold_what_is_awkward(problem):
    passes, p = problem
    slots = np.diff(p.nodes.first)
    assert (slots == 0).sum() >= passes.setup.n_species  # a padded node of every species
    assert (p.edges.count < slots).any()
    assert p.edges.count.sum() > 20
    assert p.nodes.slot_node.max() >= p.nodes.n_nodes
    assert np.all(np.diff(p.nodes.species[: p.nodes.n_nodes]) >= 0)
    live, _ = p.edges.slots(p.nodes)
    assert len(live) == p.edges.count.sum()
    assert (p.edges.sender[live] >= 0).all()
    assert np.isnan(np.delete(p.edges.t, live)).all()


def test_slopes_of_pair_repulsion_are_central_differences(problem):
    passes, p = problem
    slots, receiver = p.edges.slots(p.nodes)
    node, h = receiver[0], 1e-6
    expected = p.edges.grad[slots[receiver == node]].sum(axis=0)
    for axis in range(3):
        x = np.repeat(p.x[None], 2, axis=0)
        x[:, p.nodes.node_atom[node], axis] += [h, -h]
        up, down = (passes.edges(p.nodes, positions)[1][node] for positions in x)
        assert (up - down) / (2 * h) == pytest.approx(expected[axis], rel=1e-6)


def test_distances_below_the_grid_are_told(problem):
    passes, p = problem
    assert passes.edges(p.nodes, p.x)[2] == np.inf
    x, node = p.x.copy(), np.flatnonzero(np.diff(p.nodes.first))[0]
    x[p.nodes.slot_atom[p.nodes.first[node]]] = x[p.nodes.node_atom[node]] + [0.3, 0, 0]
    assert passes.edges(p.nodes, x)[2] == pytest.approx(0.3, rel=1e-12)


def test_tiles_give_the_same_numbers(problem):
    passes, p = problem
    n, plan = p.nodes.n_nodes, passes.setup.plans[1]
    arguments = p.nodes, p.edges, p.ups[1], p.convs[1], p.density
    whole, norm = passes.conv(1, (0, n), *arguments)
    rows, bars = split_blocks(plan, whole, n), split_blocks(plan, p.conv_bars[1], n)
    grad, up_bar = passes.conv_backward(1, (0, n), *arguments, p.conv_bars[1])
    for tile in ((0, 5), (5, n)):
        part, part_norm = passes.conv(1, tile, *arguments)
        assert np.array_equal(split_blocks(plan, part, tile[1] - tile[0]), rows[slice(*tile)])
        assert np.array_equal(part_norm, norm[slice(*tile)])
        bar = join_blocks(plan, bars[slice(*tile)])
        more_grad, more_up_bar = passes.conv_backward(1, tile, *arguments, bar)
        grad, up_bar = grad - more_grad, up_bar - more_up_bar
    assert np.abs(grad).max() < 1e-12
    assert np.abs(up_bar).max() < 1e-12


def test_forces_balance_and_virials_add_up(problem):
    passes, p = problem
    forces, virial, of_receivers, of_senders = passes.forces(p.nodes, p.edges)
    assert np.abs(forces.sum(axis=0)).max() < 1e-12 * np.abs(forces).max()
    assert of_receivers.sum(axis=0) == pytest.approx(virial, rel=1e-12)
    assert of_senders.sum(axis=0) == pytest.approx(virial, rel=1e-12)
    slots, _ = p.edges.slots(p.nodes)
    assert forces[p.nodes.n_nodes :].any()
    vec = p.edges.dir[slots, :3] / p.edges.dir[slots, 3:]
    assert virial.reshape(3, 3) == pytest.approx(-vec.T @ p.edges.grad[slots], rel=1e-10)
