"""Arrays of more than 2^31 numbers that take almost no memory."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

LARGE = 2**31 + 7
"""An index that 32 bits do not hold."""


def sparse_array(shape: tuple[int, ...], dtype: str, guard: int = 2**31) -> np.ndarray:
    """Zeros whose memory comes into being page by page as they are written.

    ``guard`` numbers before the first are memory, too: an index that was cut to 32 bits, and is
    negative now, reads zeros instead of ending the process.
    """
    size = int(np.prod(shape, dtype=np.int64))
    kind = np.dtype(dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    region = mmap.mmap(-1, (guard + size) * kind.itemsize, flags=flags)
    return np.frombuffer(region, dtype=kind, offset=guard * kind.itemsize).reshape(shape)


def far(array: np.ndarray, offset: int = LARGE) -> np.ndarray:
    """A copy of ``array`` whose rows stand ``offset`` rows later; zeros before them."""
    shape = (offset + len(array), *array.shape[1:])
    moved = sparse_array(shape, array.dtype, guard=2**31 * array[0].size)
    moved[offset:] = array
    return moved


def wrapped_array(size: int, dtype: str, period: int = 1 << 26) -> np.ndarray:
    """``size`` numbers in ``period`` bytes of memory, which follow each other again and again.

    All may be written; what was written last is found again in the last ``period`` bytes.
    """
    n_bytes = size * np.dtype(dtype).itemsize
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    n_windows = -(-n_bytes // period)
    reserve = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    base = libc.mmap(None, n_windows * period, 0, reserve, -1, 0)
    memory = os.memfd_create("wrapped")
    os.ftruncate(memory, period)
    fixed, readable = mmap.MAP_SHARED | 0x10, mmap.PROT_READ | mmap.PROT_WRITE
    for k in range(n_windows):
        address = libc.mmap(base + k * period, period, readable, fixed, memory, 0)
        assert address == base + k * period, "no address space"
    os.close(memory)
    buffer = (ctypes.c_char * n_bytes).from_address(base)
    return np.frombuffer(buffer, dtype=dtype)
