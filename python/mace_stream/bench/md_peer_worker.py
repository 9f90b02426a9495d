"""Measure one peer at several sizes: ``python -m mace_stream.bench.md_peer_worker JOB.json``.

A process of its own, so that no implementation meets what another has loaded. Each size begins and
ends with one line of JSON on standard output.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from mace_stream.bench.md_measurement import checked_atoms
from mace_stream.bench.md_peers import KINDS, Peer
from mace_stream.bench.md_system import System, make_system

WARM_UP = 2
LEAST, MOST, SECONDS = 3, 200, 1.0
"""Timed evaluations: as many as fit into so many seconds, but no fewer and no more than these."""
MOVE = 1e-3  # Å


def main(path: Path) -> int:
    """Load the peer and measure all sizes; a failure is a line with its reason."""
    job = json.loads(path.read_text())
    out, started = sys.stdout, time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_num_threads(job["threads"] or torch.get_num_threads())
        make = KINDS[job["name"]].make
        peer = make(Path(job["model"]), job["device"], job["precision"], job["head"])
        load_s = time.perf_counter() - started
        for size in job["sizes"]:
            print(json.dumps({"start": size}), file=out, flush=True)
            try:
                result = measure(peer, _system(job, size), job["steps"], job["folder"])
            except (torch.cuda.OutOfMemoryError, MemoryError):
                result = {"status": "out of memory"}
            result["load_s"] = load_s
            print(json.dumps({"done": size, **result}), file=out, flush=True)
    return 0


def measure(peer: Peer, system: System, steps: int | None, folder: str) -> dict:
    """Time a peer on a system; with ``steps`` 0 only step 0 is evaluated.

    The forces on the checked atoms go to ``folder/forces_<n_atoms>.npy``.
    """
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    start = time.perf_counter()
    peer.prepare(system, np.random.default_rng(1).uniform(-MOVE, MOVE, (system.n_atoms, 3)))
    prepare_s = time.perf_counter() - start
    peer.step(0)
    peer.finish()
    first_s = time.perf_counter() - start
    energy, forces = peer.results()
    np.save(Path(folder, f"forces_{system.n_atoms}.npy"), forces[checked_atoms(system.n_atoms)])
    result = {"energy": energy / system.n_atoms, "first_s": first_s, "prepare_s": prepare_s}
    if steps != 0:
        result["ms_per_step"] = 1e3 * _seconds_per_step(peer, steps)
    result["host_peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


def _seconds_per_step(peer: Peer, steps: int | None) -> float:
    """Time evaluations after a warm-up; on a GPU the clock is read when all are done."""
    _time(peer, WARM_UP)
    fitting = math.ceil(SECONDS / _time(peer, 1))
    count = max(LEAST, min(MOST, fitting))
    count = count if steps is None else min(count, steps)
    return _time(peer, count) / count


def _time(peer: Peer, count: int) -> float:
    """Seconds of steps to and fro, so that no atom leaves its neighbors."""
    start = time.perf_counter()
    for number in range(count):
        peer.step(-1 if number % 2 else 1)
    peer.finish()
    return time.perf_counter() - start


def _system(job: dict, size: int) -> System:
    system = make_system(size, job["temperature"])
    return system.pattern_alone() if job["pattern"] else system


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
