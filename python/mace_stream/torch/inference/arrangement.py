"""A neighbor list in the order that the passes want: nodes by species, edges by distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NODES_PER_PACK = 4
"""A contraction takes this many nodes of one species at a time."""


@dataclass(frozen=True)
class Tile:
    """Consecutive nodes of one species that are worked on together."""

    species: int
    first: int
    last: int


@dataclass(frozen=True)
class Topology:
    """A neighbor list as the pair style hands it over, on the device.

    ``indptr`` int64 [n + 1]; ``sender``, ``receiver_atom``, ``sender_atom`` int32 [n_slots];
    ``species`` int64 [n], among the present ones.
    """

    indptr: Tensor
    sender: Tensor
    receiver_atom: Tensor
    sender_atom: Tensor
    species: Tensor


class Arrangement:
    """Arrays of the list in the passes' order.

    Args:
        n_species: Number of present species.
        capacity: Nodes that each species has room for; grows when it has to.
    """

    def __init__(self, topology: Topology, x: Tensor, capacity: list[int], tile: int) -> None:
        n_species = len(capacity)
        starts = torch.tensor([sum(capacity[:s]) for s in range(n_species)], device=x.device)
        self.n_nodes = sum(capacity)
        self.place = _places(topology.species, starts)
        self.tiles = tuple(_tiles(capacity, tile))
        self.species = torch.repeat_interleave(
            torch.arange(n_species, device=x.device),
            torch.tensor(capacity, device=x.device),
        ).int()
        lengths = self.place.new_zeros(self.n_nodes)
        lengths[self.place] = topology.indptr.diff()
        self.first = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        self._sort_edges(topology, x)

    def _sort_edges(self, topology: Topology, x: Tensor) -> None:
        """Order edges by receiver, species of the sender, and distance.

        The passes need the first two. Neighbors in the third share rows of the radial tables.
        """
        node = torch.repeat_interleave(self.place, topology.indptr.diff())
        receiver, sender = topology.receiver_atom, topology.sender_atom
        length = torch.linalg.vector_norm(
            x.index_select(0, receiver) - x.index_select(0, sender), dim=1
        )
        n_species = int(self.species[-1]) + 1 if len(self.species) else 1
        run = node * n_species + topology.species[topology.sender.long()]
        longest = length.max() if len(length) else 1.0
        order = torch.argsort(run.double() + length / (2 * longest))
        self.slot_atom = sender[order]
        self.slot_node = self.place[topology.sender.long()][order].int()
        self.node_atom = torch.zeros(self.n_nodes, dtype=torch.int32, device=x.device)
        self.node_atom[node] = receiver

    @property
    def n_slots(self) -> int:
        """Candidates for edges."""
        return len(self.slot_atom)


def grown(capacity: list[int], counts: list[int]) -> list[int]:
    """Return room for ``counts`` nodes of each species.

    That is the room there is, where it suffices and is not far too much, else a little more than
    asked for; at first just what is asked for.
    """
    if not capacity:
        return [_padded(count) for count in counts]
    return [
        room if 0.7 * room <= count <= room or room == _padded(count) else _padded(count * 1.05)
        for room, count in zip(capacity, counts, strict=True)
    ]


def _padded(count: float) -> int:
    return -(-int(count) // NODES_PER_PACK) * NODES_PER_PACK


def _places(species: Tensor, starts: Tensor) -> Tensor:
    """New index of every node: by species, else in the order that there was."""
    order = torch.argsort(species, stable=True)
    counts = torch.bincount(species, minlength=len(starts))
    before = counts.cumsum(0) - counts
    rank = torch.arange(len(species), device=species.device) - before[species[order]]
    place = torch.empty_like(order)
    place[order] = starts[species[order]] + rank
    return place


def _tiles(capacity: list[int], size: int):  # noqa: ANN202  yields tiles
    start = 0
    for species, room in enumerate(capacity):
        for first in range(start, start + room, size):
            yield Tile(species, first, min(first + size, start + room))
        start += room
