"""The parent's side of :mod:`mace_stream.bench.md_peer_worker`: start it, read it, watch memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mace_stream.bench.md_lammps import TIMEOUT, environment
from mace_stream.bench.md_measurement import DeviceMemory, Measurement
from mace_stream.bench.md_peers import KINDS, peer_version
from mace_stream.bench.md_system import make_system


@dataclass(frozen=True)
class Job:
    """What one worker does."""

    name: str
    """Key of :data:`mace_stream.bench.md_peers.KINDS`."""
    model: Path
    """mace-torch's file."""
    device: str
    precision: str
    sizes: tuple[int, ...]
    temperature: float
    head: str = ""
    threads: int | None = None
    steps: int | None = None
    """``None`` fills about a second, 0 evaluates step 0 only."""
    pattern: bool = False
    """Whether only the pattern of each system is evaluated."""


def measure(job: Job, folder: Path) -> Iterator[Measurement]:
    """Measure all sizes in turn, in one process; a failure is a status, with its reason."""
    todo = list(job.sizes)
    (folder / "job.json").write_text(json.dumps(_plain(job, folder)))
    command = [sys.executable, "-m", "mace_stream.bench.md_peer_worker", str(folder / "job.json")]
    # XL's Kokkos reads its own variable
    env = environment(job.threads)
    env |= {"KOKKOS_NUM_THREADS": str(job.threads)} if job.threads else {}
    with (
        DeviceMemory(job.device != "cpu") as memory,
        (folder / "stderr").open("w+") as stderr,
        subprocess.Popen(  # noqa: S603 - our own module
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env
        ) as worker,
    ):
        clock = threading.Timer(TIMEOUT * len(todo), worker.kill)
        clock.start()
        for line in worker.stdout:
            message = json.loads(line)
            if "start" in message:
                memory.restart()
            else:
                yield _read(job, message, folder, memory)
                todo.remove(message["done"])
        code = worker.wait()
        clock.cancel()
        for size in todo:
            yield _blank(job, size).failed(_last_words(stderr, code))


def _plain(job: Job, folder: Path) -> dict:
    model = str(Path(job.model).resolve())
    return {**vars(job), "model": model, "folder": str(folder.resolve())}


def _blank(job: Job, size: int) -> Measurement:
    kind, system = KINDS[job.name], make_system(size, job.temperature)
    system = system.pattern_alone() if job.pattern else system
    return Measurement(kind.impl, job.precision, system.n_atoms, version=peer_version(job.name))


def _read(job: Job, message: dict, folder: Path, memory: DeviceMemory) -> Measurement:
    blank = _blank(job, message["done"])
    if "status" in message:
        return blank.failed(message["status"])
    return replace(
        blank,
        ms_per_step=message.get("ms_per_step"),
        first_step_s=message["load_s"] + message["first_s"],
        device_peak_mib=memory.peak_mib,
        host_peak_mib=message["host_peak_mib"],
        energy=message["energy"],
        forces=np.load(folder / f"forces_{blank.n_atoms}.npy"),
        parts={"graph_s": message["prepare_s"]},
    )


def _last_words(stderr: object, code: int) -> str:
    stderr.seek(0)
    lines = [line.strip() for line in stderr if line.strip()]
    return f"ended with status {code}: {lines[-1] if lines else 'no output'}"
