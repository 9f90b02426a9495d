"""Jobs for ``rank_worker.py``: what several ranks are told to do, and how results compare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from lammps_support import Setup, define, opened

WORKER = Path(__file__).with_name("rank_worker.py")
NUMBERS = ("energy", "pressure", "forces", "positions", "c_m_e", "c_m_s", "c_m_c")


@dataclass(frozen=True)
class Job:
    """One evaluation, after ``lines``, of atoms that all numbers of ranks read from one file."""

    name: str
    setup: Setup
    before: tuple[str, ...] = ()  # lines ahead of the box
    after: tuple[str, ...] = ()  # lines behind the pair style
    plants: tuple = ()

    def written(self, folder: Path) -> dict:
        """What the worker reads; the atoms go into a file."""
        setup = self.setup
        data = folder / f"data.{self.name}"
        if not data.exists():
            with opened() as lmp:
                define(lmp, replace(setup, extra=()))
                lmp.command(f'write_data "{data}" nocoeff')
        boundary = " ".join("p" if p else "f" for p in setup.atoms.pbc)
        lines = [
            f"units {setup.units}",
            f"atom_style {setup.atom_style}",
            f"atom_modify {setup.atom_modify}",
            f"newton {setup.newton}",
            f"boundary {setup.boundary or boundary}",
            "box tilt large",
            *self.before,
            f'read_data "{data}"',
            *setup.extra,
            f"pair_style mace/stream {setup.style}",
            setup.coeff(),
            *self.after,
        ]
        return {"name": self.name, "lines": lines, "plants": self.plants}


def run_jobs(
    jobs: Sequence[Job | dict], n_ranks: int, folder: Path, timeout: float = 300
) -> dict[str, dict]:
    """Do all jobs on so many ranks; the result of each by name."""
    jobs_file, out = folder / f"jobs.{n_ranks}.json", folder / f"out.{n_ranks}.json"
    written = [job if isinstance(job, dict) else job.written(folder) for job in jobs]
    jobs_file.write_text(json.dumps(written))
    out.unlink(missing_ok=True)
    done = subprocess.run(
        ["mpiexec", "-n", str(n_ranks), sys.executable, str(WORKER), str(jobs_file), str(out)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert out.exists(), done.stdout[-3000:]
    return json.loads(out.read_text())


def gap(found: dict, right: dict, names: Sequence[str] = NUMBERS) -> float:
    """Largest difference of any number; per-atom ones relative to the largest of their kind."""
    assert "error" not in found, found["error"]
    assert "error" not in right, right["error"]
    gaps = [0.0]
    for name in names:
        one, other = np.array(found[name]), np.array(right[name])
        assert one.shape == other.shape
        scale = max(1.0, np.abs(other).max(initial=0.0)) if name not in ("forces",) else 1.0
        gaps.append(float(np.abs(one - other).max(initial=0.0)) / scale)
    return max(gaps)
