"""Several MPI ranks below other pair styles, in partitions, in Python programs; what is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from lammps_cells import hcp, mixed_cell, triclinic_cell
from lammps_support import SAME, Setup, define, opened, run_lmp, run_program, script
from rank_support import Job, gap, run_jobs

pytestmark = pytest.mark.mpi


def launch(n_ranks: int) -> tuple[str, ...]:
    return ("mpiexec", "-n", str(n_ranks))


def energies(log: str) -> list[str]:
    """Potential energies of a log with thermo columns ``step pe``."""
    return re.findall(r"^ +\d+ +(-?\d+\.\d+)\s*$", log, re.MULTILINE)


THERMO = ("thermo_style custom step pe", "thermo_modify format float %.12f")


@pytest.mark.parametrize("hybrid", ["hybrid", "hybrid/overlay"])
def test_below_hybrid_styles(model, tmp_path, hybrid):
    plain = model("plain")
    setup = Setup(mixed_cell().repeat((2, 1, 1)), plain)
    style = (
        f"pair_style {hybrid} mace/stream lj/cut 5.0",
        f'pair_coeff * * mace/stream "{plain.path}" C NULL NULL Si',
        "pair_coeff 1*3 2*3 lj/cut 0.01 2.0",
        "pair_coeff 2*3 4 lj/cut 0.01 2.0",
    )
    jobs = [
        Job(f"newton_{newton}", replace(setup, newton=newton), after=style)
        for newton in ("on", "off")
    ]
    one, two, three = (run_jobs(jobs, n, tmp_path) for n in (1, 2, 3))
    for job in jobs:
        assert gap(two[job.name], one[job.name]) < SAME
        assert gap(three[job.name], one[job.name]) < SAME


def test_partitions_do_not_wait_for_each_other(model, tmp_path):
    """R65: other cells, other models, other numbers of steps."""
    cells = {"mixed": mixed_cell(), "tri": triclinic_cell()}
    for name, atoms in cells.items():
        with opened() as lmp:
            define(lmp, Setup(atoms, None))
            lmp.command(f'write_data "{tmp_path}/data.{name}" nocoeff')
    lines = script(Setup(mixed_cell(), model("plain"), "radial exact"), *THERMO, "run ${steps}")
    worlds = [
        "variable cell world mixed tri",
        f'variable model world "{model("plain").path}" "{model("three_layers").path}"',
        "variable steps world 1 3",
    ]
    text = lines.replace("data.atoms", "data.${cell}")
    text = text.replace(f'"{model("plain").path}"', "${model}")  # quotes would keep it as it is
    (tmp_path / "in.test").write_text("\n".join([*worlds, text]))
    done = run_lmp(tmp_path, launch(3), arguments=("-partition", "2", "1"))
    assert done.returncode == 0, done.stdout[-2000:]
    for part, (cell, name) in enumerate([("mixed", "plain"), ("tri", "three_layers")]):
        alone = run_program(
            Setup(cells[cell], model(name), "radial exact"),
            tmp_path,
            *THERMO,
            f"run {1 + 2 * part}",
        )
        log = (tmp_path / f"log.lammps.{part}").read_text()
        assert energies(log) == energies(alone.stdout)


HOST = """
from mpi4py import MPI
from lammps import lammps
world = MPI.COMM_WORLD
part = world.Split(0 if world.rank < 2 else 1)
if world.rank < 2:
    lmp = lammps(comm=part, cmdargs=["-screen", "none", "-log", "log.sub", "-nocite"])
    lmp.file("in.test")
    lmp.close()
world.Barrier()
"""


def test_a_python_program_gives_some_of_its_ranks(model, tmp_path):
    setup = Setup(triclinic_cell(), model("three_layers"), "radial exact")
    alone = run_program(setup, tmp_path, *THERMO, "run 2")
    (tmp_path / "host.py").write_text(HOST)
    subprocess.run(
        [*launch(3), sys.executable, "host.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=100,
        check=True,
    )
    log = (tmp_path / "log.sub").read_text()
    assert len(energies(log)) == 2
    assert energies(log) == energies(alone.stdout)
    assert re.search(r"^  ranks 0-1 +\S+: cpu, threads: 1$", log, re.MULTILINE)


@pytest.fixture(scope="module")
def log(model, tmp_path_factory):
    """Of two ranks, with the timing columns."""
    lines = (
        "compute times all pair mace/stream",
        "thermo_style custom step pe c_times[*]",
        "thermo 2",
        "run 4",
    )
    setup = Setup(hcp((3, 3, 3), rattle=0.05), model("ti"))
    folder = tmp_path_factory.mktemp("log")
    return run_program(setup, folder, *lines, launch=launch(2), OMP_NUM_THREADS="2").stdout


def test_log_counts_all_ranks(log):
    assert re.search(r"^  graph +54 atoms, \d+ edges, skin included$", log, re.MULTILINE)
    assert re.search(r"^  ranks 0-1 +\S+: cpu, threads: 2$", log, re.MULTILINE)
    assert len(re.findall(r"^  exchange +from host memory, where the model is$", log, re.M)) == 1
    assert log.count("pair_style mace/stream: 5 evaluations") == 1
    assert re.search(r"^  exchange +[\d.]+ +[\d.]+ %$", log, re.MULTILINE)
    assert re.search(
        r"2 ranks, mean of all above; without exchange the slowest takes [\d.]+ %", log
    )


def test_too_many_threads_are_told_once(log):
    n_cores = len(os.sched_getaffinity(0))
    told = log.count(f"2 ranks with 2 threads each share {n_cores} cores")
    assert told == (1 if n_cores < 4 else 0)


def test_thermo_columns_of_time_exchange_and_imbalance(log):
    rows = re.findall(r"^ +(\d) +\S+ +(\S+) +(\S+) +(\S+)\s*$", log, re.MULTILINE)
    assert [row[0] for row in rows] == ["0", "2", "4"]
    for _, milliseconds, share, imbalance in rows:
        assert 0 < float(milliseconds) < 1e5
        assert 0 < float(share) < 1
        assert 0 <= float(imbalance) < 1
