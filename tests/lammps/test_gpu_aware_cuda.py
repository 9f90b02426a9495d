"""Rows straight from the memory of a GPU, in memory that an ordinary MPI can read and write."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from gpu_aware_plants import mapped
from lammps_cells import hcp
from lammps_support import Setup
from rank_support import Job, gap, run_jobs

from mace_stream.halo import Halo
from mace_stream.torch.ranks import Compared, Direct, ThroughHost, _Copies

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.mpi,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
BOUND = 1e-8
"""Between two runs on a GPU in double precision that add in any order; units as in LAMMPS."""
N_STEPS = 20
STYLES = {
    "fixed": "radial exact deterministic yes",
    "graphs": "radial spline",
    "plain": "radial spline graphs no",
}


def job(model, name: str, style: str, plants: tuple = ()) -> Job:
    """A run with migration and new lists."""
    setup = Setup(hcp((4, 4, 3), rattle=0.05), model("ti"), f"device cuda precision double {style}")
    lists = "neigh_modify every 1 delay 0 check yes"
    moving = ("velocity all set 40 9 13 sum yes", "fix move all nve", f"run {N_STEPS}")
    return Job(name, setup, after=(lists, *moving), plants=plants)


@pytest.fixture(scope="module")
def results(model, tmp_path_factory):
    """Every style both ways, on two ranks, and what should repeat by itself."""
    jobs = [job(model, "again_fixed", STYLES["fixed"])]
    jobs += [job(model, f"usual_{name}", style) for name, style in STYLES.items()]
    straight = (("gpu_aware", "straight_on_gpu"),)
    jobs += [
        job(model, f"straight_{name}", f"{style} gpu_aware yes", straight)
        for name, style in STYLES.items()
    ]
    return run_jobs(jobs, 2, tmp_path_factory.mktemp("straight"))


def test_the_usual_way_repeats(results):
    """Without this the next test means nothing."""
    assert gap(results["again_fixed"], results["usual_fixed"]) == 0


@pytest.mark.parametrize("name", STYLES)
def test_both_ways_give_the_same(results, name):
    """The same bits where sums have one order."""
    bound = 0 if name == "fixed" else BOUND
    assert gap(results[f"straight_{name}"], results[f"usual_{name}"]) <= bound


@pytest.mark.parametrize("name", STYLES)
def test_every_exchange_went_straight_and_the_first_ones_were_compared(results, name):
    """Two layers exchange once each way; the run begins, and ends, with one more evaluation."""
    for notes in results[f"straight_{name}"]["notes"]:
        assert notes == {"straight": 2 * (N_STEPS + 2), "compared": 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_leave_behind_the_work_that_made_them(dtype):
    """The halo copies on the host what lies there when it is told to, and every bit is compared."""
    device = torch.device("cuda:0")
    n, width = 3000, 64
    job = []

    def finish() -> None:
        out, into, row_bytes, _ = job[-1]
        ctypes.memmove(into, out, n * row_bytes)

    sent, counts = np.arange(n, dtype=np.int32), np.array([n])
    halo = Halo(sent, counts, n, lambda *post: job.append(post), finish, lambda: True, True)
    with torch.cuda.device(device):
        out, into = (mapped(n, width, dtype=dtype, device=device) for _ in range(2))
        straight = Direct(halo, device, lambda *_, **__: into)
        route = Compared(halo, straight, ThroughHost(halo, _Copies(device)))
        work = torch.rand(n, n, dtype=dtype, device=device)
        for step in range(10):
            made = work @ work + step
            out.copy_(made[:, :width])
            route.start(out, n, step % 2 == 1)
            work = made / made.max()
            assert torch.equal(route.finish(), made[:, :width])
    assert len(job) == 20
    assert [post[0] for post in job[::2]] == [out.data_ptr()] * 10
