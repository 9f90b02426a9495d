"""From a neighbor list of fixed size to the edges within the cutoff, of fixed size as well."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.jax.geometry import BEYOND, spread_padding
from mace_stream.jax.ops import edge_receiver


class List(NamedTuple):
    """A neighbor list in arrays with room for more: ``n`` entries count, receiver after receiver.

    All are [n_listed] but ``n``; atoms are rows of the positions.
    """

    receiver: Array
    sender: Array
    receiver_atom: Array
    sender_atom: Array
    n: Array


class Edges(NamedTuple):
    """Edges within r_max: vectors [n_edges, 3] in Å, row pointers, senders and receivers."""

    vec: Array
    indptr: Array
    sender: Array
    receiver: Array


def padded_list(
    indptr: np.ndarray,
    sender: np.ndarray,
    receiver_atom: np.ndarray,
    sender_atom: np.ndarray,
    n_listed: int,
) -> List:
    """Bring a list into arrays of length ``n_listed``, on the host."""
    receiver = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    arrays = [np.zeros(n_listed, np.int32) for _ in range(4)]
    values = (receiver, sender, receiver_atom, sender_atom)
    for array, value in zip(arrays, values, strict=True):
        array[: len(value)] = value
    return List(*arrays, np.int64(len(sender)))


def inside(x: Array, pairs: List, r_max: float) -> tuple[Array, Array]:
    """Vectors of all entries at positions ``x`` [n_atoms, 3], and which are shorter than r_max.

    A vector with NaN in it counts as shorter: the result then says that something is wrong.
    """
    vec = x[pairs.receiver_atom] - x[pairs.sender_atom]
    outside = jnp.sum(vec**2, axis=1) >= r_max**2
    return vec, (jnp.arange(len(vec)) < pairs.n) & ~outside


def edges_within(x: Array, pairs: List, r_max: float, n_receivers: int, n_edges: int) -> Edges:
    """Keep the entries shorter than ``r_max``, in their order, and fill up to ``n_edges``.

    What fills up is shared out among the receivers, at the end of their rows.
    """
    vec, kept = inside(x, pairs, r_max)
    counts = jnp.zeros(n_receivers, jnp.int64).at[pairs.receiver].add(kept)
    ends = jnp.concatenate([jnp.zeros(1, jnp.int64), jnp.cumsum(counts)])
    before = spread_padding(n_edges - ends[-1], n_receivers)
    slot = jnp.cumsum(kept) - 1 + before[pairs.receiver]
    entry = (
        jnp.full(n_edges, len(vec))
        .at[jnp.where(kept, slot, n_edges)]
        .set(jnp.arange(len(vec)), mode="drop")
    )
    filling = jnp.asarray([0.0, 0.0, BEYOND * r_max])
    far = (entry == len(vec))[:, None]
    vec = jnp.where(far, filling, vec.at[entry].get(mode="fill", fill_value=0))
    sender = pairs.sender.at[entry].get(mode="fill", fill_value=0)
    indptr = ends + before
    return Edges(vec, indptr, sender, edge_receiver(indptr, n_edges))
