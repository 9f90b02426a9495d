"""Where a rank stands among those of its node, and which device and threads follow from that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

RANK_VARIABLES = (
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
)
SIZE_VARIABLES = (
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
)
"""Set by MPICH and Intel, Open MPI, MVAPICH, Cray. They count the ranks of the whole launch: those
of other partitions, and those to which no LAMMPS belongs, too."""


@dataclass(frozen=True)
class Launch:
    """Ranks of one node."""

    rank: int
    """Of this process on its node, from 0."""
    n_ranks: int
    """On this node."""
    sharers: int
    """Ranks that may use the very same cores as this one, itself included."""
    unseen: int = 0
    """Processes of the launch on this node that LAMMPS' MPI does not know of."""

    @classmethod
    def find(
        cls, counted: Mapping[str, int], environment: Mapping[str, str] | None = None
    ) -> Launch:
        """Combine what MPI counted with what the launcher says.

        MPI counts the ranks of one LAMMPS: asking all of the launch could wait for ranks that do
        not use the style.

        Args:
            counted: ``node_rank``, ``node_ranks`` and ``same_cores`` of the ranks of one LAMMPS;
                ``mpi_ranks``, all that its MPI knows of.
            environment: Of the process.
        """
        environment = os.environ if environment is None else environment
        rank, n_ranks = counted.get("node_rank", 0), counted.get("node_ranks", 1)
        sharers = counted.get("same_cores", 1)
        told_rank, told_size = (
            _first(environment, RANK_VARIABLES),
            _first(environment, SIZE_VARIABLES),
        )
        if told_rank is None and "SLURM_STEP_ID" in environment:
            told_rank = _number(environment, "SLURM_LOCALID")
        if told_rank is not None:
            rank = told_rank
        total = max(n_ranks, told_size or 1, rank + 1)
        if sharers == n_ranks:  # nothing is bound to cores, as far as one can see
            sharers = total
        unseen = max(0, (told_size or 0) - counted.get("mpi_ranks", total))
        return cls(rank, total, sharers, unseen)

    def threads(self) -> int:
        """Return OMP_NUM_THREADS if it is set to a number, else this rank's part of the cores."""
        return _asked() or max(1, n_cores() // self.sharers)

    def warning(self) -> str:
        """Return what to tell where ranks are no ranks, or have more threads than cores."""
        if self.unseen:
            return (
                f"the launcher started {self.unseen} more processes on this node than LAMMPS' MPI "
                "knows of: it belongs to another MPI, and each of them does the whole run alone; "
                "use the mpiexec of LAMMPS' own MPI, see mace-stream doctor"
            )
        wanted = self.threads() * self.sharers
        if self.sharers == 1 or wanted <= n_cores():
            return ""
        return (
            f"{self.sharers} ranks with {self.threads()} threads each share {n_cores()} cores and "
            f"wait for each other; start fewer ranks, or set OMP_NUM_THREADS="
            f"{max(1, n_cores() // self.sharers)}"
        )


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _asked() -> int:
    return _number({"n": os.environ.get("OMP_NUM_THREADS", "").split(",")[0]}, "n") or 0


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    found = (_number(environment, name) for name in names)
    return next((number for number in found if number is not None), None)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else None
