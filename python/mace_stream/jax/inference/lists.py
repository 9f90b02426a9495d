"""A neighbor list in the order that the passes want: nodes by species, edges by distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.folded import Tile, make_tiles, padded
from mace_stream.jax.inference.calls import Nodes

SLACK = 1.05
"""Arrays get this much more than they need, so that a little more still fits."""
ROOM = 64
"""Lengths are multiples of this."""


@dataclass(frozen=True)
class Sizes:
    """Lengths of the arrays of compiled programs."""

    atoms: int = ROOM
    """Rows of the positions, images included."""
    slots: int = ROOM
    """Candidates for edges."""
    remote: int = 0
    """Nodes of other ranks."""
    sent: int = 0
    """Rows that go to other ranks."""
    moved: int = 0
    """Senders that are seen from an image of their receiver."""

    def fitting(self, **needed: int) -> Sizes:
        """Return these, or larger ones where they are too small; they never shrink."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        grown = {name: _room(n) for name, n in needed.items() if n > kept[name]}
        return replace(self, **grown) if grown else self


def _room(count: int) -> int:
    return ceil(SLACK * count / ROOM) * ROOM


@dataclass(frozen=True)
class HostList:
    """A neighbor list as the pair style hands it over.

    ``indptr`` int64 [n + 1]; ``sender``, ``receiver_atom``, ``sender_atom`` int32 [n_slots];
    ``species`` int64 [n_senders], among the present ones. Nodes of other ranks follow the n own
    ones and only send.
    """

    indptr: np.ndarray
    sender: np.ndarray
    receiver_atom: np.ndarray
    sender_atom: np.ndarray
    species: np.ndarray

    @property
    def n_own(self) -> int:
        """Own nodes."""
        return max(0, len(self.indptr) - 1)


class Moved(NamedTuple):
    """Senders seen from an image of their receiver, moved along to where the receiver is.

    The passes know one position for each receiver. Where a list names several, the sender goes to
    ``x[sender] - x[receiver] + x[home]``, which leaves the edge vector as it is. All int32 [n].
    """

    sender: Array
    receiver: Array
    home: Array

    def appended(self, x: Array) -> Array:
        """Return positions [n_atoms + n, 3] with those of the moved senders at the end."""
        if not len(self.sender):
            return x
        return jnp.concatenate([x, x[self.sender] - x[self.receiver] + x[self.home]])


class Straightened(NamedTuple):
    """A list that names one receiver position per row."""

    given: HostList
    moved: np.ndarray
    """Slots whose senders have to move."""
    ends: np.ndarray
    """Sender, receiver and home of those, [3, n]."""


def with_one_receiver(given: HostList) -> Straightened:
    """Name one receiver position per row: the first."""
    lengths = np.diff(given.indptr)
    starts = given.indptr[:-1][lengths > 0]
    home = np.repeat(given.receiver_atom[starts], lengths[lengths > 0])
    moved = np.flatnonzero(given.receiver_atom != home)
    ends = np.stack([a[moved] for a in (given.sender_atom, given.receiver_atom, home)])
    return Straightened(replace(given, receiver_atom=home), moved, ends)


class Slots(NamedTuple):
    """What the order of a list is found from, all [n_slots]; beyond ``n`` entries is nothing."""

    node: Array
    """Row of the receiver."""
    receiver_atom: Array
    sender_atom: Array
    sender: Array
    """Node of the sender."""
    run: Array
    """Number of the receiver and of the sender's species together."""
    n: Array


class Arrangement:
    """A list on the host, its nodes in the passes' order.

    Args:
        straightened: The list.
        capacity: Nodes of each species that there is room for.
        sizes: Lengths of arrays.
        tile: Nodes per tile.
    """

    def __init__(
        self, straightened: Straightened, capacity: Sequence[int], sizes: Sizes, tile: int
    ) -> None:
        given, moved, ends = straightened
        n_own, n_species = given.n_own, len(capacity)
        self.n_nodes = sum(capacity)
        self.tiles: tuple[Tile, ...] = tuple(make_tiles(capacity, 1, tile))
        own = _places(given.species[:n_own], np.cumsum(capacity) - capacity)
        remote = self.n_nodes + np.arange(len(given.species) - n_own)
        self.place = np.concatenate([own, remote]).astype(np.int32)
        lengths = np.zeros(self.n_nodes + 1, np.int64)
        lengths[1 + own] = np.diff(given.indptr)
        species = np.zeros(self.n_nodes + sizes.remote, np.int32)
        species[: self.n_nodes] = np.repeat(np.arange(n_species), capacity)
        species[self.place] = given.species
        node = np.repeat(own, np.diff(given.indptr))
        node_atom = np.zeros(self.n_nodes, np.int32)
        node_atom[node] = given.receiver_atom
        sender_atom = given.sender_atom.copy()
        sender_atom[moved] = sizes.atoms + np.arange(len(moved))
        run = node * n_species + given.species[given.sender]
        slots = node, given.receiver_atom, sender_atom, self.place[given.sender], run
        self.slots = Slots(*(_long(a, sizes.slots) for a in slots), np.int32(len(node)))
        self.moved = Moved(*(_long(a, sizes.moved) for a in ends))
        self.first, self.node_atom, self.species = np.cumsum(lengths), node_atom, species
        self.mask = np.zeros(self.n_nodes)
        self.mask[own] = 1.0

    def long_place(self) -> np.ndarray:
        """Row of every node of the pair style, as long as the arrays of nodes."""
        return _long(self.place, len(self.species))


def _long(array: np.ndarray, length: int) -> np.ndarray:
    out = np.zeros(length, np.int32)
    out[: len(array)] = array
    return out


def _places(group: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """New index of every node: by group, else in the order that there was, int64."""
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group, minlength=len(starts))
    before = np.cumsum(counts) - counts
    place = np.empty(len(group), np.int64)
    place[order] = starts[group[order]] + np.arange(len(group)) - before[group[order]]
    return place


def sort_edges(x: Array, slots: Slots, moved: Moved) -> tuple[Array, Array]:
    """Order edges by receiver, species of the sender, and distance at positions ``x``.

    The passes need the first two. Neighbors in the third share rows of the radial tables.

    Returns:
        ``slot_atom`` and ``slot_node`` of :class:`Nodes`.
    """
    places = moved.appended(x)
    vec = places[slots.receiver_atom] - places[slots.sender_atom]
    is_slot = jnp.arange(len(vec)) < slots.n
    length = jnp.where(is_slot, jnp.sqrt(jnp.sum(vec**2, axis=1)), 0.0)
    longest = jnp.maximum(jnp.max(length), 1e-300)
    key = jnp.where(is_slot, slots.run + length / (2 * longest), jnp.inf)
    order = jnp.argsort(key)
    return slots.sender_atom[order], slots.sender[order]


def nodes_of(arrangement: Arrangement, slot_atom: Array, slot_node: Array) -> Nodes:
    """Return the list as the passes read it."""
    return Nodes(
        arrangement.first, arrangement.node_atom, slot_atom, slot_node, arrangement.species
    )


def at_least_one(capacity: Sequence[int]) -> list[int]:
    """Make room for a node where there is none: programs have arrays with something in them."""
    return list(capacity) if sum(capacity) else [padded(1), *capacity[1:]]
