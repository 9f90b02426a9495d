"""A committee in an input: what it costs, how it stops, what it prints and what it refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from committee_support import (
    DEVIATION,
    FAST,
    MOVE,
    NAMES,
    carbide,
    make_alike,
    peratom,
    setup_of,
)
from lammps_cells import mixed_cell
from lammps_models import Model
from lammps_support import Setup, define, evaluate, opened, prepare

from mace_stream import io
from mace_stream.bridge.committee import Committee
from mace_stream.bridge.session import Session


@pytest.fixture(scope="module")
def three(model) -> tuple[Model, ...]:
    return tuple(model(name) for name in NAMES)


@pytest.fixture(scope="module")
def alike(model) -> tuple[Model, ...]:
    return make_alike(model)


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
        prepare(lmp, setup_of(alike, mixed_cell(), f"radial exact committee {rule}"))
        lmp.commands_list([*MOVE, *lines, "thermo 5", "run 10"])
    assert counted[alike[0].path.name] == 11
    assert [counted[one.path.name] for one in alike[1:]] == [expected] * 2
    asked = 0 if not lines or lines == [DEVIATION] else min(expected, 3)
    assert f"  force deviation of the committee: {asked} times\n" in log.read_text()


def test_models_that_run_without_being_asked_are_counted(alike, counted, monkeypatch):
    evaluating = Committee.evaluate

    def eager(self, *args):
        result = evaluating(self, *args)
        self.all_forces()
        return result

    monkeypatch.setattr(Committee, "evaluate", eager)
    with opened() as lmp:
        prepare(lmp, setup_of(alike, mixed_cell(), FAST))
        lmp.commands_list([*MOVE, "run 10"])
    assert [counted[one.path.name] for one in alike] == [11] * 3


# ---- stopping ----


def test_stop_names_step_atom_and_value(alike, tmp_path):
    setup = setup_of(alike, mixed_cell(), FAST)
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
    prepare(lmp, setup_of(alike, mixed_cell(), "radial exact"))
    lmp.commands_list([f"{DEVIATION} stop 1e-6", "compute top all reduce max c_dev"])
    lmp.command("thermo_style custom step c_top")
    with pytest.raises(Exception, match=r"at step 0 the models differ by .* more than stop 1e-06"):
        lmp.command("run 0")


def test_fix_halt_ends_the_run_softly(alike, lmp):
    """The recipe of the page."""
    prepare(lmp, setup_of(alike, mixed_cell(), FAST))
    lmp.commands_list([DEVIATION, *MOVE, "variable dev equal c_dev"])
    lmp.commands_list(["fix stop all halt 5 v_dev > 1e-6 error continue", "run 20"])
    assert lmp.extract_global("ntimestep") == 5


# ---- the log, and checks before the first step ----


def test_the_log_names_every_model(three, tmp_path):
    log = tmp_path / "log"
    with opened(log) as lmp:
        prepare(lmp, setup_of(three, carbide(), FAST))
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


def test_a_restart_file_knows_all_models(alike, tmp_path):
    """The line that the log asks for gives the same committee again."""
    setup = setup_of(alike, mixed_cell(), FAST)
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.commands_list(["run 0", f"write_restart {tmp_path}/r"])
        energy = lmp.get_thermo("pe")
    with opened(tmp_path / "log") as lmp:
        lmp.command(f"read_restart {tmp_path}/r")
    asked = (tmp_path / "log").read_text().split("add the line: ")[1].splitlines()[0]
    assert asked.count(".mace") == 3
    with opened(tmp_path / "log") as lmp:
        lmp.commands_list([f"read_restart {tmp_path}/r", asked, DEVIATION])
        lmp.commands_list(["thermo_style custom step pe c_dev", "run 0"])
        assert abs(lmp.get_thermo("pe") - energy) < 1e-10
        assert lmp.extract_compute("dev", 0, 0) > 0.01
    assert "WARNING: Pair style" not in (tmp_path / "log").read_text()
    with opened() as lmp:
        lmp.command(f"read_restart {tmp_path}/r")
        with pytest.raises(Exception, match="written with another model"):
            lmp.command(replace(setup, others=alike[2:]).coeff())


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
    prepare(lmp, setup_of(alike, mixed_cell(), FAST))
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
    setup = setup_of(alike, mixed_cell(), FAST)
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
