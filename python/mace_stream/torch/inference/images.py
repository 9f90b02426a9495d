"""Edges that a half list gives to an image of their receiver."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mace_stream.torch.inference.arrangement import Topology


@dataclass(frozen=True)
class MovedSenders:
    """Senders seen from an image of their receiver, moved along to where the receiver is.

    The passes know one position for each receiver. Where a list names several, the sender goes to
    ``x[sender] - x[receiver] + x[home]``, which leaves the edge vector as it is. All int64 [n].
    """

    sender: Tensor
    receiver: Tensor
    home: Tensor

    def __len__(self) -> int:
        return len(self.sender)

    def positions(self, x: Tensor) -> Tensor:
        """Return their positions [n, 3]."""
        return x[self.sender] - x[self.receiver] + x[self.home]


def with_one_receiver(topology: Topology, n_atoms: int) -> tuple[Topology, MovedSenders | None]:
    """Return the list with one receiver position per row, and the senders that had to move, if any.

    Those become atoms ``n_atoms``, ``n_atoms + 1`` and so on of the list returned.
    """
    lengths = topology.indptr.diff()
    starts = topology.indptr[:-1][lengths > 0]
    home = topology.receiver_atom[starts].repeat_interleave(lengths[lengths > 0])
    moved = torch.nonzero(topology.receiver_atom != home).squeeze(1)
    if not len(moved):
        return topology, None
    ends = (topology.sender_atom, topology.receiver_atom, home)
    senders = MovedSenders(*(end[moved].long() for end in ends))
    sender_atom = topology.sender_atom.clone()
    sender_atom[moved] = torch.arange(
        n_atoms, n_atoms + len(moved), dtype=sender_atom.dtype, device=sender_atom.device
    )
    return replace(topology, receiver_atom=home, sender_atom=sender_atom), senders
