"""Rows of node features between ranks, from the device and back through host memory."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from mace_stream.halo import Halo


class RankRows:
    """Exchanges rows [n, width] of any dtype, one exchange at a time.

    On a GPU rows are copied on a stream of their own: what is launched between :meth:`start` and
    :meth:`finish` runs meanwhile.

    Args:
        halo: Which rows, and how they travel between the hosts' memories.
        device: Where the rows live.
    """

    def __init__(self, halo: Halo, device: torch.device) -> None:
        self._halo = halo
        self._device = device
        self.sent = torch.tensor(halo.sent, dtype=torch.int64, device=device)
        self.peers = [
            slice(*ends) for ends in pairwise(accumulate([0, *halo.peer_counts.tolist()]))
        ]
        """Rows of ``sent`` that go to each peer; no node is twice in one of them."""
        self.n_received = halo.n_received
        self._copies = _Copies(device) if device.type == "cuda" else None

    def forward(self, rows: Tensor) -> Tensor:
        """Send the rows of ``sent`` nodes [n_sent, width]; return those of other ranks' nodes."""
        self.start(rows, home=False)
        return self.finish()

    def reverse(self, rows: Tensor) -> Tensor:
        """Send rows of other ranks' nodes home; return what comes for the ``sent`` nodes."""
        self.start(rows, home=True)
        return self.finish()

    def start(self, rows: Tensor, *, home: bool) -> None:
        """Begin an exchange of contiguous ``rows``, which stay as they are until its end."""
        n_in = len(self.sent) if home else self.n_received
        self._in = torch.empty(
            n_in, rows.shape[1], dtype=rows.dtype, pin_memory=self._copies is not None
        )
        self._row_bytes, self._home = rows.shape[1] * rows.element_size(), home
        if self._copies is None:
            self._out = rows
            self._begin()
        else:
            self._out = self._copies.to_host(rows)

    def finish(self) -> Tensor:
        """Return the rows that came, on the device."""
        if self._copies is not None:
            self._copies.wait()
            self._begin()
        self._halo.finish()
        return self._in if self._copies is None else self._copies.to_device(self._in)

    def _begin(self) -> None:
        out, into = self._out.data_ptr(), self._in.data_ptr()
        self._halo.start(out, into, self._row_bytes, self._home)


class _Copies:
    """Copies between a GPU and page-locked memory beside its other work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._arrived = torch.cuda.Event()

    def to_host(self, rows: Tensor) -> Tensor:
        """Begin a copy, which is there after :meth:`wait`."""
        host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(rows, non_blocking=True)
            self._arrived.record(self._stream)
        rows.record_stream(self._stream)
        return host

    def wait(self) -> None:
        """Wait for the last copy to the host."""
        self._arrived.synchronize()

    def to_device(self, host: Tensor) -> Tensor:
        """Begin a copy that later work of the current stream waits for."""
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            rows = host.to(self._device, non_blocking=True)
        current.wait_stream(self._stream)
        rows.record_stream(current)
        return rows


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
        ctx.ranks = ranks
        rows = features.index_select(0, ranks.sent).flatten(1)
        received = ranks.forward(rows).unflatten(1, features.shape[1:])
        return torch.cat([features, received])

    @staticmethod
    def backward(ctx, bar):  # noqa: ANN001, ANN205
        """Add the cotangents of ghosts to those of their owners, peer by peer: same sums always."""
        ranks = ctx.ranks
        n_own = len(bar) - ranks.n_received
        rows = bar[n_own:].flatten(1).contiguous()
        came = ranks.reverse(rows).unflatten(1, bar.shape[1:])
        own = bar[:n_own].clone()
        for peer in ranks.peers:
            own.index_add_(0, ranks.sent[peer], came[peer])
        return own, None
