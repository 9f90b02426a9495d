"""Edges: padding of the receiver rows, lengths and angles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mace_stream.couplings import spherical_harmonics

EDGE_BLOCK = 8
"""Rows of the edge list are padded to a multiple of this, see :func:`pad_rows`."""


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
    return Graph(
        edge_vec=null.index_copy(0, place, edge_vec),
        indptr=padded,
        sender=sender.new_zeros(n_edges).index_copy(0, place, sender),
        receiver=edge_receiver(padded),
        species=species,
    )


def lengths_and_harmonics(edge_vec: Tensor, l_max: int) -> tuple[Tensor, Tensor]:
    """Return lengths [n_edges, 1] in Å and harmonics [n_edges, (l_max + 1)**2]."""
    length = torch.linalg.vector_norm(edge_vec, dim=1)
    x, y, z = (edge_vec / length[:, None]).unbind(1)
    return length[:, None], torch.stack(spherical_harmonics(x, y, z, l_max), dim=1)
