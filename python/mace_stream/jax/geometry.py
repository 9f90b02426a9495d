"""Edges: their grouping, lengths and angles; and arrays that are longer than a structure needs."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.couplings import spherical_harmonics
from mace_stream.jax.ops import edge_receiver

BEYOND = 2.0
"""Edges that contribute nothing are given this length, in units of ``r_max``."""


@dataclass(frozen=True)
class Graph:
    """Receiver-major edges of one structure, float64.

    ``edge_vec`` [n_edges, 3] in Å, ``indptr`` [n_receivers + 1], ``sender`` and ``receiver``
    [n_edges], ``species`` [n_nodes] (ghost nodes follow the receivers). ``is_node`` [n_nodes] tells
    nodes from places that only pad the arrays; those have species 0 here.
    """

    edge_vec: Array
    indptr: Array
    sender: Array
    receiver: Array
    species: Array
    is_node: Array

    @property
    def n_receivers(self) -> int:
        """Number of rows; nodes beyond it only send."""
        return len(self.indptr) - 1


def make_graph(edge_vec: Array, indptr: Array, sender: Array, species: Array) -> Graph:
    """Note the receiver of every edge, and which places hold nodes."""
    receiver = edge_receiver(indptr, len(sender))
    is_node = species >= 0
    return Graph(edge_vec, indptr, sender, receiver, jnp.where(is_node, species, 0), is_node)


def lengths_and_harmonics(
    edge_vec: Array, r_max: float, l_max: int, dtype: np.dtype
) -> tuple[Array, Array]:
    """Return float64 lengths [n_edges, 1] in Å and harmonics [n_edges, (l_max + 1)**2].

    Vectors of length ``r_max`` or more are first replaced by one that is longer still, so that they
    have no derivative whatever they are. A vector of zero or with NaN in it is no such vector, and
    gives NaN.
    """
    beyond = jnp.sum(edge_vec**2, axis=1, keepdims=True) >= r_max**2
    vec = jnp.where(beyond, jnp.asarray([0.0, 0.0, BEYOND * r_max]), edge_vec)
    length = jnp.sqrt(jnp.sum(vec**2, axis=1, keepdims=True))
    x, y, z = (vec / length).astype(dtype).T
    return length, jnp.stack(spherical_harmonics(x, y, z, l_max), axis=1)


def spread_padding(n_pads: Array | int, n_receivers: int, xp: object = jnp) -> Array:
    """Return how many pads lie before each receiver's row, [n_receivers + 1], shared out evenly."""
    return xp.arange(n_receivers + 1) * n_pads // max(1, n_receivers)


def pad_graph(
    edge_vec: np.ndarray,
    indptr: np.ndarray,
    sender: np.ndarray,
    species: np.ndarray,
    *,
    r_max: float,
    n_edges: int,
    n_receivers: int,
    n_ghosts: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fill the arguments of :class:`mace_stream.jax.MACE` up to given sizes, on the host.

    Shapes are fixed when a function is compiled; structures that are padded to the same sizes share
    one compilation. Pads are edges longer than ``r_max``, shared out among the rows, and nodes of
    species -1; they contribute exactly nothing, to values and to derivatives.

    Args:
        edge_vec: ``[n, 3]`` Å, like the next three as for :class:`mace_stream.jax.MACE`.
        indptr: ``[r + 1]``.
        sender: ``[n]``.
        species: ``[r + g]``.
        r_max: Cutoff of the model in Å.
        n_edges: Number of edges wanted.
        n_receivers: Number of receivers wanted.
        n_ghosts: Number of nodes wanted that only send.

    Returns:
        The same four arrays, of the sizes wanted. Node ``i`` stays where it is; ghosts move behind
        the padded receivers.

    Raises:
        ValueError: The structure is larger than a size that is wanted.
    """
    real = {"edges": len(sender), "receivers": len(indptr) - 1}
    real["ghosts"] = len(species) - real["receivers"]
    wanted = {"edges": n_edges, "receivers": n_receivers, "ghosts": n_ghosts}
    for name, count in real.items():
        if count > wanted[name] or (name == "edges" and n_edges > count and not n_receivers):
            raise ValueError(f"n_{name}: expected at least {count}, got {wanted[name]}")
    counts = np.zeros(n_receivers, dtype=np.int64)
    counts[: real["receivers"]] = np.diff(indptr)
    before = spread_padding(n_edges - real["edges"], n_receivers, np)
    slot = np.arange(real["edges"]) + before[np.repeat(np.arange(n_receivers), counts)]
    vec = np.tile([0.0, 0.0, BEYOND * r_max], (n_edges, 1))
    vec[slot] = edge_vec
    senders = np.zeros(n_edges, dtype=np.int64)
    senders[slot] = sender + (sender >= real["receivers"]) * (n_receivers - real["receivers"])
    kinds = np.full(n_receivers + n_ghosts, -1, dtype=np.int64)
    kinds[: real["receivers"]] = species[: real["receivers"]]
    kinds[n_receivers : n_receivers + real["ghosts"]] = species[real["receivers"] :]
    return vec, np.concatenate([[0], np.cumsum(counts)]) + before, senders, kinds
