"""Where a model runs, in which precision, with how many threads, and why."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax

from mace_stream.jax.precision import double_precision

DTYPES = {"double": "float64", "single": "float32"}
GPU_THREADS = 8
"""Threads of XLA where it may drive a GPU, at least; they mostly sleep."""
VENDOR_PRODUCTS = {"xla_gpu_enable_triton_gemm": False}
"""Matrix products by cuBLAS alone. Where XLA may write kernels for them with Triton, it tries many:
on an H200 that took 22 s with 16 threads, 36 s with 8, and with up to 4 it never came to an end;
without, 2 s with one, and steps were no slower."""


@dataclass(frozen=True)
class Placement:
    """A device and a precision."""

    device: jax.Device
    precision: str
    """``double`` or ``single``."""
    precision_reason: str
    threads: int
    """Number of threads on CPU, of the convolution and, where JAX starts here, of XLA."""

    @classmethod
    def choose(cls, device: str, precision: str, node_rank: int, threads: int) -> Placement:
        """Resolve the values of the keywords ``device`` and ``precision``.

        Args:
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; ``auto``: CUDA where JAX sees one.
            precision: ``auto``, ``double`` or ``single``; ``auto``: single on CUDA, else double.
            node_rank: Of this process on its node; ranks take turns at the devices.
            threads: Number of threads on CPU.

        Raises:
            ValueError: The device is not there.
        """
        with _started_with(threads if device == "cpu" else _threads_for_gpus(threads)):
            place = choose_device(device, node_rank)
        if precision != "auto":
            return cls(place, precision, "asked for", threads)
        kind = _kind(place)
        default = "single" if kind == "cuda" else "double"
        return cls(place, default, f"default on {kind}", threads)

    @property
    def dtype(self) -> str:
        """Type of the model's numbers."""
        return DTYPES[self.precision]

    @property
    def on_gpu(self) -> bool:
        """Whether the device is no CPU."""
        return _kind(self.device) == "cuda"

    @property
    def device_name(self) -> str:
        """Name of the device for the log."""
        if not self.on_gpu:
            return "cpu"
        return f"{self.device.device_kind} (cuda:{self.device.local_hardware_id})"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the device the default one and let JAX know float64, and undo both."""
        with jax.default_device(self.device), double_precision():
            yield

    def compiled(self, function: Callable, *arguments: object) -> Callable:
        """Compile a function ahead for arguments like these, on a GPU with ``VENDOR_PRODUCTS``."""
        lowered = jax.jit(function).lower(*arguments)
        if not self.on_gpu:
            return lowered.compile()
        try:
            return lowered.compile(compiler_options=VENDOR_PRODUCTS)
        except RuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            warnings.warn(
                f"JAX {jax.__version__} has no option {', '.join(VENDOR_PRODUCTS)} (any more): XLA "
                "compiles for longer, with few threads for ever; use an older JAX, see docs/jax.md",
                stacklevel=2,
            )
            return lowered.compile()

    def forget_peak(self) -> None:
        """JAX measures the largest memory since the start of the process; nothing to do."""

    def peak_bytes(self) -> int:
        """Largest memory of the device that JAX has held in this process."""
        stats = self.device.memory_stats() if self.on_gpu else None
        return (stats or {}).get("peak_bytes_in_use", 0)


def choose_device(name: str, node_rank: int = 0) -> jax.Device:
    """Return the device for a value of the keyword ``device``, and the rank of this process there.

    Raises:
        ValueError: A CUDA device is asked for that JAX does not see.
    """
    cards = _cards()
    if name == "cpu" or (name == "auto" and not cards):
        return jax.local_devices(backend="cpu")[0]
    if name in ("auto", "cuda") and cards:
        return cards[node_rank % len(cards)]
    index = int(name.partition(":")[2] or 0)
    if index >= len(cards):
        raise ValueError(
            f"device {name}: JAX {jax.__version__} sees {len(cards)} CUDA devices; use device cpu, "
            "or check the driver and that JAX is a CUDA build: pip install 'jax[cuda12]'"
        )
    return cards[index]


def _cards() -> list[jax.Device]:
    try:
        return jax.local_devices(backend="cuda")
    except RuntimeError:
        return []


def _kind(device: jax.Device) -> str:
    return "cpu" if device.platform == "cpu" else "cuda"


def _threads_for_gpus(threads: int) -> int:
    """Return how many threads XLA gets where JAX may find a GPU.

    With few it may wait for itself for ever, see ``VENDOR_PRODUCTS``.
    """
    plugins = importlib.util.find_spec("jax_plugins")
    folders = plugins.submodule_search_locations if plugins else []
    for_cuda = any("cuda" in module.name for module in pkgutil.iter_modules(folders))
    return max(threads, GPU_THREADS) if for_cuda else threads


@contextmanager
def _started_with(threads: int) -> Iterator[None]:
    """Where JAX starts within this block, let it take so many threads, and memory as it needs it.

    XLA reads ``NPROC`` once. Otherwise it takes all cores on CPU, and most of a GPU's memory.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = str(threads)
    try:
        yield
    finally:
        os.environ.pop("NPROC")
        if before is not None:
            os.environ["NPROC"] = before
