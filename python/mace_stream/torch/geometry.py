"""Edges: their grouping, lengths and angles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mace_stream.couplings import spherical_harmonics
from mace_stream.torch.conv import edge_receiver

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
    """Receiver-major edges of one structure, float64.

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


def make_graph(edge_vec: Tensor, indptr: Tensor, sender: Tensor, species: Tensor) -> Graph:
    """Note the receiver of every edge, and cut the edges into chunks where that pays."""
    chunks = make_chunks(indptr, sender)
    return Graph(edge_vec, indptr, sender, edge_receiver(indptr), species, chunks)


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
