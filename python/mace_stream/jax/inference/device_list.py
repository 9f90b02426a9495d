"""Neighbor lists made on a GPU, from positions and images alone.

Atoms are sorted into cells on the host; pairs are found on the device, and come back for
:class:`mace_stream.jax.inference.lists.Arrangement`, as lists of LAMMPS do.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from mace_stream.jax.inference.lists import SLACK, HostList, Rows
from mace_stream.kernels.cell_list import CellList, Cells, cell_grid
from mace_stream.kernels.launching import page_locked, primary_context, synchronize


@dataclass(frozen=True)
class Atoms:
    """Local atoms first, then images.

    ``node`` int64 [n_atoms]: node of each atom's owner, -1 for atoms of other styles; nodes are
    counted in the order of the atoms. ``species`` int64 [n_nodes], among the present ones.
    """

    n_local: int
    node: np.ndarray
    species: np.ndarray
    cutoff: float


@dataclass(frozen=True)
class FoundList:
    """A list of all atoms' pairs: ``indptr`` int64 [n + 1], ``sender_atom`` int32 [n_slots]."""

    atoms: Atoms
    receivers: np.ndarray
    """Atom of every own node, int32 [n]."""
    indptr: np.ndarray
    sender_atom: np.ndarray

    @property
    def n_own(self) -> int:
        """Own nodes."""
        return len(self.receivers)

    @property
    def n_pairs(self) -> int:
        """Pairs, each counted from both sides."""
        return len(self.sender_atom)

    @property
    def species(self) -> np.ndarray:
        """Of nodes, int64."""
        return self.atoms.species

    def rows(self, n_atoms: int) -> Rows:
        """Return the list by rows; it names one receiver position for each as it is."""
        node, none = self.atoms.node[:n_atoms].astype(np.int32), np.zeros((3, 0), np.int32)
        return Rows(self.indptr, self.receivers, self.sender_atom, node, none[0], none)

    def as_list(self) -> HostList:
        """Return the list as the pair style would hand it over."""
        return HostList(
            indptr=self.indptr,
            sender=self.atoms.node[self.sender_atom].astype(np.int32),
            receiver_atom=np.repeat(self.receivers, np.diff(self.indptr)),
            sender_atom=self.sender_atom,
            species=self.species,
        )


class PairFinder:
    """Finds all pairs of an atom and another one, or an image, no farther than the cutoff.

    Args:
        device: A GPU.
    """

    def __init__(self, device: jax.Device) -> None:
        self._device, self._number = device, device.local_hardware_id
        with primary_context(self._number):
            arch = f"sm_{device.compute_capability.replace('.', '')}"
            self._kernels = CellList(arch, lambda: 0)
        self._memory: dict[str, np.ndarray] = {}

    def __call__(self, atoms: Atoms, x: np.ndarray) -> FoundList:
        """Return the list at positions ``x`` [n_atoms, 3] in Å, float64."""
        kept = np.flatnonzero(atoms.node >= 0)
        receivers = kept[kept < atoms.n_local].astype(np.int32)
        if not len(receivers):
            return FoundList(atoms, receivers, np.zeros(1, np.int64), np.zeros(0, np.int32))
        with primary_context(self._number):
            return FoundList(atoms, receivers, *self._find(atoms, x[kept], kept))

    def _find(
        self, atoms: Atoms, x: np.ndarray, number: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Row pointers, and the numbers of the neighbors."""
        grid, arrays = sorted_into_cells(x, number, atoms)
        held = jax.block_until_ready(jax.device_put(arrays, self._device))
        cells = Cells(*grid, *(array.unsafe_buffer_pointer() for array in held))
        n = cells.n_receivers
        counts, first = self._room("counts", n, np.int64), self._room("first", n + 1, np.int64)
        self._kernels.count(cells, counts.ctypes.data)
        synchronize()
        first[1:] = np.cumsum(counts)
        senders = self._room("senders", int(first[-1]), np.int32)
        self._kernels.fill(cells, first.ctypes.data, senders.ctypes.data)
        synchronize()
        return first.copy(), senders.copy()

    def _room(self, name: str, count: int, dtype: type) -> np.ndarray:
        """Page-locked memory that kernels write to; it is kept for the next list."""
        size = np.dtype(dtype).itemsize
        if name not in self._memory or 8 * len(self._memory[name]) < size * count:
            self._memory[name] = page_locked((int(SLACK * size * count / 8) + 1,))
        return self._memory[name].view(dtype)[:count]


def sorted_into_cells(
    x: np.ndarray, number: np.ndarray, atoms: Atoms
) -> tuple[tuple, tuple[np.ndarray, ...]]:
    """Sort the atoms at ``x`` into cells of half the cutoff.

    Returns:
        The numbers of :class:`Cells`, and the arrays that it points to.
    """
    low = x.min(0)
    side, n = cell_grid(np.ptp(x, axis=0), atoms.cutoff, len(x))
    place = np.minimum(((x - low) / side).astype(np.int64), np.array(n) - 1)
    cell = (place[:, 2] * n[1] + place[:, 1]) * n[0] + place[:, 0]
    order = np.argsort(cell, kind="stable")
    counts = np.bincount(cell, minlength=n[0] * n[1] * n[2])
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    receivers = rank[number < atoms.n_local]
    grid = len(receivers), tuple(n), tuple(low.tolist()), 1 / side, atoms.cutoff**2
    return grid, (x[order], start, number[order].astype(np.int32), receivers)
