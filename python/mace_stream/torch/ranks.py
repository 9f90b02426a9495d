"""Rows of node features between ranks, on a GPU through host memory or straight from its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from mace_stream.halo import Halo


class RankRows:
    """Exchanges rows [n, width] of any dtype, one exchange at a time.

    On a GPU, what is launched between :meth:`start` and :meth:`finish` runs meanwhile.

    Args:
        halo: Which rows, and how they travel.
        device: Where the rows live.
    """

    def __init__(self, halo: Halo, device: torch.device) -> None:
        self.sent = torch.tensor(halo.sent, dtype=torch.int64, device=device)
        self.peers = [
            slice(*ends) for ends in pairwise(accumulate([0, *halo.peer_counts.tolist()]))
        ]
        """Rows of ``sent`` that go to each peer; no node is twice in one of them."""
        self.n_received = halo.n_received
        self._route = choose_route(halo, device)

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
        self._home = home
        self._route.start(rows, len(self.sent) if home else self.n_received, home)

    def finish(self) -> Tensor:
        """Return the rows that came, on the device.

        Raises:
            ValueError: Another rank has failed, or MPI does not send GPU memory correctly.
        """
        return self._route.finish()


class Route(Protocol):
    """A way from the memory of one rank's device to that of another's."""

    def start(self, rows: Tensor, n_in: int, home: bool) -> None:
        """Begin an exchange, in which ``n_in`` rows will come."""

    def finish(self) -> Tensor:
        """Return the rows that came."""


def choose_route(halo: Halo, device: torch.device) -> Route:
    """Return the way that rows of a device go."""
    if device.type != "cuda":
        return OnHost(halo)
    through_host = ThroughHost(halo, _Copies(device))
    return Compared(halo, Direct(halo, device), through_host) if halo.gpu_aware else through_host


class OnHost:
    """Rows are where MPI reads and writes."""

    def __init__(self, halo: Halo) -> None:
        self._halo = halo

    def start(self, rows: Tensor, n_in: int, home: bool) -> None:
        """Begin an exchange, in which ``n_in`` rows will come."""
        self._out, self._in = rows, rows.new_empty(n_in, rows.shape[1])
        _post(self._halo, rows, self._in, home)

    def finish(self) -> Tensor:
        """Return the rows that came."""
        self._halo.finish()
        return self._in


class ThroughHost:
    """Rows are copied to page-locked memory, sent from there, and received likewise."""

    def __init__(self, halo: Halo, copies: _Copies) -> None:
        self._halo, self._copies = halo, copies

    def start(self, rows: Tensor, n_in: int, home: bool) -> None:
        """Begin an exchange, in which ``n_in`` rows will come."""
        self._home, self._out = home, self._copies.to_host(rows)
        self._in = torch.empty(n_in, rows.shape[1], dtype=rows.dtype, pin_memory=True)

    def finish(self) -> Tensor:
        """Return the rows that came, on the device."""
        self._copies.wait()
        _post(self._halo, self._out, self._in, self._home)
        self._halo.finish()
        return self._copies.to_device(self._in)


class Direct:
    """MPI reads and writes the memory of the device.

    Args:
        halo: One that takes addresses of the device.
        device: A GPU.
        empty: Makes the memory that is received into, as ``torch.empty``.
    """

    def __init__(
        self, halo: Halo, device: torch.device, empty: Callable[..., Tensor] = torch.empty
    ) -> None:
        self._halo, self._device, self._empty = halo, device, empty
        self._ready = torch.cuda.Event()

    def start(self, rows: Tensor, n_in: int, home: bool) -> None:
        """Begin an exchange, in which ``n_in`` rows will come.

        MPI knows no streams: it must not read before ``rows`` are there, nor write before earlier
        work has left the memory that is received into. Bytes that never come are those of NaN.
        """
        self._home, self._out = home, rows
        self._in = self._empty(n_in, rows.shape[1], dtype=rows.dtype, device=rows.device)
        self._in.view(torch.uint8).fill_(255)
        self._ready.record(torch.cuda.current_stream(self._device))

    def finish(self) -> Tensor:
        """Return the rows that came."""
        self._ready.synchronize()
        _post(self._halo, self._out, self._in, self._home)
        self._halo.finish()
        return self._in


class Compared:
    """One route, and a second one as well while the halo asks for a comparison."""

    def __init__(self, halo: Halo, route: Route, other: Route) -> None:
        self._halo, self._route, self._other = halo, route, other

    def start(self, rows: Tensor, n_in: int, home: bool) -> None:
        """Begin an exchange, in which ``n_in`` rows will come."""
        self._job = rows, n_in, home
        self._route.start(*self._job)

    def finish(self) -> Tensor:
        """Return the rows that came.

        Raises:
            ValueError: They differ from those of the other route in any bit.
        """
        came = self._route.finish()
        if self._halo.compares():
            self._other.start(*self._job)
            check_same_bits(came, self._other.finish())
        return came


def check_same_bits(came: Tensor, right: Tensor) -> None:
    """Raise ``ValueError`` where rows straight from GPU memory are not what was sent."""
    n_wrong = int((came.view(torch.uint8) != right.view(torch.uint8)).any(dim=1).sum())
    if n_wrong:
        raise ValueError(
            f"gpu_aware yes: MPI does not send GPU memory correctly: {n_wrong} of {len(right)} "
            "rows are not those that came through host memory; leave gpu_aware out, and see the "
            "manual of this MPI for what it needs to send GPU memory"
        )


def _post(halo: Halo, out: Tensor, into: Tensor, home: bool) -> None:
    halo.start(out.data_ptr(), into.data_ptr(), out.shape[1] * out.element_size(), home)


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
