"""A neighbor list in the order that the passes want: nodes by species, edges by distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mace_stream.folded import make_tiles


@dataclass(frozen=True)
class Topology:
    """A neighbor list as the pair style hands it over, on the device.

    ``indptr`` int64 [n + 1]; ``sender``, ``receiver_atom``, ``sender_atom`` int32 [n_slots];
    ``species`` int64 [n_senders], among the present ones. Nodes of other ranks follow the n own
    ones and only send.
    """

    indptr: Tensor
    sender: Tensor
    receiver_atom: Tensor
    sender_atom: Tensor
    species: Tensor

    @property
    def n_receivers(self) -> int:
        """Own nodes."""
        return len(self.indptr) - 1

    def reach_out(self) -> Tensor:
        """Own nodes with neighbors on other ranks, bool [n]."""
        seen = (self.sender >= self.n_receivers).cumsum(0)
        return torch.cat([seen.new_zeros(1), seen])[self.indptr].diff() > 0

    def groups(self, sent: Tensor | None) -> Tensor:
        """Group of every own node, int64 [n]: its species and, on several ranks, if it is border.

        Args:
            sent: Own nodes that other ranks need, int64, or None on one rank.
        """
        species = self.species[: self.n_receivers]
        if sent is None:
            return species
        is_border = self.reach_out()
        is_border[sent] = True
        return 2 * species + is_border


class Arrangement:
    """Arrays of the list in the passes' order.

    Args:
        topology: The list.
        x: Positions that it refers to.
        group: Of every own node, see :meth:`Topology.groups`.
        capacity: Nodes that each group has room for.
        n_classes: Groups per species.
        tile: Nodes per tile.
    """

    def __init__(
        self,
        topology: Topology,
        x: Tensor,
        group: Tensor,
        capacity: list[int],
        n_classes: int,
        tile: int,
    ) -> None:
        self.n_species, self.n_nodes = len(capacity) // n_classes, sum(capacity)
        room = torch.tensor(capacity, device=x.device)
        own = _places(group, room.cumsum(0) - room)
        remote = torch.arange(self.n_nodes, self.n_nodes + len(topology.species) - len(own))
        self.place = torch.cat([own, remote.to(x.device)])
        self.tiles = tuple(make_tiles(capacity, n_classes, tile))
        species = torch.arange(len(capacity), device=x.device) // n_classes
        self.species = torch.cat(
            [torch.repeat_interleave(species, room), topology.species[len(own) :]]
        ).int()
        lengths = own.new_zeros(self.n_nodes)
        lengths[own] = topology.indptr.diff()
        self.first = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        self._sort_edges(topology, x)

    def _sort_edges(self, topology: Topology, x: Tensor) -> None:
        """Order edges by receiver, species of the sender, and distance.

        The passes need the first two. Neighbors in the third share rows of the radial tables.
        """
        own = self.place[: topology.n_receivers]
        node = torch.repeat_interleave(own, topology.indptr.diff())
        receiver, sender = topology.receiver_atom, topology.sender_atom
        length = torch.linalg.vector_norm(
            x.index_select(0, receiver) - x.index_select(0, sender), dim=1
        )
        run = node * self.n_species + topology.species[topology.sender.long()]
        longest = length.max() if len(length) else 1.0
        order = torch.argsort(run.double() + length / (2 * longest))
        self.slot_atom = sender[order]
        self.slot_node = self.place[topology.sender.long()][order].int()
        self.node_atom = torch.zeros(self.n_nodes, dtype=torch.int32, device=x.device)
        self.node_atom[node] = receiver

    @property
    def n_senders(self) -> int:
        """Own nodes, padding included, and those of other ranks."""
        return len(self.species)

    @property
    def n_slots(self) -> int:
        """Candidates for edges."""
        return len(self.slot_atom)


def _places(group: Tensor, starts: Tensor) -> Tensor:
    """New index of every node: by group, else in the order that there was."""
    order = torch.argsort(group, stable=True)
    counts = torch.bincount(group, minlength=len(starts))
    before = counts.cumsum(0) - counts
    rank = torch.arange(len(group), device=group.device) - before[group[order]]
    place = torch.empty_like(order)
    place[order] = starts[group[order]] + rank
    return place
