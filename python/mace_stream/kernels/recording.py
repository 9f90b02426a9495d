"""Notes of what the passes would be called with, for frameworks that call them later.

The launchers of :mod:`inference_cpu` and :mod:`inference_cuda` do all they usually do, up to the
call itself: that becomes a list of numbers in place. Arrays are given as marks, which stand for a
buffer and a place in it; ``csrc/jax_passes.cpp`` reads both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from mace_stream.kernels.inference_cpu import CpuPasses
from mace_stream.kernels.inference_cuda import CudaPasses

MARK = 1 << 62
OFFSET_BITS = 40
FIRST_RESULT = 1024
"""Results of a call are numbered from here, its arrays from 0."""
CLEAR, LAUNCH, COPY = range(3)


def mark(buffer: int, offset: int) -> int:
    """Return what stands for the byte ``offset`` of a buffer."""
    return MARK | buffer << OFFSET_BITS | offset


def flat(argument: Any) -> list[int]:
    """Return the 8-byte words of an argument: a number, an address, or several in one."""
    if isinstance(argument, ctypes.Structure):
        return [word for name, _ in argument._fields_ for word in flat(getattr(argument, name))]
    if isinstance(argument, ctypes.Array):
        return [word for element in argument for word in flat(element)]
    return [argument or 0]


def counted(argument: Any) -> list[int]:
    """Return the words of an argument; before those of an array their number."""
    words = flat(argument)
    return [len(words), *words] if isinstance(argument, ctypes.Array) else words


class CpuNotes(CpuPasses):
    """Passes of the CPU that note the name of the pass and its numbers."""

    def note(self, call: Callable[[CpuPasses], None]) -> dict[str, Any]:
        """Return what ``call`` of one pass comes down to."""
        call(self)
        name, numbers = self._noted
        return {"name": name, "numbers": numbers}

    def _call(self, name: str, *arguments: object) -> None:
        self._noted = name, [self._address, *(word for a in arguments for word in counted(a))]


class CudaNotes(CudaPasses):
    """Passes of a CUDA device that note launches, and arrays to clear or to copy."""

    def note(self, call: Callable[[CudaPasses], None]) -> dict[str, Any]:
        """Return what ``call`` of one pass comes down to."""
        self._noted: list[int] = []
        call(self)
        return {"numbers": self._noted}

    def copy(self, target: int, source: int, n_bytes: int) -> None:
        """Copy between the device and page-locked memory of the host."""
        self._noted += [COPY, target, source, n_bytes]

    def _start(
        self, function: object, grid: tuple[int, int], threads: int, *arguments: Any
    ) -> None:
        self._noted += [LAUNCH, int(function), *grid, threads, len(arguments)]
        for argument in arguments:
            words = flat(argument)
            self._noted += [len(words), *words]

    def _clear(self, array: int, n_bytes: int) -> None:
        self._noted += [CLEAR, array, n_bytes]
