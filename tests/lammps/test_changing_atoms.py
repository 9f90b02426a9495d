"""Atoms come, go and change type during a run; pairs are excluded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from lammps_support import (
    LISTS,
    Setup,
    add_style,
    assert_reference,
    by_id,
    define,
    evaluate,
    mace_torch,
    measure,
    mixed_cell,
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


# ---- planted mistake ----


def test_a_stale_type_is_noticed(model, lmp):
    """The check used all over this file fails where the model still sees the old type."""
    setup = Setup(mixed_cell(), model("plain"), extra=MOVE)
    prepare(lmp, setup)
    lmp.command("run 1")
    lmp.command("set atom 3 type 1")
    with pytest.raises(AssertionError):
        assert_reference(lmp, setup)
