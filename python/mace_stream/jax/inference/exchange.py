"""What one convolution reads of other ranks' nodes, and the cotangents that go back."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from mace_stream.jax.ranks import RankRows


class RowsOfNodes:
    """Exchanges rows of node arrays [dim, n, C] from within a program.

    Args:
        ranks: How rows travel.
        sent: Own nodes whose rows go out, [n_sent]; a number beyond them where there is none.
        n_nodes: Own nodes, padding included.
        n_remote: Room for nodes of other ranks.
    """

    def __init__(self, ranks: RankRows, sent: Array, n_nodes: int, n_remote: int) -> None:
        self._ranks, self._sent = ranks, sent
        self._n_nodes, self._n_remote = n_nodes, n_remote

    def forward(self, up: Array) -> Array:
        """Append the features of other ranks' nodes to [dim, n_nodes, C]."""
        dim, _, channels = up.shape
        rows = up.at[:, self._sent].get(mode="fill", fill_value=0).transpose(1, 0, 2)
        out = rows.reshape(len(self._sent), dim * channels)
        came = self._ranks.exchange(out, self._n_remote, home=False)
        remote = came.reshape(self._n_remote, dim, channels).transpose(1, 0, 2)
        return jnp.concatenate([up, remote], axis=1)

    def home(self, up_bar: Array) -> Array:
        """Add the cotangents of other ranks' nodes to those of their owners, [dim, n_nodes, C]."""
        dim, _, channels = up_bar.shape
        own, remote = up_bar[:, : self._n_nodes], up_bar[:, self._n_nodes :]
        out = remote.transpose(1, 0, 2).reshape(self._n_remote, dim * channels)
        came = self._ranks.exchange(out, len(self._sent), home=True)
        rows = came.reshape(len(self._sent), dim, channels).transpose(1, 0, 2)
        return own.at[:, self._sent].add(rows, mode="drop")
