"""Atoms come, go and change type during a run; pairs are excluded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import lone_atom, mixed_cell
from lammps_models import mace_torch
from lammps_support import (
    LISTS,
    Setup,
    add_style,
    assert_reference,
    by_id,
    define,
    evaluate,
    measure,
    opened,
    prepare,
)

from mace_stream.testing import EXACT

MOVE = ("velocity all create 300 4711", "timestep 0.0002", "fix move all nve")
TYPES = ("C", "H", "O", "Si")


def tall_cell() -> Atoms:
    """The mixed cell below a vacuum, periodic."""
    atoms = mixed_cell()
    atoms.set_cell([5.0, 5.4, 22.0])
    atoms.positions[:, 2] += 1.0
    return atoms


# ---- deletion and insertion ----


@pytest.mark.parametrize("compress", ["yes", "no"])
@pytest.mark.parametrize(("kind", "newton"), LISTS)
def test_deleted_atoms(model, lmp, kind, newton, compress):
    """R83: ids with gaps."""
    setup = Setup(mixed_cell(), model("plain"), f"neighbors {kind}", newton)
    prepare(lmp, setup)
    lmp.command("run 0")
    lmp.command("group gone id 2 7 12")
    lmp.command(f"delete_atoms group gone compress {compress}")
    lmp.command("run 0")
    atoms = assert_reference(lmp, setup)
    assert len(atoms) == 9
    ids = lmp.numpy.extract_atom("id")[by_id(lmp)]
    assert ids.max() == (9 if compress == "yes" else 11)


def test_large_ids_with_gaps(model, lmp):
    """R83: ids are names, no indices."""
    atoms = mixed_cell()
    setup = Setup(atoms, model("plain"))
    ids = [1_000_000 + 1013 * k for k in range(len(atoms))]
    types = [TYPES.index(s) + 1 for s in atoms.get_chemical_symbols()]
    define(lmp, replace(setup, atoms=Atoms(cell=atoms.cell, pbc=True), types=TYPES))
    assert lmp.create_atoms(12, ids, types, atoms.positions.ravel().tolist()) == 12
    add_style(lmp, setup)
    assert measure(lmp).gap(evaluate(setup)) < 1e-9


def test_deposit_and_evaporate(model, lmp):
    """R82: numbers of atoms, and of ghosts, grow and shrink during the run."""
    lines = (
        "region top block 0 5 0 5.4 15 18",
        "region high block 0 5 0 5.4 14 20",
        "group added type 1",
        *MOVE,
        "fix d added deposit 8 1 2 777 region top near 1.0 attempt 50 vz -1 -1",
        "fix e added evaporate 5 1 high 38277",
    )
    setup = Setup(tall_cell(), model("plain"), extra=lines)
    prepare(lmp, setup)
    numbers = []
    for n_steps in (1, 3, 4, 6, 10):
        lmp.command(f"run {n_steps} post no")
        numbers.append(len(assert_reference(lmp, setup)))
    assert max(numbers) > 13, "atoms should have been added"
    assert min(np.diff(numbers)) < 0, "atoms should have been removed"


def test_all_atoms_deleted_and_created_again(model, lmp):
    setup = Setup(mixed_cell(), model("plain"))
    prepare(lmp, setup)
    lmp.command("run 0")
    lmp.command("delete_atoms group all")
    lmp.command("run 0")
    assert lmp.get_thermo("pe") == 0.0
    lmp.command("create_atoms 2 single 1.0 1.0 1.0")
    lmp.command("create_atoms 4 single 1.0 1.0 2.5")
    lmp.command("run 0")
    assert len(assert_reference(lmp, setup)) == 2


# ---- types ----


def test_set_type_between_runs_without_setup(model, lmp):
    """R80: no new list is made, so the types must be looked at each time."""
    lines = (*MOVE, "neigh_modify every 1000 delay 1000 check no")
    setup = Setup(mixed_cell(), model("plain"), extra=lines)
    prepare(lmp, setup)
    lmp.command("run 0")
    seen = [lmp.get_thermo("pe")]
    for atom, kind in ((3, 1), (5, 4), (3, 2)):
        lmp.command(f"set atom {atom} type {kind}")
        lmp.command("run 1 pre no")
        assert_reference(lmp, setup)
        seen.append(lmp.get_thermo("pe"))
    assert np.abs(np.diff(seen)).min() > 1e-2


@pytest.mark.parametrize("temperature", [300, 3000])
def test_atom_swap(model, lmp, tmp_path, temperature):
    """R80: energies after swaps are those of the configuration, and not all are accepted."""
    lines = (*MOVE, f"fix s all atom/swap 1 6 999 {temperature} ke no types 1 4")
    setup = Setup(mixed_cell(), model("plain"), extra=lines)
    prepare(lmp, setup)
    before = mixed_cell().get_chemical_symbols()
    for _ in range(6):
        lmp.command("run 1 post no")
        after = assert_reference(lmp, setup).get_chemical_symbols()
        accepted = lmp.extract_fix("s", 0, 1, 1)
    attempted = lmp.extract_fix("s", 0, 1, 0)
    assert attempted >= 36
    if temperature == 300:
        assert accepted < attempted / 2
    else:
        assert 0 < accepted < attempted
        assert after != before
    lmp.command(f"write_data {tmp_path}/data nocoeff")
    energy = lmp.get_thermo("pe")
    with opened() as fresh:
        fresh.commands_list(["units metal", "atom_modify map yes", f"read_data {tmp_path}/data"])
        add_style(fresh, setup)
        fresh.command("run 0")
        assert abs(fresh.get_thermo("pe") - energy) < 1e-9


# ---- excluded pairs ----


@pytest.mark.parametrize(("kind", "newton"), LISTS)
@pytest.mark.parametrize("excluded", ["group", "type"])
def test_excluded_pairs_give_no_edges(model, excluded, kind, newton):
    """R79: the same as mace-torch with these edges removed, in both directions."""
    atoms = mixed_cell()
    symbols = np.array(atoms.get_chemical_symbols())
    if excluded == "group":
        lines = ("group frozen id 1:5", "neigh_modify exclude group frozen frozen")
        first = second = np.arange(12) < 5
    else:
        lines = ("neigh_modify exclude type 1 3",)
        first, second = symbols == "C", symbols == "O"

    def keep(sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
        pair = (first[sender] & second[receiver]) | (second[sender] & first[receiver])
        return ~pair

    def half_kept(sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
        return keep(sender, receiver) | (sender < receiver)

    potential = model("plain")
    truth = mace_torch(potential, atoms, keep=keep)
    setup = Setup(atoms, potential, f"neighbors {kind}", newton, extra=lines)
    result = evaluate(setup)
    assert abs(result.energy - truth.energy) / 12 < EXACT.energy
    assert np.abs(result.forces - truth.forces).max() < EXACT.force
    assert np.abs(result.virial - truth.virial).max() < EXACT.virial
    assert abs(mace_torch(potential, atoms).energy - truth.energy) > 1e-4
    one_way = mace_torch(potential, atoms, keep=half_kept)
    assert np.abs(one_way.forces - truth.forces).max() > 1e-3, "half an exclusion must be noticed"


def test_an_exclusion_that_is_lifted(model, lmp):
    setup = Setup(mixed_cell(), model("plain"))
    prepare(lmp, setup)
    usual = measure(lmp)
    lmp.command("neigh_modify exclude type 1 3")
    assert measure(lmp).gap(usual) > 1e-3
    lmp.command("neigh_modify exclude none")
    assert measure(lmp).gap(usual) < 1e-10


MARKS = {
    "group all": ("neigh_modify exclude group gone all",),
    "all group": ("neigh_modify exclude group all gone",),
    "two groups": (
        "group rest subtract all gone",
        "neigh_modify exclude group gone all",
        "neigh_modify exclude group rest gone",
    ),
}


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize(("kind", "newton"), LISTS)
def test_atoms_excluded_from_all_others_are_deleted_ones(model, lmp, kind, newton, mark):
    """R77, R78: fix gcmc marks deleted atoms so; neither edges nor E0 may be left of them."""
    setup = Setup(mixed_cell(), model("plain"), f"neighbors {kind}", newton)
    prepare(lmp, setup)
    both = measure(lmp)
    lmp.commands_list(["group gone id 2 7 12", *MARKS[mark]])
    marked = measure(lmp)
    gone = np.isin(np.arange(12), [1, 6, 11])
    assert np.abs(marked.forces[gone]).max() == 0
    assert np.abs(marked.node_energy[gone]).max() == 0
    lmp.commands_list(["neigh_modify exclude none", "delete_atoms group gone compress no"])
    deleted = measure(lmp)
    assert abs(marked.energy - deleted.energy) < 1e-9
    assert np.abs(marked.forces[~gone] - deleted.forces).max() < 1e-9
    assert np.abs(marked.virial - deleted.virial).max() < 1e-9
    assert abs(both.energy - deleted.energy) > 1.0


def test_a_far_molecule_excluded_leaves_the_other_as_it_is(model, lmp):
    """R77: both = 2 x one; one excluded = one."""
    water = Atoms("OHH", [[2, 2, 2], [2.96, 2, 2], [1.76, 2.93, 2]])
    far = water.copy()
    far.positions += [0, 0, 20]
    both = water + far
    both.set_cell([12, 12, 40])
    both.pbc = True
    setup = Setup(both, model("plain"))
    prepare(lmp, setup)
    total = measure(lmp).energy
    lmp.commands_list(["group second id 4:6", "neigh_modify exclude group second all"])
    one = measure(lmp).energy
    assert abs(total - 2 * one) < 1e-9
    water.set_cell([12, 12, 40])
    assert abs(one - mace_torch(setup.model, water).energy) < 1e-9


@pytest.mark.parametrize("excess", [-8.0, 0.0])
def test_grand_canonical_moves(model, lmp, excess):
    """R77: far below an atom's own energy the gas is deleted; close to it, it is not.

    A deletion is accepted with N lambda^3 / V exp(-(dE + mu) / kT). The volume per lambda^3 is
    worth some 3.3 eV of mu, and dE is the energy of an atom, so at ``excess`` 0 no deletion is
    accepted. Were dE lost, all would be.
    """
    potential = model("plain")
    mu = mace_torch(potential, lone_atom("C")).energy + excess
    gas = [f"create_atoms 1 single 2.5 2.7 {z}" for z in (12.5, 17.5)]
    lines = (
        "region gas block 0 5 0 5.4 11 20",
        *gas,
        "group mobile type 1",
        *MOVE,
        f"fix g mobile gcmc 1 6 0 1 777 3000 {mu} 0.2 full_energy region gas overlap_cutoff 0.8",
    )
    setup = Setup(tall_cell(), potential, extra=lines)
    prepare(lmp, setup)
    numbers = [14]
    for _ in range(5):
        lmp.command("run 1 post no")
        numbers.append(len(assert_reference(lmp, setup)))
    inserted, tried, deleted = (lmp.extract_fix("g", 0, 1, k) for k in (3, 4, 5))
    assert tried > 0
    if excess < 0:
        assert deleted >= 2
        assert numbers[-1] == 12
    else:
        assert inserted > 0
        assert deleted == 0
    assert numbers[-1] == 14 + inserted - deleted


# ---- everything in turn ----


def random_change(rng: np.random.Generator, k: int) -> str:
    """A command that changes atoms, types or box; ``k`` counts them."""
    kind = rng.integers(1, 5)
    return {
        0: f"create_atoms {kind} random 6 {k + 17} NULL overlap 1.2 maxtry 200",
        1: f"delete_atoms random count 2 no all NULL {k + 29}",
        2: f"set group all type/fraction {kind} 0.2 {k + 31}",
        3: f"displace_atoms all random 0.05 0.05 0.05 {k + 37}",
        4: "change_box all x scale 1.01 y scale 0.995 remap",
        5: "replicate 1 1 2" if k in (7, 15) else "run 2",
    }[int(rng.integers(0, 6))]


@pytest.mark.parametrize("style", ["", "neighbors half", "tile 4"])
def test_changes_of_every_sort_in_one_run(model, lmp, style):
    """Arrays grow and shrink, species come and go, and each configuration is right."""
    rng = np.random.default_rng(9)
    lines = ("velocity all create 100 4711", "timestep 0.0001", "fix move all nve")
    setup = Setup(mixed_cell(), model("plain"), style, extra=lines)
    prepare(lmp, setup)
    sizes = set()
    for k in range(20):
        lmp.command(random_change(rng, k))
        lmp.command("run 0")
        sizes.add(len(assert_reference(lmp, setup)))
    assert len(sizes) > 5


# ---- planted mistake ----


def test_a_stale_type_is_noticed(model, lmp):
    """The check used all over this file fails where the model still sees the old type."""
    setup = Setup(mixed_cell(), model("plain"), extra=MOVE)
    prepare(lmp, setup)
    lmp.command("run 1")
    lmp.command("set atom 3 type 1")
    with pytest.raises(AssertionError):
        assert_reference(lmp, setup)
