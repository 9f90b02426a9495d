"""What one convolution reads of other ranks' nodes, and the cotangents that go back."""

from __future__ import annotations

import torch
from torch import Tensor

from mace_stream.torch.ranks import RankRows


class FeatureExchange:
    """Rows of ``up`` and ``up_bar`` [dim, n_senders, C] between ranks.

    Args:
        ranks: Which nodes are shared.
        up: What the convolution reads.
        up_bar: Its cotangent.
        place: Where each node of the pair style lies.
        n_nodes: Own nodes, padding included; those of other ranks follow one by one.
    """

    def __init__(
        self, ranks: RankRows, up: Tensor, up_bar: Tensor, place: Tensor, n_nodes: int
    ) -> None:
        self._ranks, self._up, self._up_bar = ranks, up, up_bar
        self._dim, n_senders, self._channels = up.shape
        component = torch.arange(self._dim, device=up.device) * n_senders
        self._sent = (place[ranks.sent][:, None] + component).flatten()
        self._remote = slice(n_nodes, n_nodes + ranks.n_received)

    def send(self) -> None:
        """Send features of own nodes to the ranks that need them."""
        rows = self._flat(self._up).index_select(0, self._sent)
        self._ranks.start(rows.view(len(self._ranks.sent), self._width), home=False)

    def receive(self) -> None:
        """Put features of other ranks' nodes into their place."""
        self._of_remote(self._up).copy_(self._unpacked(self._ranks.finish()))

    def send_home(self) -> None:
        """Send cotangents of other ranks' nodes to their owners."""
        rows = self._of_remote(self._up_bar).contiguous()
        self._ranks.start(rows.view(self._ranks.n_received, self._width), home=True)

    def receive_home(self) -> None:
        """Add what came for own nodes, peer by peer: the same sums in every run."""
        target, came = self._flat(self._up_bar), self._ranks.finish().view(-1, self._channels)
        for peer in self._ranks.peers:
            rows = slice(peer.start * self._dim, peer.stop * self._dim)
            target.index_add_(0, self._sent[rows], came[rows])

    @property
    def _width(self) -> int:
        return self._dim * self._channels

    def _flat(self, array: Tensor) -> Tensor:
        return array.view(-1, self._channels)

    def _of_remote(self, array: Tensor) -> Tensor:
        """Rows of other ranks' nodes as they travel, [n_received, dim, C]."""
        return array[:, self._remote].transpose(0, 1)

    def _unpacked(self, rows: Tensor) -> Tensor:
        return rows.view(self._ranks.n_received, self._dim, self._channels)
