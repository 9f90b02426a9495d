"""Neighbor lists made on the device, from positions and images alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mace_stream.kernels.cell_list import CellList, Cells, cell_grid
from mace_stream.torch.inference.arrangement import Topology
from mace_stream.torch.ops import architecture


@dataclass(frozen=True)
class Atoms:
    """Local atoms first, then images, on the device.

    ``node`` int64 [n_atoms]: node of each atom's owner, -1 for atoms of other styles; nodes are
    counted in the order of the atoms. ``species`` int64 [n_nodes].
    """

    n_local: int
    node: Tensor
    species: Tensor
    cutoff: float


def find_topology(atoms: Atoms, x: Tensor, kernels: CellList) -> Topology:
    """Return all pairs of an atom and another one, or an image, no farther than the cutoff.

    Args:
        atoms: What there is.
        x: Positions [n_atoms, 3] in Å, float64.
        kernels: Of the device.
    """
    kept = torch.nonzero(atoms.node >= 0).squeeze(1)
    cells, held = _sort_into_cells(x[kept], kept, atoms)
    counts = torch.empty(cells.n_receivers, dtype=torch.int64, device=x.device)
    kernels.count(cells, counts.data_ptr())
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    sender_atom = torch.empty(int(indptr[-1]), dtype=torch.int32, device=x.device)
    kernels.fill(cells, indptr.data_ptr(), sender_atom.data_ptr())
    del held
    receivers = kept[kept < atoms.n_local].int()
    return Topology(
        indptr=indptr,
        sender=atoms.node[sender_atom].int(),
        receiver_atom=torch.repeat_interleave(receivers, counts),
        sender_atom=sender_atom,
        species=atoms.species,
    )


def _sort_into_cells(x: Tensor, number: Tensor, atoms: Atoms) -> tuple[Cells, list[Tensor]]:
    """Cells over the atoms at ``x``, and the arrays that they point to."""
    low, high = (x.min(0).values, x.max(0).values) if len(x) else (x.new_zeros(3), x.new_ones(3))
    side, n = cell_grid((high - low).tolist(), atoms.cutoff, len(x))
    place = ((x - low) / side).long()
    place = torch.minimum(place, torch.tensor(n, device=x.device) - 1)
    cell = (place[:, 2] * n[1] + place[:, 1]) * n[0] + place[:, 0]
    order = torch.argsort(cell, stable=True)
    counts = torch.bincount(cell, minlength=n[0] * n[1] * n[2])
    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=x.device)
    receivers = rank[number < atoms.n_local].int()
    held = [x[order].contiguous(), start, number[order].int(), receivers]
    cells = Cells(
        len(receivers),
        tuple(n),
        tuple(low.tolist()),
        1 / side,
        atoms.cutoff**2,
        *(array.data_ptr() for array in held),
    )
    return cells, held


def cell_list(device: torch.device) -> CellList:
    """Kernels for a device."""
    arch = architecture(device.index or 0)
    return CellList(arch, lambda: torch.cuda.current_stream(device).cuda_stream)
