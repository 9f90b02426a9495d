"""What a measurement of molecular dynamics yields, whoever did it, and the memory it took."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import TracebackType

import numpy as np

CHECKED_ATOMS = 512
"""Forces on about so many atoms are compared with the reference."""
MIB = 2**20
SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Measurement:
    """One implementation at one size; ``None`` is what was not measured."""

    impl: str
    precision: str
    """``double`` or ``single``."""
    n_atoms: int
    version: str = ""
    """Of LAMMPS, or of the package that ran without it."""
    ranks: int = 1
    ms_per_step: float | None = None
    first_step_s: float | None = None
    device_peak_mib: float | None = None
    host_peak_mib: float | None = None
    energy: float | None = None
    """Per atom at step 0, in eV."""
    forces: np.ndarray | None = None
    """On the atoms of :func:`checked_atoms` at step 0, in eV/Å."""
    parts: dict[str, float] = field(default_factory=dict)
    """Milliseconds per step, or seconds, by name."""
    report: str = ""
    """What the pair style itself said at the end."""
    profile: str = ""
    """Where the time went, kernel by kernel."""
    status: str = "ok"

    def failed(self, reason: str) -> Measurement:
        """Return this without numbers and with the reason."""
        return replace(self, ms_per_step=None, forces=None, energy=None, status=reason)


def checked_stride(n_atoms: int) -> int:
    """Return the distance of checked atoms; it is odd, so that all places of a pattern come up."""
    return n_atoms // CHECKED_ATOMS | 1


def checked_atoms(n_atoms: int) -> np.ndarray:
    """Return the indices of the atoms whose forces are compared, from all over the box."""
    return np.arange(0, n_atoms, checked_stride(n_atoms))


class DeviceMemory:
    """Peak of the memory in use on a GPU between ``with`` and its end, as the driver counts it.

    Contexts and code count too, whoever allocated them, so nothing else may run on the device.
    ``peak_mib`` is ``None`` where the driver's library is not there.
    """

    def __init__(self, wanted: bool = True) -> None:
        self._handle = _nvml_device() if wanted else None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._highest = 0
        self._before = self._used()

    @property
    def peak_mib(self) -> float | None:
        """MiB above what was in use at the start."""
        return None if self._handle is None else (self._highest - self._before) / MIB

    def restart(self) -> None:
        """Forget the peak so far."""
        self._highest = self._used()

    def __enter__(self) -> DeviceMemory:
        if self._handle is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._highest = max(self._highest, self._used())

    def _used(self) -> int:
        if self._handle is None:
            return 0
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        _nvml().nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory))
        return memory[2]


def device_name() -> str:
    """Return the name of the GPU that processes of this environment see first.

    Asks the driver, because torch would open a context on the device for it.
    """
    handle = _nvml_device()
    if handle is None:
        return "cuda"
    name = ctypes.create_string_buffer(96)
    _nvml().nvmlDeviceGetName(handle, name, len(name))
    return name.value.decode()


def cpu_name(threads: int | None) -> str:
    """Return ``cpu`` with its name and the number of threads that the model may use."""
    text = Path("/proc/cpuinfo").read_text()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    count = threads or len(os.sched_getaffinity(0))
    return f"cpu: {names[0] if names else 'unknown'}, {count} threads"


@cache
def _nvml() -> ctypes.CDLL | None:
    """The driver's management library, or ``None``."""
    with suppress(OSError):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2() == 0:
            return library
    return None


def _nvml_device() -> ctypes.c_void_p | None:
    if _nvml() is None:
        return None
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    handle = ctypes.c_void_p()
    number = int(first) if first.isdigit() else 0
    if _nvml().nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) != 0:
        return None
    return handle
