"""Memory that training needs with each way of doing the convolution, on a CPU or a GPU.

    python examples/training/memory.py                                a table for this machine
    python examples/training/memory.py --repeat 6 6 4 --device cuda   more atoms, on a GPU
    python examples/training/memory.py --csv docs/benchmarks/training.csv

Every measurement is a process of its own. It evaluates a small structure first, so that libraries
and kernels are there, and then once the structure that counts. On a CPU the peak is that of
resident memory above what the process had before; on a GPU that of the framework's allocator.

Operators: ``streaming`` and ``standard`` are the modes of docs/convolution.md; ``plain`` is the
framework's own arithmetic, with messages of all edges in memory; ``mace_torch`` is mace-torch
itself with e3nn, where it is installed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import date
from itertools import product
from pathlib import Path

import numpy as np
from titanium import Batch, make_batches, structures, student

from mace_stream.evaluation import is_out_of_memory

MIB = 1 << 20
OPERATORS = {
    "torch": ("streaming", "standard", "plain", "mace_torch"),
    "jax": ("streaming", "standard", "plain"),
}
PASSES = ("forces", "training")
WIDTH = 64
"""Hidden radial features of the model."""


@dataclass(frozen=True)
class Row:
    """One line of docs/benchmarks/training.csv."""

    commit: str
    date: str
    device: str
    framework: str
    operator: str
    n_atoms: int
    n_edges: int
    pass_: str
    peak_mib: str
    channels: int


@dataclass(frozen=True)
class Job:
    """One measurement."""

    framework: str
    operator: str
    task: str
    """``forces``: energies and forces. ``training``: the loss and its derivative by weights."""
    repeat: tuple[int, int, int]
    device: str
    channels: int


def make_batch(repeat: tuple[int, int, int], r_max: float = 6.0) -> Batch:
    """One structure with labels that do not matter here."""
    frames = structures(1, repeat)
    labels = np.zeros(1), np.zeros((1, len(frames[0]), 3))
    return make_batches(frames, *labels, r_max, 1)[0]


# ---- one measurement, in its own process ----


def measure(job: Job) -> dict:
    """Peak memory of one pass, and where it was measured."""
    batches = [make_batch((1, 1, 1)), make_batch(tuple(job.repeat))]
    prepare = {"torch": prepare_torch, "jax": prepare_jax}[job.framework]
    first, second, meter, device, framework = prepare(job, *batches)
    first()
    before = meter.start()
    try:
        second()
        peak = f"{(meter.peak() - before) / MIB:.1f}"
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        peak = "out_of_memory"
    big = batches[1]
    sizes = {"n_atoms": len(big.positions), "n_edges": len(big.sender), "channels": job.channels}
    return {"peak_mib": peak, "device": device, "framework": framework, **sizes}


def prepare_torch(job: Job, *batches: Batch) -> tuple:
    """Return the pass for both batches, a meter, and the names of device and framework."""
    import torch

    if job.operator == "mace_torch":
        passes = mace_torch_passes(job, batches)
    else:
        passes = torch_passes(job, batches)
    framework = f"torch {torch.__version__.partition('+')[0]}"
    if job.device == "cpu":
        return *passes, ResidentMemory(), "cpu", framework
    return *passes, TorchMemory(), torch.cuda.get_device_name(), framework


def torch_passes(job: Job, batches: tuple[Batch, ...]) -> list:
    """The pass with our model, as a function of nothing, for every batch."""
    import fit_torch
    import torch

    from mace_stream.tensors import trainable_names
    from mace_stream.torch import MACE, interaction
    from mace_stream.torch.conv import plain_conv

    spec, tensors = student(job.channels, WIDTH)
    if job.operator == "plain":
        interaction.conv = without_mode(plain_conv)
    mode = "auto" if job.operator == "plain" else job.operator
    options = {"device": job.device, "conv_mode": mode}
    weights = {name: torch.tensor(tensors[name]) for name in trainable_names(spec)}
    if job.task == "training":
        for weight in weights.values():
            weight.requires_grad_()
        run = fit_torch.loss_and_slopes
        return [lambda b=b: run(spec, tensors, weights, b, **options) for b in batches]
    model = MACE.from_spec(spec, tensors, **options)
    return [lambda b=b: fit_torch.energies_and_forces(model, b, again=False) for b in batches]


def mace_torch_passes(job: Job, batches: tuple[Batch, ...]) -> list:
    """The same with mace-torch: random weights, the same shapes."""
    import torch

    from mace_stream.testing.twins import build_twin

    shapes = {"hidden": f"{job.channels}x0e+{job.channels}x1o", "num_bessel": 8}
    model = build_twin("MP-0a medium", elements=[22], **shapes).to(job.device)

    def run(batch: Batch) -> None:
        found = model(mace_torch_data(batch, job.device), training=job.task == "training")
        if job.task == "training":
            value = (found["forces"] ** 2).mean() + (found["energy"] ** 2).mean()
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            torch.autograd.grad(value, weights, allow_unused=True)

    return [lambda b=b: run(b) for b in batches]


def mace_torch_data(batch: Batch, device: str) -> dict:
    """A batch as mace-torch takes it; its shift of an edge has the other sign."""
    import torch

    n_atoms = len(batch.positions)
    arrays = {
        "positions": batch.positions,
        "node_attrs": np.ones((n_atoms, 1)),
        "edge_index": np.stack([batch.sender, batch.receiver]),
        "shifts": -batch.offset,
        "unit_shifts": np.zeros_like(batch.offset),
        "cell": np.zeros((3, 3)),
        "batch": np.zeros(n_atoms, dtype=np.int64),
        "ptr": np.array([0, n_atoms]),
    }
    return {name: torch.tensor(array, device=device) for name, array in arrays.items()}


def prepare_jax(job: Job, *batches: Batch) -> tuple:
    """As :func:`prepare_torch`; both programs are compiled here, so that only runs are measured."""
    import fit_jax
    import jax

    from mace_stream.jax import MACE, double_precision, interaction
    from mace_stream.jax.conv import plain_conv
    from mace_stream.tensors import trainable_names

    spec, tensors = student(job.channels, WIDTH)
    if job.operator == "plain":
        interaction.conv = without_mode(plain_conv)
    mode = "auto" if job.operator == "plain" else job.operator
    with double_precision():
        weights = {name: jax.numpy.asarray(tensors[name]) for name in trainable_names(spec)}
        function = fit_jax.compile_loss_and_slopes(spec, tensors, conv_mode=mode)
        if job.task == "forces":
            model = MACE.from_spec(spec, tensors, conv_mode=mode)
            function = jax.jit(lambda _, batch: fit_jax.energies_and_forces(model, batch))
        batches = [jax.tree.map(jax.numpy.asarray, batch) for batch in batches]
        programs = [function.lower(weights, batch).compile() for batch in batches]
    passes = [
        lambda p=program, b=batch: jax.block_until_ready(p(weights, b))
        for program, batch in zip(programs, batches, strict=True)
    ]
    device = jax.devices()[0]
    framework = f"jax {jax.__version__}"
    if device.platform == "cpu":
        return *passes, ResidentMemory(), "cpu", framework
    return *passes, JaxMemory(device), device.device_kind, framework


def without_mode(plain: Callable) -> Callable:
    """Take the arguments of ``conv``, and do it in the framework's own arithmetic."""

    def conv(*arrays: object, deterministic: bool = False) -> object:
        del deterministic
        *arrays, _mode = arrays
        return plain(*arrays)

    return conv


class ResidentMemory:
    """Memory of this process that is in RAM, and its peak, from Linux."""

    def start(self) -> int:
        """Forget the peak so far; return the bytes in use."""
        Path("/proc/self/clear_refs").write_text("5")
        return self._read("VmRSS")

    def peak(self) -> int:
        """Largest number of bytes since then."""
        return self._read("VmHWM")

    def _read(self, name: str) -> int:
        text = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", text).group(1))


class TorchMemory:
    """What torch's allocator has given out on a GPU."""

    def start(self) -> int:
        """As :class:`ResidentMemory`."""
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def peak(self) -> int:
        """As :class:`ResidentMemory`."""
        import torch

        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()


class JaxMemory:
    """What JAX' allocator has given out on a GPU. Its peak cannot be forgotten, but that of the
    small structure before is smaller.
    """

    def __init__(self, device: object) -> None:
        self.device = device

    def start(self) -> int:
        """As :class:`ResidentMemory`."""
        return self.device.memory_stats()["bytes_in_use"]

    def peak(self) -> int:
        """As :class:`ResidentMemory`."""
        return self.device.memory_stats()["peak_bytes_in_use"]


# ---- all of them ----


def run_job(job: Job) -> dict:
    """Measure in a new process; what fails is told on stderr and left out."""
    command = [sys.executable, __file__, "--job", json.dumps(asdict(job))]
    place = {"JAX_PLATFORMS": job.device, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **place}
    )
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    sys.stderr.write(f"{job}: {last}\n")
    return {}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Measure everything."""
    from mace_stream.bench.md import commit

    place = tuple(options.repeat), options.device, options.channels
    for framework in options.frameworks:
        for operator, task in product(OPERATORS[framework], PASSES):
            found = run_job(Job(framework, operator, task, *place))
            if found:
                when = {"commit": commit(), "date": date.today().isoformat()}
                yield Row(**when, operator=operator, pass_=task, **found)


def append(path: Path, row: Row) -> None:
    """Add a line to a table, and the names of its columns if it is new."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        if is_new:
            table.writerow([field.name.rstrip("_") for field in fields(Row)])
        table.writerow(asdict(row).values())


def main(words: list[str]) -> None:
    """Measure all, or one job in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, nargs=3, default=[4, 4, 3], metavar="N")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--frameworks", nargs="+", choices=list(OPERATORS), default=list(OPERATORS))
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.job:
        print(json.dumps(measure(Job(**options.job))))
        return
    for row in rows(options):
        print("  ".join(map(str, asdict(row).values())), flush=True)
        if options.csv:
            append(options.csv, row)


if __name__ == "__main__":
    main(sys.argv[1:])
