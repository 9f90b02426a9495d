"""Runs on several MPI ranks follow those on one rank: atoms migrate, boxes change."""

from __future__ import annotations

import re

import numpy as np
import pytest
from lammps_cells import hcp, mixed_cell
from lammps_models import mace_torch
from lammps_support import Setup, run_program
from rank_support import Job, gap, run_jobs

from mace_stream.testing import EXACT

pytestmark = pytest.mark.mpi

LISTS = "neigh_modify every 1 delay 0 check yes"
MOVING = (
    "velocity all create 300 4711",
    "velocity all set 20 9 13 sum yes",  # all drift along, over borders
    "fix move all nve",
    LISTS,
)


def titanium(model, style: str = "") -> Setup:
    return Setup(hcp((4, 4, 3), rattle=0.05), model("ti"), style)


def runs(model) -> list[Job]:
    """Runs that end where they would end on one rank."""
    ti = titanium(model)
    npt = "fix move all npt temp 300 300 0.1 tri 0 0 1.0"
    return [
        Job("start", ti),
        Job("nve", ti, after=(*MOVING, "run 200")),
        Job("nve_exact", titanium(model, "radial exact"), after=(*MOVING, "run 20")),
        Job(
            "nve_balanced",
            ti,
            before=("comm_style tiled",),
            after=(*MOVING, "fix share all balance 10 1.0 rcb", "run 40"),
        ),
        Job("nve_half", titanium(model, "neighbors half"), after=(*MOVING, "run 40")),
        Job("nve_twice", ti, after=(*MOVING, "run 20", "run 20")),
        Job("npt", ti, after=("velocity all create 300 4711", npt, LISTS, "run 30")),
        Job("minimize", ti, after=(LISTS, "minimize 0 1e-4 30 300")),
        Job("write", ti, after=(*MOVING, "run 20", "write_restart from.*.restart")),
    ]


@pytest.fixture(scope="module")
def jobs(model):
    return runs(model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def one_rank(jobs, folder):
    return run_jobs(jobs, 1, folder)


@pytest.fixture(scope="module")
def two_ranks(jobs, folder):
    return run_jobs(jobs, 2, folder)


@pytest.mark.parametrize("name", ["nve", "nve_exact", "nve_balanced", "nve_half", "nve_twice"])
def test_dynamics_follows_one_rank(one_rank, two_ranks, name):
    assert gap(two_ranks[name], one_rank[name]) < 1e-9


@pytest.mark.parametrize("name", ["npt", "minimize"])
def test_changing_boxes_and_minima_follow_one_rank(one_rank, two_ranks, name):
    assert gap(two_ranks[name], one_rank[name]) < 1e-8


def test_atoms_have_moved_to_another_rank(two_ranks):
    before, after = (np.array(two_ranks[name]["owner"]) for name in ("start", "nve"))
    assert np.count_nonzero(before != after) > 3


def test_a_run_on_two_ranks_ends_where_mace_torch_says(model, two_ranks):
    setup = titanium(model)
    atoms = setup.atoms.copy()
    atoms.positions = two_ranks["nve"]["positions"]
    truth = mace_torch(setup.model, atoms)
    assert abs(two_ranks["nve"]["energy"] - truth.energy) / len(atoms) < EXACT.energy
    np.testing.assert_allclose(two_ranks["nve"]["forces"], truth.forces, rtol=0, atol=EXACT.force)


SWAP = "fix change all atom/swap 1 5 4711 30000 types 1 4 ke no"
GCMC = "fix change all gcmc 1 10 5 1 29494 3000.0 -5.0 0.1 full_energy overlap_cutoff 1.2"


@pytest.mark.parametrize("fix", [SWAP, GCMC], ids=["swap", "gcmc"])
def test_changed_atoms_are_noticed_on_every_rank(model, tmp_path, fix):
    """Types change without a new list; atoms come and go. A fresh start gives the same energy."""
    setup = Setup(mixed_cell().repeat((2, 2, 1)), model("plain"))
    lines = [
        "neigh_modify every 100 delay 0 check no",
        fix,
        "thermo_style custom step atoms pe",
        "thermo_modify format float %.9f",
        "run 2",
        "unfix change",
        "run 0",
    ]
    done = run_program(setup, tmp_path, *lines, launch=("mpiexec", "-n", "2"))
    rows = re.findall(r"^ +([02]) +(\d+) +(-\d+\.\d+)\s*$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["0", "2", "2"]
    assert rows[0][1:] != rows[1][1:] == rows[2][1:]


def test_restart_of_two_ranks_on_one(model, folder, two_ranks):
    restart = next(folder.glob("from.*.restart"))
    job = Job("restarted", titanium(model)).written(folder)
    job["lines"] = [
        f'read_restart "{restart}"' if line.startswith("read_data") else line
        for line in job["lines"]
    ]
    found = run_jobs([job], 1, folder)["restarted"]
    assert gap(found, two_ranks["write"]) < 1e-10
