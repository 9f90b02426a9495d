"""Which device and how many threads a rank gets from where it stands on its node."""

from __future__ import annotations

import pytest

from mace_stream.bridge import launch
from mace_stream.bridge.launch import Launch
from mace_stream.torch import placement


def counted(rank: int, ranks: int, same_cores: int | None = None) -> dict[str, int]:
    return {
        "node_rank": rank,
        "node_ranks": ranks,
        "same_cores": ranks if same_cores is None else same_cores,
    }


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(launch, "n_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_one_process_has_all_cores():
    alone = Launch.find({}, {})
    assert (alone.rank, alone.n_ranks, alone.threads(), alone.warning()) == (0, 1, 8, "")


def test_ranks_share_cores():
    assert [Launch.find(counted(1, n), {}).threads() for n in (2, 3, 8, 16)] == [4, 2, 1, 1]


def test_ranks_that_are_bound_to_cores_of_their_own_use_them_all():
    assert Launch.find(counted(1, 4, same_cores=1), {}).threads() == 8


@pytest.mark.parametrize(
    "environment",
    [
        {"MPI_LOCALRANKID": "5", "MPI_LOCALNRANKS": "8"},
        {"OMPI_COMM_WORLD_LOCAL_RANK": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        {"PALS_LOCAL_RANKID": "5", "PALS_LOCAL_SIZE": "8"},
    ],
    ids=str,
)
def test_partitions_spread_over_the_whole_launch(environment):
    """LAMMPS alone sees the two ranks of its partition."""
    found = Launch.find(counted(1, 2), environment)
    assert (found.rank, found.n_ranks, found.threads()) == (5, 8, 1)


def test_slurm_counts_within_a_step_only():
    assert Launch.find(counted(1, 2), {"SLURM_LOCALID": "3"}).rank == 1
    inside = {"SLURM_LOCALID": "3", "SLURM_STEP_ID": "0"}
    assert Launch.find(counted(1, 2), inside).rank == 3


@pytest.mark.parametrize(
    ("asked", "threads"), [("3", 3), ("3,2", 3), ("", 4), ("all", 4), ("0", 4)]
)
def test_the_number_of_threads_asked_for_counts(monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert Launch.find(counted(0, 2), {}).threads() == threads


def test_more_threads_than_cores_are_told(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    text = Launch.find(counted(0, 4), {}).warning()
    assert text.startswith("4 ranks with 8 threads each share 8 cores")
    assert text.endswith("set OMP_NUM_THREADS=2")
    assert Launch.find(counted(0, 4, same_cores=1), {}).warning() == ""


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"])
def test_processes_that_mpi_does_not_know_of_are_told(variable):
    """R66: the launcher of another MPI; partitions and parts of a program are no such case."""
    started = {variable: "4"}
    text = Launch.find(counted(0, 1) | {"mpi_ranks": 1}, started).warning()
    assert text.startswith("the launcher started 3 more processes on this node")
    assert Launch.find(counted(0, 1) | {"mpi_ranks": 4}, started).warning() == ""
    assert Launch.find(counted(0, 1) | {"mpi_ranks": 8}, started).warning() == ""


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_ranks_take_turns_at_the_devices(monkeypatch, name):
    monkeypatch.setattr(placement.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(placement.torch.cuda, "device_count", lambda: 2)
    chosen = [str(placement.choose_device(name, rank)) for rank in range(5)]
    assert chosen == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]


def test_a_device_asked_for_by_number_is_taken(monkeypatch):
    monkeypatch.setattr(placement.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(placement.torch.cuda, "device_count", lambda: 2)
    assert str(placement.choose_device("cuda:1", 4)) == "cuda:1"
    with pytest.raises(ValueError, match=r"device cuda:2: torch .* sees 2 CUDA devices"):
        placement.choose_device("cuda:2", 0)
