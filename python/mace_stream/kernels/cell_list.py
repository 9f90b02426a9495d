"""Pairs of atoms within a cutoff on a CUDA device; arrays are addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int32, c_int64, c_void_p

from mace_stream.kernels.launching import Kernels, check, launch
from mace_stream.kernels.nvrtc import Program, compile_program

REACH = 2
"""Cells on either side that a cutoff spans, as in cell_list.cuh."""

CELLS_PER_ATOM = 4
"""No more cells than this: a slab in a large vacuum gets larger ones."""

THREADS, RECEIVERS_PER_BLOCK = 128, 4
INSTANCES = ("find_pairs<false>", "find_pairs<true>")
SOURCE = """\
using int32_t = int;
using int64_t = long long;
using Real = double;
#include "cell_list.cuh"
"""


class Cells(ctypes.Structure):
    """``Cells`` in cell_list.cuh."""

    _fields_ = [
        ("n_receivers", c_int64),
        ("n", c_int32 * 3),
        ("origin", c_double * 3),
        ("inverse_side", c_double),
        ("cutoff_squared", c_double),
        *((name, c_void_p) for name in ("x", "start", "atom", "receivers")),
    ]


def cell_grid(extent: Sequence[float], cutoff: float, n_atoms: int) -> tuple[float, list[int]]:
    """Return the side of cells of half the cutoff or more, in Å, and their numbers.

    Args:
        extent: Of the atoms along the three axes, Å.
        cutoff: Å.
        n_atoms: Few atoms in much space get larger cells.
    """
    side = cutoff / REACH * (1 + 1e-9)  # atoms on a boundary may round to either cell
    n = _cell_counts(extent, side)
    while n[0] * n[1] * n[2] > max(1000, CELLS_PER_ATOM * n_atoms):
        side *= 1.26
        n = _cell_counts(extent, side)
    return side, n


def _cell_counts(extent: Sequence[float], side: float) -> list[int]:
    return [max(1, int(length / side) + 1) for length in extent]


def compile_cell_list(arch: str) -> Program:
    """Compile the kernels; needs no GPU."""
    return compile_program(SOURCE, INSTANCES, arch)


class CellList:
    """The kernels of cell_list.cuh on one device.

    Args:
        arch: Architecture of the device, for example ``sm_90``.
        stream: Called before each launch; returns the address of the stream to use.
    """

    def __init__(self, arch: str, stream: Callable[[], int]) -> None:
        self._kernels = Kernels(compile_cell_list(arch), INSTANCES)
        self._count, self._fill = self._kernels
        self._stream = stream

    def count(self, cells: Cells, count: int) -> None:
        """Count the neighbors of every receiver, int64 [n_receivers]."""
        self._launch(self._count, cells, count, 0, 0)

    def fill(self, cells: Cells, first: int, senders: int) -> None:
        """Write the neighbors' numbers, int32 [first[n_receivers]]."""
        self._launch(self._fill, cells, 0, first, senders)

    def _launch(self, function: object, cells: Cells, *arrays: int) -> None:
        blocks = -(-cells.n_receivers // RECEIVERS_PER_BLOCK)
        if blocks:
            check(launch(function, (blocks, 1), THREADS, self._stream(), cells, *arrays))
