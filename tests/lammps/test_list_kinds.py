"""Each kind of neighbor list gives the numbers of mace-torch in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import cluster, hcp, lone_atom, mixed_cell, one_atom_cell, triclinic_cell
from lammps_models import Result, mace_torch
from lammps_support import LISTS, SAME, Setup, evaluate, measure, prepare

from mace_stream.testing import EXACT

CASES = {
    "mixed": ("plain", mixed_cell),
    "mixed_zbl": ("zbl", mixed_cell),
    "three_layers": ("three_layers", mixed_cell),
    "triclinic": ("plain", triclinic_cell),
    "cluster": ("plain", cluster),
    "one_atom_cell": ("ti", one_atom_cell),
    "hcp_cell": ("ti", hcp),
    "lone_atom": ("plain", lone_atom),
}


def assert_exact(result: Result, truth: Result) -> None:
    """Within the bounds that nobody tunes."""
    n_atoms = len(truth.forces)
    assert abs(result.energy - truth.energy) / n_atoms < EXACT.energy
    np.testing.assert_allclose(result.node_energy, truth.node_energy, rtol=0, atol=EXACT.energy)
    np.testing.assert_allclose(result.forces, truth.forces, rtol=0, atol=EXACT.force)
    scale = max(np.abs(truth.virial).max(), 1e-3)
    np.testing.assert_allclose(result.virial, truth.virial, rtol=0, atol=EXACT.virial * scale)
    for name in ("node_virial", "centroid_virial"):
        found, right = getattr(result, name), getattr(truth, name)
        np.testing.assert_allclose(found, right, rtol=0, atol=EXACT.virial * scale)


@pytest.mark.parametrize("case", CASES)
def test_every_list_equals_mace_torch(model, case):
    name, build = CASES[case]
    atoms, potential = build(), model(name)
    truth = mace_torch(potential, atoms)
    results = [
        evaluate(atoms, potential, style=f"neighbors {kind}", newton=newton)
        for kind, newton in LISTS
    ]
    for result in results:
        assert result.gap(results[0]) < SAME
        assert_exact(result, truth)


@pytest.mark.parametrize("head", ["a_pbe", "b_scan"])
def test_each_head_equals_mace_torch(model, head):
    potential = model("heads")
    truth = mace_torch(potential, cluster(), head=["a_pbe", "b_scan"].index(head))
    assert_exact(evaluate(cluster(), potential, style=f"head {head}"), truth)


@pytest.mark.parametrize("boundary", ["f f f", "s s s", "s f m", "p p p"])
def test_boundaries_of_a_cluster_make_no_difference(model, boundary):
    potential = model("plain")
    truth = mace_torch(potential, cluster())
    assert_exact(evaluate(cluster(), potential, boundary=boundary), truth)


@pytest.mark.parametrize("boundary", ["p p f", "f p p", "p f s"])
def test_partly_periodic_cells(model, boundary):
    atoms = mixed_cell()
    atoms.wrap()
    atoms.pbc = [b == "p" for b in boundary.split()]
    result = evaluate(atoms, model("plain"), boundary=boundary)
    assert_exact(result, mace_torch(model("plain"), atoms))


@pytest.mark.parametrize("symbol", ["H", "Si"])
def test_a_lone_atom_has_its_own_energy_and_no_force(model, symbol):
    atoms, potential = lone_atom(symbol), model("plain")
    result = evaluate(atoms, potential)
    assert abs(result.energy - mace_torch(potential, atoms).energy) < 1e-12
    assert np.abs(result.forces).max() == 0
    assert np.abs(result.virial).max() == 0


@pytest.mark.parametrize(("kind", "newton"), LISTS)
def test_atoms_out_of_reach_of_each_other(model, kind, newton):
    potential = model("plain")
    atoms = Atoms("HO", [[1, 1, 1], [8, 8, 8]], cell=[15, 15, 15], pbc=True)
    result = evaluate(atoms, potential, style=f"neighbors {kind}", newton=newton)
    alone = sum(mace_torch(potential, lone_atom(s)).energy for s in "HO")
    assert abs(result.energy - alone) < 1e-12
    assert np.abs(result.forces).max() == 0


@pytest.mark.parametrize(("kind", "newton"), LISTS)
def test_no_atoms_at_all(model, lmp, kind, newton):
    nothing = Atoms(cell=[9, 9, 9], pbc=True)
    setup = Setup(nothing, model("plain"), f"neighbors {kind}", newton, types=("Si", "C"))
    prepare(lmp, setup)
    assert measure(lmp).energy == 0.0
    lmp.command("fix 1 all nve")
    lmp.command("run 3")


def test_an_atom_exactly_at_the_cutoff(model):
    """R48: finite virial and nothing from the pair at r_max."""
    potential = model("plain")
    atoms = Atoms("HO", [[1, 1, 1], [1, 1, 5.5]], cell=[15, 15, 15], pbc=True)
    result = evaluate(atoms, potential)
    assert np.isfinite(result.virial).all()
    alone = sum(mace_torch(potential, lone_atom(s)).energy for s in "HO")
    assert abs(result.energy - alone) < 1e-12


def test_energy_and_force_are_continuous_at_the_cutoff(model):
    potential = model("plain")
    step = 1e-5

    def dimer(length: float) -> Result:
        atoms = Atoms("SiO", [[1, 1, 1], [1, 1, 1 + length]], cell=[15, 15, 15], pbc=True)
        return evaluate(atoms, potential)

    inside, outside = dimer(4.5 - step), dimer(4.5 + step)
    assert abs(inside.energy - outside.energy) < 1e-10
    assert np.abs(inside.forces - outside.forces).max() < 1e-10
    assert np.abs(dimer(4.0).forces).max() > 1e-6


@pytest.mark.parametrize("cells", [(2, 1, 1), (1, 2, 3)])
def test_energy_per_atom_does_not_depend_on_the_cell(model, cells):
    """R36: a small cell and its replicas; LAMMPS replicates."""
    potential = model("ti")
    small = evaluate(hcp(rattle=0.1), potential)
    extra = (f"replicate {' '.join(map(str, cells))}",)
    large = evaluate(hcp(rattle=0.1), potential, extra=extra)
    n_cells = np.prod(cells)
    assert abs(large.energy / n_cells - small.energy) < 1e-9
    assert np.abs(large.virial / n_cells - small.virial).max() < 1e-9
    forces = large.forces.reshape(n_cells, 2, 3)
    assert np.abs(forces - small.forces).max() < 1e-9


def test_types_may_be_in_any_order_and_repeated(model):
    """R30, R33: the model's order of elements has no part in it."""
    potential = model("plain")
    usual = evaluate(mixed_cell(), potential)
    for types in [("Si", "O", "C", "H"), ("H", "O", "Si", "C", "Si")]:
        assert evaluate(mixed_cell(), potential, types=types).gap(usual) < SAME


def test_two_types_of_one_element(model):
    potential = model("plain")
    extra = ("set atom 1*6 type/fraction 1 1.0 1", "set atom 2*11 type/fraction 2 0.5 42")
    atoms = mixed_cell()
    atoms.symbols = "Si" * 12
    setup = Setup(atoms, potential, types=("Si", "Si"), extra=extra)
    assert evaluate(setup).gap(evaluate(atoms, potential)) < SAME


@pytest.mark.parametrize("atom_style", ["charge", "full", "molecular", "sphere"])
def test_atom_styles_without_bonds(model, atom_style):
    """R15."""
    potential = model("plain")
    result = evaluate(mixed_cell(), potential, atom_style=atom_style)
    assert result.gap(evaluate(mixed_cell(), potential)) < SAME


@pytest.mark.parametrize("skin", [0.0, 0.3, 2.0, 4.0])
def test_skin_edges_contribute_nothing(model, skin):
    potential = model("plain")
    extra = (f"neighbor {skin} bin",)
    assert evaluate(mixed_cell(), potential, extra=extra).gap(
        evaluate(mixed_cell(), potential)
    ) < SAME  # fmt: skip


@pytest.mark.parametrize("map_style", ["map array", "map hash", "map yes"])
def test_every_atom_map(model, map_style):
    potential = model("plain")
    result = evaluate(mixed_cell(), potential, atom_modify=map_style)
    assert result.gap(evaluate(mixed_cell(), potential)) < SAME


# ---- planted mistakes ----


def corrupted(name: str, truth: Result) -> Result:
    """A result as a typical mistake would give it."""
    if name == "sign of the virial":
        return replace(truth, virial=-truth.virial)
    if name == "force of one image lost":
        forces = truth.forces.copy()
        forces[3] *= 0.999
        return replace(truth, forces=forces)
    if name == "virial of an atom to one end":
        return replace(truth, node_virial=truth.centroid_virial[:, :6])
    if name == "virial counted twice":
        return replace(truth, virial=2 * truth.virial)
    return replace(truth, energy=truth.energy - truth.node_energy[0])


@pytest.mark.parametrize(
    "mistake",
    [
        "sign of the virial",
        "force of one image lost",
        "virial counted twice",
        "E0 of one atom lost",
    ],
)
def test_mistakes_are_noticed(model, mistake):
    truth = mace_torch(model("plain"), mixed_cell())
    assert_exact(truth, truth)
    with pytest.raises(AssertionError):
        assert_exact(corrupted(mistake, truth), truth)


def test_dropped_and_duplicated_images_are_noticed(model):
    """The structures are small enough that images matter."""
    potential, atoms = model("ti"), hcp()
    truth = mace_torch(potential, atoms)
    only_others = mace_torch(potential, atoms, keep=lambda sender, receiver: sender != receiver)
    with pytest.raises(AssertionError):
        assert_exact(only_others, truth)
