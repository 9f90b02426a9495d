"""Where a model runs, in which precision, with how many threads, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

DTYPES = {"double": torch.float64, "single": torch.float32}


@dataclass(frozen=True)
class Placement:
    """A device and a precision."""

    device: torch.device
    precision: str
    """``double`` or ``single``."""
    precision_reason: str
    threads: int
    """Number of threads on CPU."""

    @classmethod
    def choose(cls, device: str, precision: str, node_rank: int, threads: int) -> Placement:
        """Resolve the values of the keywords ``device`` and ``precision``.

        Args:
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; ``auto``: CUDA where torch sees one.
            precision: ``auto``, ``double`` or ``single``; ``auto``: single on CUDA, else double.
            node_rank: Of this process on its node; ranks take turns at the devices.
            threads: Number of threads on CPU.

        Raises:
            ValueError: The device is not there.
        """
        place = choose_device(device, node_rank)
        if precision != "auto":
            return cls(place, precision, "asked for", threads)
        default = "single" if place.type == "cuda" else "double"
        return cls(place, default, f"default on {place.type}", threads)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the model's numbers."""
        return DTYPES[self.precision]

    @property
    def on_gpu(self) -> bool:
        """Whether the device is no CPU."""
        return self.device.type == "cuda"

    @property
    def device_name(self) -> str:
        """Name of the device for the log."""
        if not self.on_gpu:
            return "cpu"
        return f"{torch.cuda.get_device_name(self.device)} ({self.device})"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the device the current one and set the number of threads, and undo both."""
        device = torch.cuda.device(self.device) if self.on_gpu else nullcontext()
        with borrowed_threads(self.threads), device:
            yield

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def forget_peak(self) -> None:
        """Give memory back that is not used any more, and measure the largest anew."""
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int:
        """Largest memory of the device that torch has held."""
        return torch.cuda.max_memory_allocated(self.device) if self.on_gpu else 0


def choose_device(name: str, node_rank: int = 0) -> torch.device:
    """Return the device for a value of the keyword ``device``, and the rank of this process there.

    Raises:
        ValueError: A CUDA device is asked for that torch does not see.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    if name == "cuda" and count:
        name = f"cuda:{node_rank % count}"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(
            f"device {name}: torch {torch.__version__} sees {count} CUDA devices; use device cpu, "
            "or check the driver and that torch is a CUDA build: mace-stream doctor"
        )
    return device


@contextmanager
def one_order(wanted: bool) -> Iterator[None]:
    """Let torch use algorithms that sum in one order, and put its setting back; or do nothing.

    cuBLAS repeats its results only with a workspace of fixed size, which it reads once.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def borrowed_threads(count: int) -> Iterator[None]:
    """Set torch's number of threads, which a host program shares, and put the old one back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
