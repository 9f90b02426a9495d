"""Several MPI ranks on GPUs, or on one: equal to one rank on the CPU in double precision."""

from __future__ import annotations

import pytest
import torch
from lammps_cells import hcp, mixed_cell
from lammps_support import Setup
from rank_support import Job, gap, run_jobs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.mpi,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
STYLES = (
    "radial spline",
    "radial spline graphs no",
    "radial spline neighbors full",
    "radial exact",
)
BOUND = 1e-8
"""Between CPU and GPU in double precision, in eV, eV/Å, Å and LAMMPS' units of the virial."""


def jobs(model, style: str) -> list[Job]:
    """Evaluations with vacuum and with three layers, and a run with migration and new lists."""
    slab = mixed_cell(seed=5)
    slab.cell[2, 2] = 40.0
    moving = ("velocity all set 20 9 13 sum yes", "fix move all nve", "run 60")
    lists = "neigh_modify every 1 delay 0 check yes"
    return [
        Job("slab", Setup(slab, model("plain"), style)),
        Job("three_layers", Setup(mixed_cell(), model("three_layers"), style)),
        Job("run", Setup(hcp((4, 4, 3), rattle=0.05), model("ti"), style), after=(lists, *moving)),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cuda")


@pytest.fixture(scope="module")
def on_cpu(model, folder):
    return run_jobs(jobs(model, "device cpu precision double"), 1, folder)


@pytest.mark.parametrize("n_ranks", [1, 2, 3], ids="ranks{}".format)
@pytest.mark.parametrize("style", STYLES)
def test_every_number_is_that_of_one_rank_on_the_cpu(model, folder, on_cpu, n_ranks, style):
    asked = jobs(model, f"device cuda precision double {style}")
    found = run_jobs(asked, n_ranks, folder)
    gaps = {job.name: gap(found[job.name], on_cpu[job.name]) for job in asked}
    assert max(gaps.values()) < BOUND, gaps
