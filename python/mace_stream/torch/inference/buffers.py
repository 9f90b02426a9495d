"""Arrays that live from step to step. Their addresses change only when they have to grow."""

from __future__ import annotations

import torch
from torch import Tensor

from mace_stream.folded import Tile
from mace_stream.kernels.inference import EdgeArrays, EdgeList
from mace_stream.torch.inference.arrangement import Arrangement


class ListBuffers:
    """The neighbor list, the edges of the step, and what goes in and out.

    Args:
        n_nodes: Own nodes, padding included.
        n_senders: Own nodes, and room for those of other ranks.
        n_slots: Room for candidates.
        n_atoms: Room for positions.
        dtype: ``Real``.
        device: Where they live.
    """

    def __init__(
        self,
        n_nodes: int,
        n_senders: int,
        n_slots: int,
        n_atoms: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def zeros(*shape: int, of: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*shape, dtype=of, device=device)

        self.n_nodes, self.n_senders = n_nodes, n_senders
        self.n_slots, self.n_atoms = n_slots, n_atoms
        self.x = zeros(n_atoms, 3, of=torch.float64)
        self.first = zeros(n_nodes + 1, of=torch.int64)
        self.node_atom = zeros(n_nodes, of=torch.int32)
        self.species = zeros(n_senders, of=torch.int32)
        self.slot_atom = zeros(n_slots, of=torch.int32)
        self.slot_node = zeros(n_slots, of=torch.int32)
        self.count = zeros(n_nodes, of=torch.int32)
        self.sender = zeros(n_slots, of=torch.int32)
        self.row = zeros(n_slots, of=torch.int32)
        self.t = zeros(n_slots)
        self.dir = zeros(n_slots, 4)
        self.grad = zeros(n_slots, 3)
        self.place = zeros(n_senders, of=torch.int64)
        self.mask = zeros(n_nodes, of=torch.float64)
        self.node_energy = zeros(n_nodes, of=torch.float64)
        self.node_forces = zeros(n_senders, 3, of=torch.float64)
        self.closest = zeros(1, of=torch.float64)
        self.totals = zeros(11, of=torch.float64)
        """Energy, virial [9], closest distance."""
        self.forces = zeros(n_senders, 3, of=torch.float64)
        """In the order of the pair style."""

    def holds(self, arrangement: Arrangement, n_atoms: int) -> bool:
        """Whether a new list fits."""
        return (
            arrangement.n_nodes == self.n_nodes
            and arrangement.n_senders <= self.n_senders
            and arrangement.n_slots <= self.n_slots
            and n_atoms <= self.n_atoms
        )

    def take(self, arrangement: Arrangement) -> None:
        """Copy a list in."""
        n_slots, n_places = arrangement.n_slots, len(arrangement.place)
        for name in ("first", "node_atom"):
            getattr(self, name).copy_(getattr(arrangement, name))
        self.species[: arrangement.n_senders].copy_(arrangement.species)
        for name in ("slot_atom", "slot_node"):
            getattr(self, name)[:n_slots].copy_(getattr(arrangement, name))
        self.place.zero_()
        self.place[:n_places] = arrangement.place
        self.mask.zero_()
        self.mask[arrangement.place[arrangement.place < self.n_nodes]] = 1.0

    def nodes(self, tile: Tile | None = None) -> EdgeList:
        """Addresses of the list, or of the rows of one tile of it."""
        first, last = (0, self.n_nodes) if tile is None else (tile.first, tile.last)
        return EdgeList(
            n_nodes=last - first,
            n_senders=self.n_senders,
            n_slots=self.n_slots,
            first=address(self.first, first),
            node_atom=address(self.node_atom, first),
            slot_atom=self.slot_atom.data_ptr(),
            slot_node=self.slot_node.data_ptr(),
            species=self.species.data_ptr(),
        )

    def edges(self, tile: Tile | None = None) -> EdgeArrays:
        """Addresses of the edges, or of those of one tile of receivers."""
        return EdgeArrays(
            count=address(self.count, 0 if tile is None else tile.first),
            sender=self.sender.data_ptr(),
            row=self.row.data_ptr(),
            t=self.t.data_ptr(),
            dir=self.dir.data_ptr(),
            grad=self.grad.data_ptr(),
        )


def address(array: Tensor | None, start: int = 0) -> int:
    """Address of element ``start`` of a contiguous array; 0 for None."""
    return 0 if array is None else array.data_ptr() + start * array.element_size()
