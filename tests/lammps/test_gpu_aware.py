"""Keyword gpu_aware on real ranks: refusals, and rows of a CPU that go as those of a GPU do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from lammps_cells import hcp
from lammps_support import SAME, Setup, prepare, run_program
from rank_support import Job, gap, run_jobs

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

PATHS = ("spline", "exact")
STRAIGHT = ("gpu_aware", "straight_on_cpu")
MOVE = (
    "neigh_modify every 1 delay 0 check yes",
    "velocity all set 40 9 13 sum yes",
    "fix move all nve",
    "run 6",
)
N_RANKS = 3
N_EVALUATIONS = 7 + 1  # of MOVE, and what is measured


def titanium(model, style: str) -> Setup:
    return Setup(hcp((3, 3, 3), rattle=0.05), model("ti"), style)


def asked(model, path: str = "spline") -> Setup:
    return titanium(model, f"radial {path} gpu_aware yes")


def slabs(model) -> list[Job]:
    """Of three slabs the middle one becomes thinner than the cutoff: the outer ones meet."""
    atoms = hcp((12, 2, 2), rattle=0.05)
    atoms.pbc = [False, True, True]
    setup = Setup(atoms, model("ti"), "gpu_aware yes")
    return [
        Job(f"slabs_{name}", setup, ("processors 3 1 1",), ("run 0", line), plants=(STRAIGHT,))
        for name, line in (("wide", "run 0"), ("thin", "balance 1.0 x 0.45 0.55"))
    ]


@pytest.fixture(scope="module")
def results(model, tmp_path_factory):
    """All on three ranks, one after the other, the last as it should be."""
    jobs = [
        Job("mpi", asked(model)),
        Job("cpu", asked(model), plants=(("gpu_aware", "told_by_mpi", 1),)),
        Job("one_rank", asked(model), plants=(("gpu_aware", "on_a_gpu", 0),)),
        *(
            Job(f"wrong_{rank}_{home}", asked(model), plants=((*STRAIGHT, rank, home),))
            for rank in (0, 1)
            for home in (False, True)
        ),
        *(
            Job(f"failed_{rank}", asked(model), plants=(STRAIGHT, ("fail_on", rank, stage)))
            for rank, stage in ((0, "_last_layer"), (1, "_forward_tiles"), (1, "_sum_up"))
        ),
        *(Job(f"straight_{p}", asked(model, p), after=MOVE, plants=(STRAIGHT,)) for p in PATHS),
        *(Job(f"usual_{p}", titanium(model, f"radial {p}"), after=MOVE) for p in PATHS),
    ]
    return run_jobs(
        [*slabs(model), *jobs], N_RANKS, tmp_path_factory.mktemp("gpu_aware"), timeout=100
    )


@pytest.mark.parametrize(
    ("job", "text"),
    [
        ("mpi", "LAMMPS' MPI says that it cannot send GPU memory (MPIX_Query_cuda_support)"),
        ("cpu", "the model is on a CPU, and there is no GPU memory to send"),
        ("one_rank", "LAMMPS' MPI says that it cannot send GPU memory"),
    ],
)
def test_what_cannot_be_had_ends_all_ranks(results, job, text):
    rank = 1 if job == "one_rank" else 0
    for error in results[job]["errors"]:
        assert text in error
        assert f"(on rank {rank} of {N_RANKS})" in error


def test_one_rank_is_refused_like_several(model, lmp):
    with pytest.raises(Exception, match=r"MPI says that it cannot .*leave gpu_aware out"):
        prepare(lmp, asked(model))


def test_the_program_refuses_before_the_first_step(model, tmp_path):
    done = run_program(asked(model), tmp_path, "run 0", launch=("mpiexec", "-n", "2"))
    assert done.returncode != 0
    assert done.stdout.count("ERROR") == 1
    assert "gpu_aware yes: LAMMPS' MPI says that it cannot send GPU memory" in done.stdout
    assert "leave gpu_aware out" in done.stdout
    assert "Traceback" not in done.stdout
    assert "Step" not in done.stdout


ASK_MPI = """
import ctypes
from mpi4py import MPI
lines = [line for line in open("/proc/self/maps") if "/libmpi.so" in line]
paths = {line.split(maxsplit=5)[-1].strip() for line in lines}
answers = [ctypes.CDLL(path).MPIX_Query_cuda_support() for path in paths]
print(*answers)
"""


def test_the_library_says_what_the_refusal_says():
    """Asked without LAMMPS: 0, and not that it has no such function."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_MPI], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["0"]


@pytest.mark.parametrize("path", PATHS)
def test_both_ways_give_the_same_bits(results, path):
    straight, usual = results[f"straight_{path}"], results[f"usual_{path}"]
    assert gap(straight, usual) == 0


@pytest.mark.parametrize("path", PATHS)
def test_every_exchange_went_straight_and_only_the_first_ones_were_compared(results, path):
    """Two layers exchange once each way."""
    for notes in results[f"straight_{path}"]["notes"]:
        assert notes == {"straight": 2 * N_EVALUATIONS, "compared": 2}
    assert results[f"usual_{path}"]["notes"] == [{}] * N_RANKS


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("home", [False, True])
def test_a_planted_wrong_way_is_found(results, rank, home):
    for text in results[f"wrong_{rank}_{home}"]["errors"]:
        assert "at step 0: gpu_aware yes: MPI does not send GPU memory correctly: 1 of" in text
        assert f"(on rank {rank} of {N_RANKS})" in text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_while_ways_are_compared_ends_all_ranks(results, rank):
    for text in results[f"failed_{rank}"]["errors"]:
        assert "planted in" in text
        assert f"(on rank {rank} of {N_RANKS})" in text


def test_new_peers_are_compared_on_all_ranks(results):
    assert gap(results["slabs_thin"], results["slabs_wide"]) < SAME
    assert [notes["compared"] for notes in results["slabs_wide"]["notes"]] == [2, 2, 2]
    assert [notes["compared"] for notes in results["slabs_thin"]["notes"]] == [4, 4, 4]
