"""Edges: padding of the receiver rows, lengths and angles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mace_stream.couplings import spherical_harmonics

EDGE_BLOCK = 8
"""Rows of the edge list are padded to a multiple of this, see :func:`pad_rows`."""


EDGES_PER_CHUNK = 2048
"""On a CPU, arrays that exist per edge are made for this many edges at a time: they then stay in
cache, and the allocator reuses them instead of asking the system for fresh pages."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive receivers, their edges, and the nodes that send to them.

    ``nodes`` is None where ``sender`` counts all nodes of the graph.
    """

    n_edges: int
    indptr: Tensor
    nodes: Tensor | None
    sender: Tensor


@dataclass(frozen=True)
class Graph:
    """Receiver-major edges of one structure, float64, padded.

    ``edge_vec`` [n_edges, 3] in Å, ``indptr`` [n_receivers + 1], ``sender`` and ``receiver``
    [n_edges], ``species`` [n_nodes] (ghost nodes follow the receivers).
    """

    edge_vec: Tensor
    indptr: Tensor
    sender: Tensor
    receiver: Tensor
    species: Tensor
    chunks: tuple[Chunk, ...]

    @property
    def n_receivers(self) -> int:
        """Number of rows; nodes beyond it only send."""
        return len(self.indptr) - 1


def edge_receiver(indptr: Tensor) -> Tensor:
    """Return the row of every edge, shape ``[n_edges]``."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff())


def padded_indptr(indptr: Tensor, block: int) -> Tensor:
    """Row pointers after every row is lengthened to a multiple of ``block``."""
    counts = (indptr.diff() + block - 1) // block * block
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def pad_rows(
    edge_vec: Tensor, indptr: Tensor, sender: Tensor, species: Tensor, r_max: float
) -> Graph:
    """Lengthen every receiver's row to a multiple of ``EDGE_BLOCK`` edges.

    Sums over edges then become small dense matrix products. The edges added are ``2 r_max`` long,
    so they contribute exactly nothing. Order is kept; no edges and no nodes are valid.
    """
    padded = padded_indptr(indptr, EDGE_BLOCK)
    receiver = edge_receiver(indptr)
    place = torch.arange(len(sender), device=sender.device) + (padded - indptr)[receiver]
    n_edges = int(padded[-1])
    null = edge_vec.new_tensor([2.0 * r_max, 0.0, 0.0]).expand(n_edges, 3)
    sender = sender.new_zeros(n_edges).index_copy(0, place, sender)
    return Graph(
        edge_vec=null.index_copy(0, place, edge_vec),
        indptr=padded,
        sender=sender,
        receiver=edge_receiver(padded),
        species=species,
        chunks=make_chunks(padded, sender),
    )


def make_chunks(indptr: Tensor, sender: Tensor) -> tuple[Chunk, ...]:
    """Cut a graph into runs of receivers with about ``EDGES_PER_CHUNK`` edges each."""
    if len(sender) <= EDGES_PER_CHUNK or indptr.device.type != "cpu":
        return (Chunk(len(sender), indptr, None, sender),)
    marks = torch.arange(EDGES_PER_CHUNK, len(sender), EDGES_PER_CHUNK)
    rows = torch.searchsorted(indptr, marks).tolist()
    chunks = []
    for first, last in pairwise(dict.fromkeys([0, *rows, len(indptr) - 1])):
        start, stop = indptr[first], indptr[last]
        nodes, local = torch.unique(sender[start:stop], return_inverse=True)
        chunks.append(Chunk(len(local), indptr[first : last + 1] - start, nodes, local))
    return tuple(chunks)


def gather_senders(node_feats: Tensor, chunks: tuple[Chunk, ...]) -> tuple[Tensor, ...]:
    """Features of each chunk's senders; the gradient is summed into one array."""
    if chunks[0].nodes is None:
        return (node_feats,)
    return _GatherNodes.apply(node_feats, *(chunk.nodes for chunk in chunks))


class _GatherNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, node_feats, *nodes):  # noqa: ANN001, ANN002, ANN205
        ctx.save_for_backward(*nodes)
        ctx.shape = node_feats.shape
        return tuple(node_feats.index_select(0, index) for index in nodes)

    @staticmethod
    def backward(ctx, *bars):  # noqa: ANN001, ANN002, ANN205
        node_bar = bars[0].new_zeros(ctx.shape)
        for index, bar in zip(ctx.saved_tensors, bars, strict=True):
            if torch.is_grad_enabled():
                node_bar = node_bar.index_add(0, index, bar)
            else:
                node_bar.index_add_(0, index, bar)
        return node_bar, *(None for _ in ctx.saved_tensors)


def lengths_and_harmonics(
    edge_vec: Tensor, l_max: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return float64 lengths [n_edges, 1] in Å and harmonics [n_edges, (l_max + 1)**2]."""
    length = torch.linalg.vector_norm(edge_vec, dim=1)
    x, y, z = (edge_vec / length[:, None]).to(dtype).unbind(1)
    return length[:, None], torch.stack(spherical_harmonics(x, y, z, l_max), dim=1)
