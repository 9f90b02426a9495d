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

    @property
    def n_pairs(self) -> int:
        """Pairs, each counted from both sides."""
        return len(self.sender_atom)

    def rows(self, n_atoms: int) -> Rows:
        """Return the list of so many atoms by rows; a row's first receiver position is its own."""
        lengths = np.diff(self.indptr)
        home = np.zeros(self.n_own, np.int32)
        home[lengths > 0] = self.receiver_atom[self.indptr[:-1][lengths > 0]]
        moved = np.flatnonzero(self.receiver_atom != np.repeat(home, lengths))
        receiver, sender = self.receiver_atom[moved], self.sender_atom[moved]
        at_home = home[np.searchsorted(self.indptr, moved, side="right") - 1]
        node = np.zeros(n_atoms, np.int32)
        node[self.sender_atom] = self.sender
        return Rows(
            self.indptr, home, self.sender_atom, node, moved, np.stack([sender, receiver, at_home])
        )

    def as_list(self) -> HostList:
        """Return this."""
        return self


class Rows(NamedTuple):
    """A list that names one receiver position per row, and what belongs to its atoms."""

    indptr: np.ndarray
    """int64 [n + 1]"""
    home: np.ndarray
    """Atom of every row, int32 [n]."""
    sender_atom: np.ndarray
    """int32 [n_slots]"""
    node: np.ndarray
    """Of every atom that sends, int32 [n_atoms]."""
    moved: np.ndarray
    """Slots whose senders have to move."""
    ends: np.ndarray
    """Sender, receiver and home of those, int32 [3, n]."""


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


class Slots(NamedTuple):
    """What the order of a list is found from; arrays are longer than needed, and int32."""

    first: Array
    """First slot of every row of the list, int64 [n_nodes + 1]; behind the last, their number."""
    home: Array
    """Atom of every row [n_nodes]."""
    row_node: Array
    """Node of every row [n_nodes]."""
    sender_atom: Array
    """[n_slots]; moved senders follow the atoms."""
    atom_node: Array
    """Node of every atom, and of every moved sender."""
    n_species: Array


class Arrangement:
    """A list on the host, its nodes in the passes' order.

    Args:
        rows: The list.
        species: Of own nodes, then of those of other ranks, among the present ones.
        capacity: Nodes of each species that there is room for.
        sizes: Lengths of arrays.
        tile: Nodes per tile.
    """

    def __init__(
        self, rows: Rows, species: np.ndarray, capacity: Sequence[int], sizes: Sizes, tile: int
    ) -> None:
        n_own = len(rows.home)
        self.n_nodes = sum(capacity)
        self.tiles: tuple[Tile, ...] = tuple(make_tiles(capacity, 1, tile))
        own = _places(species[:n_own], np.cumsum(capacity) - capacity)
        remote = self.n_nodes + np.arange(len(species) - n_own)
        self.place = np.concatenate([own, remote]).astype(np.int32)
        lengths = np.zeros(self.n_nodes + 1, np.int64)
        lengths[1 + own] = np.diff(rows.indptr)
        self.first = np.cumsum(lengths)
        self.node_atom = np.zeros(self.n_nodes, np.int32)
        self.node_atom[own] = rows.home
        self.species = np.zeros(self.n_nodes + sizes.remote, np.int32)
        self.species[: self.n_nodes] = np.repeat(np.arange(len(capacity)), capacity)
        self.species[self.place] = species
        self.mask = np.zeros(self.n_nodes)
        self.mask[own] = 1.0
        self.moved = Moved(*(_long(a, sizes.moved) for a in rows.ends))
        self.slots = self._slots(rows, sizes, len(capacity))

    def _slots(self, rows: Rows, sizes: Sizes, n_species: int) -> Slots:
        n_own, n_moved = len(rows.home), len(rows.moved)
        first = np.full(self.n_nodes + 1, len(rows.sender_atom))
        first[: len(rows.indptr)] = rows.indptr
        sender_atom = _long(rows.sender_atom, sizes.slots)
        sender_atom[rows.moved] = sizes.atoms + np.arange(n_moved)
        node = np.zeros(sizes.atoms + sizes.moved, np.int32)
        node[: len(rows.node)] = rows.node
        node[sizes.atoms : sizes.atoms + n_moved] = rows.node[rows.ends[0]]
        home, row_node = (_long(a, self.n_nodes) for a in (rows.home, self.place[:n_own]))
        atom_node = self.long_place()[node]
        return Slots(first, home, row_node, sender_atom, atom_node, np.int32(n_species))

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


def sort_edges(x: Array, slots: Slots, species: Array, moved: Moved) -> tuple[Array, Array]:
    """Order edges by receiver, species of the sender, and distance at positions ``x``.

    The passes need the first two. Neighbors in the third share rows of the radial tables.

    Args:
        x: [n_atoms, 3] in Å.
        slots: The list.
        species: Of nodes.
        moved: Senders that follow the atoms.

    Returns:
        ``slot_atom`` and ``slot_node`` of :class:`mace_stream.jax.inference.calls.Nodes`.
    """
    slot = jnp.arange(len(slots.sender_atom))
    after = jnp.searchsorted(slots.first, slot, side="right", method="scan_unrolled")
    row = jnp.clip(after - 1, 0, len(slots.home) - 1)
    sender = slots.atom_node[slots.sender_atom]
    places = moved.appended(x)
    vec = places[slots.home[row]] - places[slots.sender_atom]
    is_slot = slot < slots.first[-1]
    length = jnp.where(is_slot, jnp.sqrt(jnp.sum(vec**2, axis=1)), 0.0)
    longest = jnp.maximum(jnp.max(length), 1e-300)
    run = slots.row_node[row].astype(jnp.float64) * slots.n_species + species[sender]
    key = jnp.where(is_slot, run + length / (2 * longest), jnp.inf)
    order = jnp.argsort(key)
    return slots.sender_atom[order], sender[order]


def at_least_one(capacity: Sequence[int]) -> list[int]:
    """Make room for a node where there is none: programs have arrays with something in them."""
    return list(capacity) if sum(capacity) else [padded(1), *capacity[1:]]
