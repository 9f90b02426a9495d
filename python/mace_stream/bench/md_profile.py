"""Where a step's time goes, kernel by kernel: LAMMPS inside Python under torch's profiler.

``python -m mace_stream.bench.md_profile FOLDER DEVICE STEPS`` is the process that does it. torch
comes before LAMMPS there, so that both share torch's libraries as in any Python program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mace_stream.bench.md_lammps import TIMEOUT, Run, environment, set_up

if TYPE_CHECKING:
    from torch.autograd.profiler_util import EventList

STEPS = 20
ROWS = 30


def measure(run: Run, folder: Path) -> str:
    """Return a table of kernels, or why there is none. ``folder`` has the pattern's data file."""
    (folder / "in.set_up").write_text(set_up(run))
    steps = min(STEPS, run.steps)
    (folder / "in.timed").write_text(f"run {steps} pre no post no\n")
    command = [sys.executable, "-m", "mace_stream.bench.md_profile"]
    command += [str(folder), run.device, str(steps)]
    answer = subprocess.run(  # noqa: S603 - our own module
        command,
        env=environment(run.threads),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return answer.stdout if answer.returncode == 0 else f"no profile: {answer.stderr[-400:]}"


def main(folder: str, device: str, steps: str) -> int:
    """Run the warm-up, then the timed steps under the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from lammps import lammps

    os.chdir(folder)
    lmp = lammps(cmdargs=["-screen", "none", "-log", "none", "-nocite"])
    lmp.file("in.set_up")
    on_gpu = device.startswith("cuda")
    activities = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        lmp.file("in.timed")
        if on_gpu:
            torch.cuda.synchronize()
    print(table(profiler.key_averages(), int(steps), on_gpu))
    return 0


def table(events: EventList, steps: int, on_gpu: bool) -> str:
    """Return the kernels that take most of the time, in microseconds per step."""

    def own_time(event: object) -> float:
        return event.self_device_time_total if on_gpu else event.self_cpu_time_total

    ordered = sorted(events, key=own_time, reverse=True)
    total = sum(map(own_time, events)) or 1.0
    lines = [f"{'µs/step':>10} {'share':>7} {'calls':>7}  kernel"]
    lines += [
        f"{own_time(event) / steps:10.1f} {100 * own_time(event) / total:6.1f}% "
        f"{event.count / steps:7.1f}  {event.key[:90]}"
        for event in ordered[:ROWS]
    ]
    rest = sum(map(own_time, ordered[ROWS:]))
    lines += [f"{rest / steps:10.1f} {100 * rest / total:6.1f}%          all others"]
    lines += [f"{total / steps:10.1f}                  all"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
