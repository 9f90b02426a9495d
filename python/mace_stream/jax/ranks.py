"""Rows of node features between ranks, out of compiled programs and back through host memory."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import io_callback

from mace_stream.halo import Halo


class RankRows:
    """Exchanges rows from within a compiled program, in the order of the program.

    The arrays of a program are larger than what is exchanged: only as many rows travel as the
    present :attr:`halo` says. A program must not be left by an exception, so that the first one is
    kept, and no rows travel after it; the host program's exchange tells the other ranks.
    """

    def __init__(self) -> None:
        self.halo: Halo | None = None
        self._error: Exception | None = None

    def take_error(self) -> Exception | None:
        """Return what went wrong since the last call, if anything did."""
        error, self._error = self._error, None
        return error

    def exchange(self, rows: Array, n_in: int, *, home: bool) -> Array:
        """Send ``rows`` [n, width] one way; return the rows that come, [n_in, width]."""
        shape = jax.ShapeDtypeStruct((n_in, rows.shape[1]), rows.dtype)
        return io_callback(partial(self._on_host, n_in, home), shape, rows, ordered=True)

    def _on_host(self, n_in: int, home: bool, rows: Array) -> np.ndarray:
        out = np.ascontiguousarray(rows)
        into = np.zeros((n_in, out.shape[1]), out.dtype)
        if self._error is None:
            try:
                row_bytes = out.shape[1] * out.itemsize
                self.halo.start(out.ctypes.data, into.ctypes.data, row_bytes, home)
                self.halo.finish()
            except Exception as error:  # noqa: BLE001 - raised again once the program has ended
                self._error = error
        return into


class GhostFeatures:
    """The exchange that the layers of :class:`mace_stream.jax.MACE` know.

    Args:
        ranks: How rows travel.
        sent: Own nodes whose rows go out, [n_sent]; a number beyond them where there is none.
        n_ghosts: Room for nodes of other ranks.
    """

    def __init__(self, ranks: RankRows, sent: Array, n_ghosts: int) -> None:
        self._ranks, self._sent, self._n_ghosts = ranks, sent, n_ghosts

    def forward(self, features: Array) -> Array:
        """Append the features of other ranks' nodes to [n_own, dim, C]."""
        return _ghost_rows(self._ranks, self._n_ghosts, features, self._sent)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _ghost_rows(ranks: RankRows, n_ghosts: int, features: Array, sent: Array) -> Array:
    """Rows of own nodes, followed by those of other ranks' nodes; the gradient travels back."""
    shape = features.shape[1:]
    rows = features.at[sent].get(mode="fill", fill_value=0)
    received = ranks.exchange(rows.reshape(len(sent), -1), n_ghosts, home=False)
    return jnp.concatenate([features, received.reshape(n_ghosts, *shape)])


def _forward(ranks: RankRows, n_ghosts: int, features: Array, sent: Array) -> tuple[Array, Array]:
    return _ghost_rows(ranks, n_ghosts, features, sent), sent


def _backward(ranks: RankRows, n_ghosts: int, sent: Array, bar: Array) -> tuple[Array, None]:
    """Add the cotangents of ghosts to those of their owners."""
    own, ghosts = bar[: len(bar) - n_ghosts], bar[len(bar) - n_ghosts :]
    came = ranks.exchange(ghosts.reshape(n_ghosts, -1), len(sent), home=True)
    return own.at[sent].add(came.reshape(len(sent), *bar.shape[1:]), mode="drop"), None


_ghost_rows.defvjp(_forward, _backward)
