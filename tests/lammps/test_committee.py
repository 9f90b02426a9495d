"""Several models in one input: the mean of their results, and how far their forces differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import mixed_cell, triclinic_cell
from lammps_models import Model, Result, mace_torch
from lammps_support import (
    KCAL,
    LISTS,
    SAME,
    Setup,
    by_id,
    define,
    evaluate,
    measure,
    opened,
    prepare,
)

from mace_stream import io
from mace_stream.bridge import committee
from mace_stream.bridge.session import Session
from mace_stream.testing import EXACT

DEVIATION = "compute dev all mace/stream/deviation"
MOVE = ("velocity all create 300 4711", "timestep 0.0005", "fix move all nve")
NAMES = ("plain", "one_layer", "binary")
"""Other elements in another order, another number of layers, with and without ZBL."""


def carbide() -> Atoms:
    """Two elements in a sheared cell thinner than the cutoff."""
    atoms = triclinic_cell()
    atoms.symbols = ["Si", "C"] * 6
    return atoms


def relative(model: Model, seed: int, r_max: float | None = None) -> Model:
    """The same model with other readouts, and perhaps another cutoff."""
    spec, tensors = io.load(model.path)
    rng = np.random.default_rng(seed)
    for name in (name for name in tensors if name.startswith("readouts")):
        tensors[name] = tensors[name] * rng.normal(1.0, 0.2, tensors[name].shape)
    if r_max is not None:
        spec = replace(spec, r_max=r_max)
        tensors["radial.cutoff.r_max"] = np.full_like(tensors["radial.cutoff.r_max"], r_max)
    path = model.path.with_name(f"{model.path.stem}_{seed}_{r_max}.mace")
    io.save(path, spec, tensors)
    return replace(model, path=path)


@pytest.fixture(scope="module")
def three(model) -> tuple[Model, ...]:
    return tuple(model(name) for name in NAMES)


@pytest.fixture(scope="module")
def forces_of_three(three) -> list[np.ndarray]:
    """Those of mace-torch, eV/Å."""
    return [mace_torch(one, carbide()).forces for one in three]


@pytest.fixture(scope="module")
def alike(model) -> tuple[Model, ...]:
    """Three that differ a little, as models of one training set do; the second sees less far."""
    plain = model("plain")
    return plain, relative(plain, 1, 4.0), relative(plain, 2)


@pytest.fixture(scope="module")
def apart(alike) -> list[Result]:
    """Those three, each in a LAMMPS of its own."""
    return separately(setup_of(alike, mixed_cell()))


def setup_of(models: tuple[Model, ...], atoms: Atoms, style: str = "", **changes) -> Setup:
    return replace(Setup(atoms, models[0], style, others=models[1:]), **changes)


def separately(setup: Setup) -> list[Result]:
    """One LAMMPS for each model."""
    alone = replace(setup, others=())
    return [evaluate(replace(alone, model=one)) for one in (setup.model, *setup.others)]


def average(results: list[Result]) -> Result:
    names = ("energy", "forces", "virial", "node_energy", "node_virial", "centroid_virial")
    return Result(*(np.mean([getattr(r, name) for r in results], axis=0) for name in names))


def deviation_of(forces: list[np.ndarray]) -> np.ndarray:
    """The formula, in NumPy: sqrt(<|F - <F>|^2>) of every atom."""
    off = np.array(forces) - np.mean(forces, axis=0)
    return np.sqrt(np.mean(np.sum(off**2, axis=-1), axis=0))


def ask(setup: Setup, *lines: str) -> np.ndarray:
    """The deviation of every atom at the end of ``lines``."""
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.command(DEVIATION)
        lmp.commands_list([*lines] or ["run 0 post no"])
        return peratom(lmp)


def peratom(lmp, name: str = "dev") -> np.ndarray:
    return lmp.numpy.extract_compute(name, 1, 1)[by_id(lmp)].copy()


def summary(lmp, name: str = "dev") -> np.ndarray:
    return np.array(lmp.numpy.extract_compute(name, 0, 1))


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


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
@pytest.mark.parametrize(("kind", "newton"), [LISTS[0], LISTS[3]])
def test_every_model_keeps_its_own_cutoff(alike, apart, kind, newton, order):
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
    """R: along a run of the first model, against forces that each model dumps for itself."""
    setup = setup_of(alike, mixed_cell(), "committee first")
    line = "dump d all custom 3 {} id x y z {}"
    exactly = "dump_modify d sort id format float %.17g"
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.commands_list([DEVIATION, *MOVE, "neigh_modify every 1 delay 0 check yes"])
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
    setup = setup_of(alike, mixed_cell())
    mean, first = (ask(replace(setup, style=f"committee {s}"), *lines) for s in ("mean", "first"))
    np.testing.assert_allclose(first, mean, rtol=0, atol=SAME)
    assert np.abs(mean - ask(setup)).max() > 1e-4  # the atoms have moved


def test_a_group_and_atoms_of_other_styles(alike, lmp):
    atoms = mixed_cell()
    atoms.symbols[[0, 5]] = "Ar"
    setup = setup_of(alike, atoms, types=("C", "H", "O", "Si", "Ar"))
    define(lmp, setup)
    lmp.commands_list(
        [
            "pair_style hybrid/overlay mace/stream committee first lj/cut 4.0",
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
    setup = setup_of(alike, mixed_cell(), "committee first")
    define(lmp, setup)
    lmp.commands_list(
        [
            "pair_style hybrid/overlay mace/stream committee first zbl 1.0 2.5",
            setup.coeff("mace/stream"),
            *(f"pair_coeff {k} {k} zbl {z} {z}" for k, z in enumerate((6, 1, 8, 14), 1)),
            DEVIATION,
            "run 0",
        ]
    )
    np.testing.assert_allclose(peratom(lmp), ask(setup), rtol=0, atol=SAME)


# ---- what it costs: evaluations are counted ----


@pytest.fixture
def counted(monkeypatch) -> Counter:
    """How often each model is evaluated, by the name of its file."""
    counter: Counter = Counter()
    right = Session.evaluate

    def counting(self, *args):
        counter[self.path.name] += 1
        return right(self, *args)

    monkeypatch.setattr(Session, "evaluate", counting)
    return counter


@pytest.mark.parametrize(
    ("rule", "lines", "expected"),
    [
        ("mean", [], 11),
        ("mean", [DEVIATION, "thermo_style custom step c_dev"], 11),
        ("first", [], 0),
        ("first", [DEVIATION], 0),  # nobody asks
        ("first", [DEVIATION, "thermo_style custom step c_dev"], 3),  # steps 0, 5, 10
        ("first", [DEVIATION, "fix a all ave/time 2 1 10 c_dev"], 2),  # 0 (its setup) and 10
        (
            "first",
            [
                DEVIATION,
                "group few id 1 2",
                "compute two few mace/stream/deviation",
                "compute top all reduce max c_dev",
                "thermo_style custom step c_dev c_dev[3] c_two c_top",
            ],
            3,
        ),
    ],
)
def test_others_are_evaluated_where_it_is_asked_for(
    alike, tmp_path, counted, rule, lines, expected
):
    log = tmp_path / "log"
    with opened(log) as lmp:
        prepare(lmp, setup_of(alike, mixed_cell(), f"committee {rule}"))
        lmp.commands_list([*MOVE, *lines, "thermo 5", "run 10"])
    assert counted[alike[0].path.name] == 11
    assert [counted[one.path.name] for one in alike[1:]] == [expected] * 2
    asked = 0 if not lines or lines == [DEVIATION] else min(expected, 3)
    assert f"  force deviation of the committee: {asked} times\n" in log.read_text()


# ---- stopping ----


def test_stop_names_step_atom_and_value(alike, tmp_path):
    setup = setup_of(alike, mixed_cell(), "committee first")
    squeeze = "fix squeeze all deform 1 x erate -20.0 y erate -20.0 remap x"
    lines = (squeeze, "thermo_style custom step c_dev", "thermo 2", "fix k all vector 2 c_dev")
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.commands_list([DEVIATION, *lines, "run 12"])
        series = np.array([lmp.extract_fix("k", 0, 1, k) for k in range(7)])
    later = series > series[0]
    assert later.any(), series
    level, step = (series[0] + series[later][0]) / 2, 2 * int(np.argmax(later))
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.commands_list([f"{DEVIATION} stop {level:.12g}", *lines])
        with pytest.raises(Exception, match="more than stop") as caught:
            lmp.command("run 12")
        assert lmp.extract_global("ntimestep") == step
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.commands_list([DEVIATION, *lines, f"run {step}"])
        largest = int(np.argmax(peratom(lmp))) + 1
    text = f"at step {step} the models differ by {series[step // 2]:.6g} in the force on atom"
    assert f"{text} {largest}, more than stop {level:.6g}; " in str(caught.value)


def test_stop_also_where_only_atoms_are_written(alike, lmp):
    prepare(lmp, setup_of(alike, mixed_cell()))
    lmp.commands_list([f"{DEVIATION} stop 1e-6", "compute top all reduce max c_dev"])
    lmp.command("thermo_style custom step c_top")
    with pytest.raises(Exception, match=r"at step 0 the models differ by .* more than stop 1e-06"):
        lmp.command("run 0")


def test_fix_halt_ends_the_run_softly(alike, lmp):
    """The recipe of the page."""
    prepare(lmp, setup_of(alike, mixed_cell(), "committee first"))
    lmp.commands_list([DEVIATION, *MOVE, "variable dev equal c_dev"])
    lmp.commands_list(["fix stop all halt 5 v_dev > 1e-6 error continue", "run 20"])
    assert lmp.extract_global("ntimestep") == 5


# ---- the log, and checks before the first step ----


def test_the_log_names_every_model(three, tmp_path):
    log = tmp_path / "log"
    with opened(log) as lmp:
        prepare(lmp, setup_of(three, carbide(), "committee first"))
        lmp.command("run 0")
    text = log.read_text()
    for one in three:
        assert f"{one.path} (ScaleShiftMACE)\n" in text
        assert io.sha256(one.path) in text
    assert "committee      3 models: the first is taken" in text


def test_verify_compares_every_model(three, tmp_path, monkeypatch):
    log = tmp_path / "log"
    setup = setup_of(three, carbide(), "verify yes committee first")
    with opened(log) as lmp:
        prepare(lmp, setup)
        lmp.command("run 0")
    lines = [line for line in log.read_text().splitlines() if line.startswith("  verify ")]
    assert [line.split()[-1] for line in lines] == [f"({one.path.name})" for one in three]
    assert evaluate(setup).gap(evaluate(setup, style="", others=())) == 0

    right = Session.evaluate

    def wrong(self, *args):
        result = right(self, *args)
        return replace(result, energy=result.energy + (self.path == three[2].path))

    monkeypatch.setattr(Session, "evaluate", wrong)
    with opened() as lmp:
        prepare(lmp, setup)
        with pytest.raises(Exception, match=r"binary\.mace: verify: the structure as"):
            lmp.command("run 0")


# ---- refusals ----


def coefficient(three: tuple[Model, ...], words: str) -> str:
    paths = {name: f'"{one.path}"' for name, one in zip("abc", three, strict=True)}
    return f"pair_coeff {words.format(**paths)}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("* * {a} {b} C Si", "2 element names, .* got 3 names; several files end with a colon"),
        ("* * {a} {b} : C", "2 element names, .* got 1 names"),
        ("* * : C Si", "names no model file before the colon"),
        ("* * {a} {b} {a} : C Si", r"plain\.mace and \S+plain\.mace are the same model"),
        ("* * {a} {c} : C O", r"binary\.mace: the model does not know O; it knows: C Si"),
        ("* * {a} nowhere.mace : C Si", r"nowhere\.mace"),
        ("* * {a} {b} : C Xx", r"plain\.mace: Xx is no chemical symbol"),
    ],
)
def test_what_pair_coeff_refuses(three, lmp, words, expected):
    define(lmp, Setup(carbide(), three[0]))
    lmp.command("pair_style mace/stream")
    with pytest.raises(Exception, match=f"(?s)Pair style mace/stream: .*{expected}") as caught:
        lmp.command(coefficient(three, words))
    assert "Traceback" not in str(caught.value)


def test_a_head_that_a_model_lacks(model, lmp):
    setup = Setup(mixed_cell(), model("heads"), "head b_scan", others=(model("plain"),))
    define(lmp, setup)
    lmp.command("pair_style mace/stream head b_scan")
    with pytest.raises(Exception, match=r"plain\.mace: head b_scan is not in the model; its heads"):
        lmp.command(setup.coeff())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("stop", "after it at most: stop THRESHOLD"),
        ("halt 1.0", "after it at most: stop THRESHOLD"),
        ("stop 0.0", "stop needs a force above 0, got 0.0"),
        ("stop -1", "stop needs a force above 0, got -1"),
    ],
)
def test_what_the_compute_refuses(alike, lmp, words, expected):
    prepare(lmp, setup_of(alike, mixed_cell()))
    with pytest.raises(Exception, match=f"Compute mace/stream/deviation: .*{expected}"):
        lmp.command(f"{DEVIATION} {words}")


def test_one_model_has_no_deviation(model, lmp):
    prepare(lmp, Setup(mixed_cell(), model("plain")))
    lmp.command(DEVIATION)
    with pytest.raises(Exception, match=r"needs several models .* A\.mace B\.mace : \.\.\."):
        lmp.command("run 0")


def test_no_pair_style(model, lmp):
    define(lmp, Setup(mixed_cell(), model("plain")))
    lmp.commands_list(["pair_style zero 4.0", "pair_coeff * *", DEVIATION])
    with pytest.raises(Exception, match=r"needs one pair style mace/stream.* has none, or several"):
        lmp.command("run 0")


def test_asked_between_runs(alike, lmp):
    """Python programs may; the numbers are those of the last forces, or there are none."""
    setup = setup_of(alike, mixed_cell(), "committee first")
    prepare(lmp, setup)
    lmp.command(DEVIATION)
    with pytest.raises(Exception, match="no forces have been computed for these atoms"):
        lmp.extract_compute("dev", 0, 0)
    lmp.command("run 0")
    right = peratom(lmp)
    lmp.commands_list(["displace_atoms all random 0.3 0.3 0.3 11", "reset_timestep 1"])
    np.testing.assert_array_equal(peratom(lmp), right)
    lmp.commands_list(["group gone id 3", "delete_atoms group gone", "reset_timestep 2"])
    with pytest.raises(Exception, match="no forces have been computed for these atoms"):
        lmp.extract_compute("dev", 0, 0)
    lmp.command("run 0")
    assert len(peratom(lmp)) == 11
    lmp.command(setup.coeff())
    lmp.command("reset_timestep 3")
    with pytest.raises(Exception, match="no forces have been computed for these atoms"):
        lmp.extract_compute("dev", 0, 0)


# ---- planted mistakes ----


def test_species_that_are_not_translated_show(three, monkeypatch):
    setup = setup_of(three[::2], carbide())
    right = average(separately(setup))
    monkeypatch.setattr(
        committee, "_translation", lambda first, member: np.arange(9, dtype=np.int32) % 2
    )
    assert evaluate(setup).gap(right) > 1e-3


def test_a_model_left_out_shows(alike, apart, monkeypatch):
    setup = setup_of(alike, mixed_cell())
    right = average(apart)
    monkeypatch.setattr(committee, "mean", lambda results: results[0])
    assert evaluate(setup).gap(right) > 1e-3


def test_positions_after_the_forces_show(alike, monkeypatch):
    """Positions that are not copied follow fix deform."""
    lines = ("fix d all deform 1 x erate 5.0 remap x", "thermo_style custom step c_dev", "run 3")
    setup = setup_of(alike, mixed_cell(), "committee first")
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
