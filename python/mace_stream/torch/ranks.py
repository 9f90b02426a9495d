"""Rows of node features between ranks, from the device and back through host memory."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor

from mace_stream.halo import Halo


class RankRows:
    """Exchanges rows [n, width] of any dtype; one at a time.

    Args:
        halo: Which rows, and how they travel between hosts' memories.
        device: Where the rows live.
    """

    def __init__(self, halo: Halo, device: torch.device) -> None:
        self._start, self._finish = halo.start, halo.finish
        self.device = device
        self.sent = torch.tensor(halo.sent, dtype=torch.int64, device=device)
        ends = halo.peer_counts.cumsum().tolist()
        self.peers = [slice(*ends_) for ends_ in pairwise([0, *ends])]
        """Rows of ``sent`` that go to each peer: no node is twice in one of them."""
        self.n_received = halo.n_received
        self.seconds = 0.0
        """That this rank spent on exchanges and could do nothing else."""

    def forward(self, rows: Tensor) -> Tensor:
        """Send the rows of ``sent`` nodes [n_sent, width]; return those of other ranks' nodes."""
        self.start(rows, home=False)
        return self.finish()

    def reverse(self, rows: Tensor) -> Tensor:
        """Send rows of other ranks' nodes home; return what comes for the ``sent`` nodes."""
        self.start(rows, home=True)
        return self.finish()

    def start(self, rows: Tensor, *, home: bool) -> None:
        """Begin an exchange of contiguous ``rows``."""
        begin = perf_counter()
        n = len(self.sent) if home else self.n_received
        self._out = rows.cpu()
        self._in = torch.empty(n, *rows.shape[1:], dtype=rows.dtype)
        row_bytes = rows.element_size() * rows.shape[1]
        self._start(self._out.data_ptr(), self._in.data_ptr(), row_bytes, home)
        self.seconds += perf_counter() - begin

    def finish(self) -> Tensor:
        """Return the rows that came, on the device."""
        begin = perf_counter()
        self._finish()
        received = self._in.to(self.device)
        self.seconds += perf_counter() - begin
        return received


class GhostFeatures:
    """The exchange that the layers of :class:`mace_stream.torch.MACE` know."""

    def __init__(self, ranks: RankRows) -> None:
        self._ranks = ranks

    def forward(self, features: Tensor) -> Tensor:
        """Append the features of other ranks' nodes to [n_own, dim, C]."""
        return _GhostRows.apply(features, self._ranks)


class _GhostRows(torch.autograd.Function):
    """Rows of own nodes, followed by those of other ranks' nodes; the gradient travels back."""

    @staticmethod
    def forward(ctx, features, ranks):  # noqa: ANN001, ANN205
        """Map [n_own, dim, C] to [n_own + n_received, dim, C]."""
        ctx.ranks = ranks
        rows = features.index_select(0, ranks.sent).flatten(1)
        received = ranks.forward(rows).unflatten(1, features.shape[1:])
        return torch.cat([features, received])

    @staticmethod
    def backward(ctx, bar):  # noqa: ANN001, ANN205
        """Add the cotangents of ghosts to those of their owners, peer by peer: same sums always."""
        ranks = ctx.ranks
        n_own = len(bar) - ranks.n_received
        came = ranks.reverse(bar[n_own:].flatten(1)).unflatten(1, bar.shape[1:])
        own = bar[:n_own].clone()
        for peer in ranks.peers:
            own.index_add_(0, ranks.sent[peer], came[peer])
        return own, None
