"""How many nodes of each species there is room for, and how they are cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

SPREAD = 4
"""Standard deviations of a number of atoms that there is room for."""

NODES_PER_PACK = 4
"""A contraction takes this many nodes of one species at a time."""


TILE_SIZE = {"cuda": 16384, "cpu": 512}
"""Nodes that are worked on together if nobody says how many: enough to fill a GPU, few enough for a
CPU's cache."""


@dataclass(frozen=True)
class Tile:
    """Consecutive nodes of one species that are worked on together."""

    species: int
    first: int
    last: int
    is_border: bool
    """Whether they have neighbors on other ranks, or other ranks need their features."""


def make_tiles(capacity: Sequence[int], n_classes: int, size: int) -> Iterator[Tile]:
    """Cut the room of every group into tiles of ``size`` nodes; ``n_classes`` groups a species."""
    start = 0
    for group, room in enumerate(capacity):
        species, is_border = divmod(group, n_classes)
        for first in range(start, start + room, size):
            yield Tile(species, first, min(first + size, start + room), bool(is_border))
        start += room


def grown(capacity: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return room for ``counts`` nodes of each group.

    That is the room there is, where it suffices and is not far too much, else as much more than
    asked for as numbers of atoms in a region of space scatter; at first just what is asked for.
    """
    if not capacity:
        return [padded(count) for count in counts]
    return [
        room if 0.7 * room <= count <= room or room == padded(count) else _ample(count)
        for room, count in zip(capacity, counts, strict=True)
    ]


def _ample(count: int) -> int:
    return padded(count + SPREAD * sqrt(count))


def padded(count: float) -> int:
    """Return the next multiple of a pack."""
    return -(-int(count) // NODES_PER_PACK) * NODES_PER_PACK
