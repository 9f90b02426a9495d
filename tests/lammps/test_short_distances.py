"""Distances that the radial tables do not hold: the run stops and names the two atoms."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import mixed_cell
from lammps_models import mace_torch
from lammps_support import LISTS, Setup, add_style, define, evaluate, opened, prepare

from mace_stream.testing import EXACT

MESSAGE = r"failed at step (\d+): atoms (\d+) and (\d+) are ([0-9.]+) Å apart, closer than 0\.5 Å"
TYPES = ("C", "H", "O", "Si")


def squeezed(first: int, second: int, distance: float) -> Atoms:
    """The mixed cell, one atom brought near another, across a boundary of the cell."""
    atoms = mixed_cell()
    place = atoms.positions[first] + np.array([0.6, -0.64, 0.48]) * distance
    atoms.positions[second] = place + atoms.cell.array.sum(axis=0)
    atoms.wrap()
    return atoms


def failure(lmp, *commands: str) -> tuple[int, set[int], float]:
    """Step, ids and distance of LAMMPS' message for these commands."""
    with pytest.raises(Exception, match="closer than") as caught:
        lmp.commands_list(list(commands))
    message = str(caught.value)
    assert "add the keyword: radial exact" in message
    assert "Traceback" not in message
    step, first, second, distance = re.search(MESSAGE, message).groups()
    return int(step), {int(first), int(second)}, float(distance)


@pytest.mark.parametrize(("kind", "newton"), LISTS)
@pytest.mark.parametrize(("first", "second"), [(0, 1), (7, 3), (11, 0)])
def test_distance_and_ids_are_named(model, lmp, first, second, kind, newton):
    atoms = squeezed(first, second, 0.3456)
    prepare(lmp, Setup(atoms, model("plain"), f"neighbors {kind}", newton))
    assert failure(lmp, "run 0") == (0, {first + 1, second + 1}, 0.3456)


def test_positions_are_told(model, lmp):
    """As they are, not those of images."""
    atoms = squeezed(7, 3, 0.3456)
    prepare(lmp, Setup(atoms, model("plain")))
    with pytest.raises(Exception, match="closer than") as caught:
        lmp.command("run 0")
    for x, y, z in atoms.positions[[7, 3]]:
        assert f"({x:.4f}, {y:.4f}, {z:.4f})" in str(caught.value)


def test_ids_are_names_and_no_numbers(model, lmp):
    atoms = squeezed(4, 9, 0.2)
    setup = Setup(atoms, model("plain"))
    ids = [1_000_000 + 1013 * k for k in range(len(atoms))]
    types = [TYPES.index(s) + 1 for s in atoms.get_chemical_symbols()]
    define(lmp, replace(setup, atoms=Atoms(cell=atoms.cell, pbc=True), types=TYPES))
    lmp.create_atoms(len(ids), ids, types, atoms.positions.ravel().tolist())
    add_style(lmp, setup)
    assert failure(lmp, "run 0")[1] == {ids[4], ids[9]}


def test_the_step_is_told(model, lmp):
    """One atom moves at 100 Å/ps towards one at rest, 1.03 Å away: 0.5 Å are passed in step 6."""
    atoms = Atoms("OH", [[5, 5, 5], [6.03, 5, 5]], cell=[12, 12, 12], pbc=True)
    prepare(lmp, Setup(atoms, model("plain"), extra=("timestep 0.001",)))
    lines = ("group mover id 2", "fix m mover move linear -100 0 0 units box", "run 20")
    assert failure(lmp, *lines) == (6, {1, 2}, 0.43)


def test_after_deletions_and_a_new_list(model, lmp):
    """Ids are handed over with every list."""
    prepare(lmp, Setup(squeezed(4, 9, 0.4), model("plain")))
    lmp.commands_list(["group pair id 5 10", "displace_atoms pair move 0 0 0"])
    lines = ("group gone id 1 3 4", "delete_atoms group gone compress no", "run 0")
    assert failure(lmp, *lines)[1] == {5, 10}


def test_the_closest_pair_is_named(model, lmp):
    """Two pairs are too close."""
    atoms = squeezed(4, 9, 0.41)
    atoms.positions[2] = atoms.positions[7] + [0, 0, 0.43]
    prepare(lmp, Setup(atoms, model("plain")))
    assert failure(lmp, "run 0") == (0, {5, 10}, 0.41)


def test_radial_exact_serves_such_distances(model):
    atoms = squeezed(4, 9, 0.3)
    truth = mace_torch(model("plain"), atoms)
    result = evaluate(atoms, model("plain"), style="radial exact")
    assert abs(result.energy - truth.energy) / len(atoms) < EXACT.energy
    np.testing.assert_allclose(result.forces, truth.forces, rtol=0, atol=EXACT.force)


@pytest.mark.parametrize("precision", ["double", "single"])
def test_just_above_the_first_knot(model, precision):
    atoms = squeezed(4, 9, 0.5 + 1e-9)
    truth = mace_torch(model("plain"), atoms)
    result = evaluate(atoms, model("plain"), style=f"precision {precision}")
    bound = EXACT.force if precision == "double" else 1e-3 * np.abs(truth.forces).max()
    np.testing.assert_allclose(result.forces, truth.forces, rtol=0, atol=bound)


def test_atoms_on_top_of_each_other(model, lmp):
    prepare(lmp, Setup(squeezed(4, 9, 0.0), model("plain")))
    assert failure(lmp, "run 0") == (0, {5, 10}, 0.0)


def test_atoms_with_wrong_forces_are_named(model, lmp):
    """Two far clusters, one of them two atoms on top of each other: 0 / 0 in the exact network."""
    places = [[2, 2, 2], [22, 2, 2], [3.1, 2, 2], [22, 2, 2], [2, 3.2, 2]]
    atoms = Atoms("OHCSiH", places, cell=[40, 12, 12], pbc=True)
    prepare(lmp, Setup(atoms, model("plain"), "radial exact"))
    with pytest.raises(Exception, match="forces on 2 of 5 atoms are not finite") as caught:
        lmp.command("run 0")
    assert "failed at step 0" in str(caught.value)
    assert "finite: atom 2 at (22.0000, 2.0000, 2.0000) Å, atom 4 at (22.0000" in str(caught.value)


# ---- planted mistakes ----


def test_without_ids_the_names_would_be_wrong(model, monkeypatch):
    """The checks above see atoms named by their place in the list."""
    from mace_stream.bridge.session import Session

    def count(self, ids: np.ndarray, rows: np.ndarray) -> None:
        self._ids, self._rows = np.arange(len(ids)), rows

    monkeypatch.setattr(Session, "set_ids", count)
    with opened() as lmp:
        prepare(lmp, Setup(squeezed(7, 3, 0.3456), model("plain")))
        assert failure(lmp, "run 0")[1] != {8, 4}
