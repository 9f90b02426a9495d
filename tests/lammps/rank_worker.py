"""Runs jobs on several ranks: ``mpiexec -n N python rank_worker.py JOBS.json OUT.json``.

A job is a list of input lines and a list of plants, see ``PLANTS``. Its result has all numbers in
the order of atom ids, or the text of the error that ended it, from every rank.
"""

from __future__ import annotations

import contextlib
import json
import sys
from unittest import mock

import numpy as np
from mpi4py import MPI

from lammps import lammps

PER_ATOM = {"c_m_e": 1, "c_m_s": 6, "c_m_c": 9}


def measure(lmp: lammps) -> dict[str, list]:
    """Evaluate the present configuration, and the force deviation where compute dev is there."""
    asked = ["c_dev"] if lmp.has_id("compute", "dev") else []
    lmp.commands_list(
        [
            "compute m_v all pressure NULL pair",
            "compute m_e all pe/atom pair",
            "compute m_s all stress/atom NULL pair",
            "compute m_c all centroid/stress/atom NULL pair",
            "compute m_p all property/atom proc",
            f"compute m_t all reduce sum c_m_e c_m_s[1] c_m_c[1] c_m_p {' '.join(asked)}",
            f"thermo_style custom step pe c_m_v[*] c_m_t[*] {' '.join(f'{n}[*]' for n in asked)}",
            "run 0",
        ]
    )
    vector = lmp.numpy.extract_compute("m_v", 0, 1)[:6]
    numbers = {
        "energy": lmp.get_thermo("pe"),
        "pressure": vector.tolist(),
        "forces": by_id(lmp.gather_atoms("f", 1, 3), 3),
        "positions": by_id(lmp.gather_atoms("x", 1, 3), 3),
        "owner": by_id(lmp.gather("c_m_p", 1, 1), 1),
        "n_local": MPI.COMM_WORLD.allgather(lmp.extract_global("nlocal")),
    }
    for name in asked:
        numbers[name] = by_id(lmp.gather(name, 1, 1), 1)
        numbers["summary"] = lmp.numpy.extract_compute(name[2:], 0, 1).tolist()
    return numbers | {name: by_id(lmp.gather(name, 1, n), n) for name, n in PER_ATOM.items()}


def by_id(values: object, width: int) -> list:
    """What LAMMPS gathered, atom after atom."""
    return np.array(values).reshape(-1, width).tolist()


# ---- planted mistakes ----


def skip_exchange() -> object:
    """Features of other ranks' nodes stay zero."""
    from mace_stream.torch.ranks import RankRows

    finish = RankRows.finish

    def forget(self: RankRows) -> object:
        return finish(self) * (0 if not self._home else 1)

    return mock.patch.object(RankRows, "finish", forget)


def skip_sum() -> object:
    """Cotangents that came home are not added."""
    from mace_stream.torch.ranks import RankRows

    finish = RankRows.finish

    def forget(self: RankRows) -> object:
        return finish(self) * (0 if self._home else 1)

    return mock.patch.object(RankRows, "finish", forget)


def fail_on(rank: int, method: str) -> object:
    """A method of the session fails on one rank."""
    from mace_stream.bridge.session import Session
    from mace_stream.torch.inference.pipeline import Pipeline

    owner = Pipeline if method.startswith("_") and method != "__init__" else Session
    right = getattr(owner, method)

    def wrong(self: object, *args: object, **kwargs: object) -> object:
        if MPI.COMM_WORLD.rank == rank:
            raise ValueError(f"planted in {method}")
        return right(self, *args, **kwargs)

    return mock.patch.object(owner, method, wrong)


def fail_in(rank: int, file: str) -> object:
    """One model of a committee fails on one rank."""
    from mace_stream.bridge.session import Session

    right = Session.evaluate

    def wrong(self: object, *args: object) -> object:
        if MPI.COMM_WORLD.rank == rank and self.path.name == file:
            raise ValueError(f"planted in {file}")
        return right(self, *args)

    return mock.patch.object(Session, "evaluate", wrong)


def spoil_jax(home: bool) -> object:
    """Rows that came one way are zero, in programs of JAX."""
    from mace_stream.jax.ranks import RankRows

    right = RankRows._wait

    def forget(self: RankRows, n_in: int, way: bool, rows: object) -> object:
        return right(self, n_in, way, rows) * np.uint32(way != home)

    return mock.patch.object(RankRows, "_wait", forget)


def fail_in_jax(rank: int, home: bool) -> object:
    """The exchange of one way fails on one rank while a program of JAX runs."""
    from mace_stream.jax.ranks import RankRows

    right = RankRows._do

    def wrong(self: RankRows, exchange: object) -> None:
        if MPI.COMM_WORLD.rank == rank and exchange.home == home:
            self._error = ValueError("planted in the exchange")
        right(self, exchange)

    return mock.patch.object(RankRows, "_do", wrong)


def gpu_aware(plant: str, *arguments: object) -> object:
    """A plant of ``gpu_aware_plants``, which imports torch."""
    import gpu_aware_plants

    return getattr(gpu_aware_plants, plant)(*arguments)


def take_notes() -> dict[str, int]:
    """What those plants have counted since the last call."""
    plants = sys.modules.get("gpu_aware_plants")
    return plants.take_notes() if plants else {}


PLANTS = {
    "spoil_jax": spoil_jax,
    "fail_in_jax": fail_in_jax,
    "skip_exchange": skip_exchange,
    "skip_sum": skip_sum,
    "fail_on": fail_on,
    "fail_in": fail_in,
    "gpu_aware": gpu_aware,
}


def run(lmp: lammps, job: dict) -> dict:
    """Do the lines of a job and measure, or tell what ended it."""
    try:
        with contextlib.ExitStack() as stack:
            for name, *arguments in job["plants"]:
                stack.enter_context(PLANTS[name](*arguments))
            lmp.commands_list(["clear", *job["lines"]])
            return measure(lmp)
    except Exception as error:  # noqa: BLE001  the tests read it
        return {"error": str(error)}


def main(jobs: str, out: str) -> None:
    """Do all jobs in one LAMMPS."""
    lmp = lammps(cmdargs=["-screen", "none", "-log", "none", "-nocite"])
    results = {}
    with open(jobs, encoding="utf-8") as file:
        for job in json.load(file):
            found = run(lmp, job)
            found["errors"] = MPI.COMM_WORLD.allgather(found.get("error"))
            found["notes"] = MPI.COMM_WORLD.allgather(take_notes())
            results[job["name"]] = found
    if MPI.COMM_WORLD.rank == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(results, file)
    lmp.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
