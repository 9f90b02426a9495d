"""Several models in one input: the mean of their results, and how far their forces differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from committee_support import (
    DEVIATION,
    FAST,
    MOVE,
    NAMES,
    ask,
    average,
    carbide,
    deviation_of,
    make_alike,
    peratom,
    separately,
    setup_of,
    summary,
)
from lammps_cells import mixed_cell
from lammps_models import Model, Result, mace_torch
from lammps_support import KCAL, LISTS, SAME, Setup, define, evaluate, measure, opened, prepare

from mace_stream.bridge import committee
from mace_stream.testing import EXACT


@pytest.fixture(scope="module")
def three(model) -> tuple[Model, ...]:
    return tuple(model(name) for name in NAMES)


@pytest.fixture(scope="module")
def forces_of_three(three) -> list[np.ndarray]:
    """Those of mace-torch, eV/Å."""
    return [mace_torch(one, carbide()).forces for one in three]


@pytest.fixture(scope="module")
def alike(model) -> tuple[Model, ...]:
    return make_alike(model)


@pytest.fixture(scope="module")
def apart(alike) -> list[Result]:
    """Those three, each in a LAMMPS of its own."""
    return separately(setup_of(alike, mixed_cell()))


# ---- the result ----


@pytest.mark.parametrize("style", ["", "radial exact", "precision single"])
def test_the_mean_is_the_average_of_separate_runs(three, style):
    setup = setup_of(three, carbide(), style)
    bound = 1e-9 if "single" in style else SAME  # sums of thousands of eV per atom in its virials
    assert evaluate(setup).gap(average(separately(setup))) < bound


def test_the_mean_is_that_of_mace_torch(three):
    atoms = carbide()
    found, truths = evaluate(setup_of(three, atoms)), [mace_torch(one, atoms) for one in three]
    assert abs(found.energy - np.mean([t.energy for t in truths])) / len(atoms) < EXACT.energy
    forces = np.mean([t.forces for t in truths], axis=0)
    np.testing.assert_allclose(found.forces, forces, rtol=0, atol=EXACT.force)


@pytest.mark.parametrize(
    ("lists", "order"), [(LISTS[0], (1, 0, 2)), (LISTS[3], (0, 1, 2))], ids=["full", "half"]
)
def test_every_model_keeps_its_own_cutoff(alike, apart, lists, order):
    kind, newton = lists
    models = tuple(alike[k] for k in order)
    setup = setup_of(models, mixed_cell(), f"neighbors {kind}", newton=newton)
    assert evaluate(setup).gap(average(apart)) < SAME
    first = evaluate(setup, style=f"neighbors {kind} committee first")
    assert first.gap(apart[order[0]]) < SAME


@pytest.mark.parametrize("units", ["metal", "real"])
def test_the_first_is_what_it_is_alone(three, units):
    setup = setup_of(three, carbide(), "committee first", units=units)
    assert evaluate(setup).gap(evaluate(setup, others=(), style="")) == 0


def test_a_colon_behind_one_model_changes_nothing(model, lmp):
    setup = Setup(mixed_cell(), model("plain"))
    define(lmp, setup)
    lmp.command("pair_style mace/stream")
    lmp.command(f'pair_coeff * * "{setup.model.path}" : {" ".join(setup.symbols())}')
    assert measure(lmp).gap(evaluate(setup)) == 0


# ---- the deviation ----


@pytest.mark.parametrize("style", ["", "committee first", "committee first radial exact"])
@pytest.mark.parametrize("units", ["metal", "real"])
def test_the_deviation_is_the_formula(three, forces_of_three, style, units):
    setup = setup_of(three, carbide(), style, units=units)
    expected = deviation_of(forces_of_three)
    expected *= KCAL if units == "real" else 1.0
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.commands_list([DEVIATION, "thermo_style custom step c_dev c_dev[*]", "run 0 post no"])
        found = peratom(lmp)
        np.testing.assert_allclose(found, expected, rtol=0, atol=EXACT.force)
        np.testing.assert_allclose(summary(lmp), [found.max(), found.min(), found.mean()])
        assert lmp.extract_compute("dev", 0, 0) == found.max()
    assert expected.min() > 0.1


def test_the_deviation_is_that_of_reruns(alike, tmp_path):
    """Along a run of the first model, against forces that each model dumps for itself."""
    setup = setup_of(alike, mixed_cell(), "committee first")
    line = "dump d all custom 3 {} id x y z {}"
    exactly = "dump_modify d sort id format float %.17g"
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.commands_list([DEVIATION, *MOVE, "neigh_modify every 5 delay 0 check no"])
        lmp.commands_list([line.format(tmp_path / "dev", "c_dev"), exactly, "run 12"])
    forces = []
    for number, one in enumerate(alike):
        file = tmp_path / f"forces.{number}"
        with opened() as lmp:
            prepare(lmp, replace(setup, model=one, others=(), style=""))
            lmp.commands_list([line.format(file, "fx fy fz"), exactly])
            lmp.command(f"rerun {tmp_path / 'dev'} dump x y z")
        forces.append(frames(file)[:, :, 4:])
    found = frames(tmp_path / "dev")
    expected = [deviation_of(list(step)) for step in np.swapaxes(forces, 0, 1)]
    assert found.shape == (5, 12, 5)
    np.testing.assert_allclose(found[:, :, 4], expected, rtol=0, atol=1e-10)
    assert np.ptp(expected, axis=0).max() > 1e-2


def frames(path: Path) -> np.ndarray:
    """Atoms of a dump: [n_frames, n_atoms, n_columns]."""
    blocks = path.read_text().split("ITEM: ATOMS")[1:]
    rows = [[line.split() for line in b.split("ITEM:")[0].splitlines()[1:]] for b in blocks]
    return np.array(rows, dtype=float)


def test_the_positions_are_those_of_the_forces(alike):
    """fix deform moves atoms at the end of a step, before anything is written."""
    lines = ("fix d all deform 1 x erate 5.0 remap x", "thermo_style custom step c_dev", "run 3")
    setup = setup_of(alike, mixed_cell(), "radial exact committee mean")
    mean, first = (ask(one, *lines) for one in (setup, replace(setup, style=FAST)))
    np.testing.assert_allclose(first, mean, rtol=0, atol=SAME)
    assert np.abs(mean - ask(setup)).max() > 1e-4  # the atoms have moved


def test_a_group_and_atoms_of_other_styles(alike, lmp):
    atoms = mixed_cell()
    atoms.symbols[[0, 5]] = "Ar"
    setup = setup_of(alike, atoms, types=("C", "H", "O", "Si", "Ar"))
    define(lmp, setup)
    lmp.commands_list(
        [
            f"pair_style hybrid/overlay mace/stream {FAST} lj/cut 4.0",
            setup.coeff("mace/stream").replace(" Ar", " NULL"),
            "pair_coeff * 5 lj/cut 0.01 2.0",
            "group some id 1 2 3 4",
            "group nobody empty",
            DEVIATION,
            "compute part some mace/stream/deviation",
            "compute none nobody mace/stream/deviation",
            "thermo_style custom step c_dev c_part c_none",
            "run 0",
        ]
    )
    found, part = peratom(lmp), peratom(lmp, "part")
    assert (found[[0, 5]] == 0).all()
    real = np.delete(found, [0, 5])
    assert real.min() > 0
    np.testing.assert_allclose(summary(lmp), [real.max(), real.min(), real.mean()])
    np.testing.assert_array_equal(part, np.where(np.arange(12) < 4, found, 0))
    some = found[1:4]
    np.testing.assert_allclose(summary(lmp, "part"), [some.max(), some.min(), some.mean()])
    assert (summary(lmp, "none") == 0).all()


def test_other_styles_do_not_change_it(alike, lmp):
    setup = setup_of(alike, mixed_cell(), FAST)
    define(lmp, setup)
    lmp.commands_list(
        [
            f"pair_style hybrid/overlay mace/stream {FAST} zbl 1.0 2.5",
            setup.coeff("mace/stream"),
            *(f"pair_coeff {k} {k} zbl {z} {z}" for k, z in enumerate((6, 1, 8, 14), 1)),
            DEVIATION,
            "run 0",
        ]
    )
    np.testing.assert_allclose(peratom(lmp), ask(setup), rtol=0, atol=SAME)


# ---- planted mistakes ----


def test_species_that_are_not_translated_show(three, forces_of_three, monkeypatch):
    setup = setup_of(three[::2], carbide(), "radial exact")
    right = np.mean(forces_of_three[::2], axis=0)
    np.testing.assert_allclose(evaluate(setup).forces, right, rtol=0, atol=EXACT.force)
    monkeypatch.setattr(
        committee, "_translation", lambda first, member: np.arange(9, dtype=np.int32) % 2
    )
    assert np.abs(evaluate(setup).forces - right).max() > 1e-3


def test_a_model_left_out_shows(alike, apart, monkeypatch):
    setup = setup_of(alike, mixed_cell(), "radial exact")
    right = average(apart)
    monkeypatch.setattr(committee, "mean", lambda results: results[0])
    assert evaluate(setup).gap(right) > 1e-3


def test_positions_after_the_forces_show(alike, monkeypatch):
    """Positions that are not copied follow fix deform."""
    lines = ("fix d all deform 1 x erate 5.0 remap x", "thermo_style custom step c_dev", "run 3")
    setup = setup_of(alike, mixed_cell(), FAST)
    right = ask(setup, *lines)

    class Alive(np.ndarray):
        def copy(self):
            return self

    evaluating = committee.Committee.evaluate
    monkeypatch.setattr(
        committee.Committee,
        "evaluate",
        lambda self, x, *wanted: evaluating(self, x.view(Alive), *wanted),
    )
    assert np.abs(ask(setup, *lines) - right).max() > 1e-6
