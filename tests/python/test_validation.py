"""The parts of `validate` that need neither LAMMPS nor mace-torch."""

import dataclasses
import json

import ase
import ase.build
import numpy as np
import pytest

from mace_stream.validation import BOUNDS, Frame, Report, Result, compare, validate
from mace_stream.validation.frames import read_frames, to_lammps_box
from mace_stream.validation.lammps_runs import elements_by_mass

SEEDS = range(5)


def random_frame(seed: int, pbc=(True, True, True)) -> Frame:
    rng = np.random.default_rng(seed)
    cell = 4 * np.eye(3) + rng.uniform(-1, 1, (3, 3))
    if seed % 2:
        cell = cell[[1, 0, 2]]  # left-handed
    return Frame(
        "random", np.full(6, 22), rng.uniform(-5, 9, (6, 3)), cell, np.array(pbc, dtype=bool)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_lammps_box_is_the_same_cell_rotated(seed):
    frame = random_frame(seed)
    box = to_lammps_box(frame)
    assert np.allclose(np.triu(box.vectors, 1), 0)
    assert np.all(np.diag(box.vectors) > 0)
    assert np.allclose(box.rotation @ box.rotation.T, np.eye(3))
    assert np.linalg.det(box.rotation) == pytest.approx(1)
    assert np.allclose(box.positions @ box.rotation, frame.positions)
    back = box.vectors @ box.rotation
    assert np.allclose(back[[1, 0, 2]] if seed % 2 else back, frame.cell)


@pytest.mark.parametrize(
    "pbc", [(True, True, False), (False, True, True), (True, False, False), (False,) * 3]
)
def test_open_directions_enclose_their_atoms(pbc):
    frame = random_frame(0, pbc)
    box = to_lammps_box(frame)
    inside = (box.positions - box.origin) @ np.linalg.inv(box.vectors)
    is_open = np.array(box.boundary) == "f"
    assert is_open.sum() == pbc.count(False)
    assert np.all((inside[:, is_open] > 0) & (inside[:, is_open] < 1))
    back = box.vectors @ box.rotation
    assert np.allclose(back[~is_open], frame.cell[list(pbc)])


def test_a_periodic_direction_needs_a_vector():
    frame = dataclasses.replace(random_frame(0), cell=np.zeros((3, 3)))
    with pytest.raises(ValueError, match="no cell vector"):
        to_lammps_box(frame)


def result(seed: int = 0) -> Result:
    rng = np.random.default_rng(seed)
    virial = rng.normal(size=(3, 3))
    energies = rng.normal(size=4)
    return Result(energies.sum(), energies, rng.normal(size=(4, 3)), virial + virial.T)


def planted(kind: str) -> Result:
    """The same result with one mistake."""
    right = result()
    forces, energies = right.forces.copy(), right.node_energy.copy()
    forces[2, 1] += 2e-8
    energies[[0, 1]] = energies[[1, 0]]
    changes = {
        "sign of the virial": {"virial": -right.virial},
        "one force component": {"forces": forces},
        "two atoms swapped": {"node_energy": energies},
        "total energy": {"energy": right.energy + 1e-8},
        "NaN": {"forces": np.full((4, 3), np.nan)},
    }
    return dataclasses.replace(right, **changes[kind])


KINDS = ["sign of the virial", "one force component", "two atoms swapped", "total energy", "NaN"]


def test_equal_results_pass():
    assert compare("same", result(), result(), BOUNDS["double"]).passed


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_mistake_fails(kind):
    report = compare(kind, planted(kind), result(), BOUNDS["double"])
    assert not report.passed
    assert [row.passed for row in report.differences].count(False) == 1


def test_a_lost_atom_is_refused():
    short = dataclasses.replace(result(), forces=np.zeros((3, 3)))
    with pytest.raises(ValueError, match="3 atoms in LAMMPS, expected 4"):
        compare("lost", short, result(), BOUNDS["double"])


def test_the_report_is_written(tmp_path):
    good = compare("good", result(), result(), BOUNDS["double"])
    bad = compare("bad", planted("one force component"), result(), BOUNDS["double"])
    report = Report("a.mace", "0" * 64, "a test", "double", (good, bad))
    text, plot = report.write(tmp_path / "out")
    data = json.loads(text.read_text())
    assert (data["passed"], [f["passed"] for f in data["frames"]]) == (False, [True, False])
    assert plot.stat().st_size > 10_000
    assert "FAIL" not in str(report.to_json())
    assert report.table().row_count == 8


def test_no_frames_is_not_a_pass():
    assert not Report("a.mace", "", "a test", "double", ()).passed


def test_elements_come_from_the_masses():
    assert elements_by_mass(np.array([47.867, 15.999, 47.9]), (8, 22)) == [22, 8, 22]
    with pytest.raises(ValueError, match="mass 40 of type 1"):
        elements_by_mass(np.array([40.0]), (8, 22))


def test_every_frame_is_read(tmp_path):
    path = tmp_path / "two.xyz"
    ase.io.write(path, [ase.build.bulk("Ti"), ase.Atoms("O2", positions=[[0, 0, 0], [0, 0, 1.2]])])
    frames = read_frames([path])
    assert [frame.name for frame in frames] == ["two.xyz#0", "two.xyz#1"]
    assert not frames[1].pbc.any()


def test_unreadable_structures_are_named(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        read_frames([tmp_path / "none.xyz"])
    odd = tmp_path / "odd.xyz"
    odd.write_text("not a structure\n")
    with pytest.raises(ValueError, match="ASE cannot read it"):
        read_frames([odd])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({}, "nothing to validate"), ({"structures": ["x"], "precision": "half"}, "precision")],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        validate("x.mace", **arguments)
