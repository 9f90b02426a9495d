"""Loads compiled kernels and launches them with the CUDA driver."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_void_p
from typing import Any

import numpy as np

from mace_stream.kernels.nvrtc import Program


class Kernels:
    """Kernels of a program in the current context. They go with this object.

    Args:
        program: Compiled for the device.
        instances: Names of its kernels, in the order of :meth:`__getitem__`.

    Raises:
        RuntimeError: The driver reports an error.
    """

    def __init__(self, program: Program, instances: Sequence[str]) -> None:
        from cuda.bindings import driver

        context = check(driver.cuCtxGetCurrent())
        module = check(driver.cuModuleLoadData(program.cubin))
        weakref.finalize(self, _unload, context, module).atexit = False
        names = (program.names[instance].encode() for instance in instances)
        self._functions = tuple(check(driver.cuModuleGetFunction(module, name)) for name in names)

    def __getitem__(self, number: int) -> object:
        return self._functions[number]


@contextmanager
def primary_context(device: int) -> Iterator[None]:
    """Make the context of a device current, the one that torch and XLA use.

    It is retained for good: kernels live in it.

    Raises:
        RuntimeError: The driver reports an error.
    """
    from cuda.bindings import driver

    check((*driver.cuInit(0), None))
    context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(device))))
    check((*driver.cuCtxPushCurrent(context), None))
    try:
        yield
    finally:
        check(driver.cuCtxPopCurrent())


def _unload(context: object, module: object) -> None:
    from cuda.bindings import driver

    check((*driver.cuCtxPushCurrent(context), None))
    try:
        check((*driver.cuModuleUnload(module), None))
    finally:
        check(driver.cuCtxPopCurrent())


def page_locked(shape: tuple[int, ...]) -> np.ndarray:
    """Return float64 zeros in memory that the device of the current context copies by itself.

    The memory goes with the last array that shows it.

    Raises:
        RuntimeError: The driver reports an error.
    """
    from cuda.bindings import driver

    n_bytes = max(1, math.prod(shape)) * np.dtype(np.float64).itemsize
    address = check(driver.cuMemHostAlloc(n_bytes, driver.CU_MEMHOSTALLOC_PORTABLE))
    memory = (ctypes.c_char * n_bytes).from_address(int(address))
    weakref.finalize(memory, driver.cuMemFreeHost, address).atexit = False
    array = np.frombuffer(memory, np.float64, math.prod(shape)).reshape(shape)
    array[:] = 0
    return array


def launch(
    function: object, grid: tuple[int, int], threads: int, stream: int, *arguments: Any
) -> tuple:
    """Launch a kernel; arguments are ctypes structures or addresses."""
    from cuda.bindings import driver

    types = tuple(None if isinstance(a, ctypes.Structure) else c_void_p for a in arguments)
    return driver.cuLaunchKernel(
        *(function, *grid, 1, threads, 1, 1, 0, stream, (arguments, types), 0)
    )


def clear(array: int, n_bytes: int, stream: int) -> None:
    """Fill an array with zeros.

    Raises:
        RuntimeError: The driver reports an error.
    """
    from cuda.bindings import driver

    if array and n_bytes:
        check((*driver.cuMemsetD8Async(array, 0, n_bytes, stream), None))


def synchronize() -> None:
    """Wait for what was launched on the default stream of the current context.

    Raises:
        RuntimeError: The driver reports an error.
    """
    from cuda.bindings import driver

    check((*driver.cuStreamSynchronize(0), None))


def check(answer: tuple) -> Any:
    """Return what a call of the driver gave, without its status.

    Raises:
        RuntimeError: The driver reports an error.
    """
    from cuda.bindings import driver

    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        text = driver.cuGetErrorString(status)[1]
        raise RuntimeError(f"mace_stream: the CUDA driver reports: {(text or b'?').decode()}")
    return values[0] if len(values) == 1 else tuple(values)
