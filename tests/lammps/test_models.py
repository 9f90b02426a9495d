"""Non-linear blocks, charge and spin in LAMMPS: the numbers of mace-torch."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import carbide, cluster
from lammps_models import Result, mace_torch, single_forces
from lammps_support import Setup, evaluate, opened, prepare

ENERGY, FORCE = 1e-9, 1e-7
"""eV/atom and eV/Å in double precision."""
HEADS = ("a_pbe", "b_scan")
NEUTRAL = {"total_charge": 0.0, "total_spin": 1.0}


def molecule() -> Atoms:
    atoms = cluster()
    atoms.symbols = ["C", "Si", "Si", "C"] * (len(atoms) // 4) + ["C"] * (len(atoms) % 4)
    return atoms


CASES = [
    (carbide, "spline", 0),
    (carbide, "exact", 1),
    (molecule, "spline", 1),
    (molecule, "exact", 0),
]


def differs(found: Result, truth: Result) -> bool:
    energy = np.abs(found.node_energy - truth.node_energy).max()
    force = np.abs(found.forces - truth.forces).max()
    return not (energy < ENERGY and force < FORCE)


@pytest.mark.parametrize(("cell", "radial", "head"), CASES)
def test_gated_blocks_give_the_numbers_of_mace_torch(model, cell, radial, head):
    atoms, gated = cell(), model("gated")
    found = evaluate(Setup(atoms, gated, f"radial {radial} head {HEADS[head]}"))
    truth = mace_torch(gated, atoms, head)
    assert not differs(found, truth)
    assert found.gap(truth) < FORCE * len(atoms)
    assert differs(found, mace_torch(gated, atoms, 1 - head))


@pytest.mark.parametrize(
    ("style", "inputs"),
    [
        ("radial exact", {}),
        ("radial exact charge 1", {"total_charge": 1.0}),
        ("radial spline charge -2 spin 3", {"total_charge": -2.0, "total_spin": 3.0}),
    ],
)
def test_charge_and_spin_give_the_numbers_of_mace_torch(model, style, inputs):
    atoms, charged = carbide(), model("charged")
    found = evaluate(Setup(atoms, charged, style))
    truth = mace_torch(charged, atoms, inputs=NEUTRAL | inputs)
    assert not differs(found, truth)
    assert found.gap(truth) < FORCE * len(atoms)
    other = {**NEUTRAL, **inputs, "total_spin": 2.0}
    assert differs(found, mace_torch(charged, atoms, inputs=other))


def test_single_precision_errs_no_more_than_mace_torch(model):
    atoms, gated = carbide(), model("gated")
    truth = mace_torch(gated, atoms).forces
    style = "precision single radial spline head a_pbe"
    ours = evaluate(Setup(atoms, gated, style)).forces
    errors = [np.sqrt(((f - truth) ** 2).mean()) for f in (ours, single_forces(gated, atoms))]
    assert 0 < errors[0] <= errors[1]


def test_the_log_tells_charge_and_spin(model, tmp_path):
    with opened(tmp_path / "log") as lmp:
        prepare(lmp, Setup(carbide(), model("charged"), "charge 2 radial exact"))
        lmp.command("run 0")
    text = (tmp_path / "log").read_text()
    assert "charge         2 (total_charge of the model; keyword charge)" in text
    assert "spin           1 (total_spin of the model; keyword spin)" in text


@pytest.mark.parametrize(
    ("twin", "style", "message"),
    [
        ("plain", "charge 1", "keyword charge: the model takes no total_charge; leave the keyword"),
        ("plain", "spin 2", "keyword spin: the model takes no total_spin; leave the keyword out"),
        ("charged", "charge 0.5", "total_charge: the model knows whole numbers from -100 to 100"),
        ("charged", "spin 500", "total_spin: the model knows whole numbers from 0 to 100, not 500"),
        ("charged", "charge plus", "keyword charge: expected a number, in units of e, got plus"),
        ("gated", "", "the model has several heads: a_pbe, b_scan; add the keyword: head a_pbe"),
    ],
)
def test_impossible_values_are_refused(model, lmp, twin, style, message):
    with pytest.raises(Exception, match=message):
        prepare(lmp, Setup(carbide(), model(twin), style))


def test_an_atom_alone_has_its_isolated_energy(model):
    lone = Atoms("C", [[1, 1, 1]], cell=[12, 12, 12], pbc=True)
    charged = model("charged")
    found = evaluate(Setup(lone, charged, "charge 1 radial exact"))
    truth = mace_torch(charged, lone, inputs=NEUTRAL | {"total_charge": 1.0})
    assert not differs(found, truth)
