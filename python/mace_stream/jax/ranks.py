"""Rows of node features between ranks, out of compiled programs and back through host memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import io_callback

from mace_stream.halo import Halo

T = TypeVar("T")


@dataclass(frozen=True)
class _Exchange:
    """What a program waits for."""

    out: np.ndarray
    into: np.ndarray
    home: bool
    ended: Event


class RankRows:
    """Exchanges rows from within a compiled program, in the order of the program.

    The arrays of a program are larger than what is exchanged: only as many rows travel as the
    present :attr:`halo` says. Messages belong to the thread of the host program, so that compiled
    programs run in another one. They must not be left by an exception: the first one is kept, no
    rows travel after it, and the host program's exchange tells the other ranks.
    """

    def __init__(self) -> None:
        self.halo: Halo | None = None
        self._error: BaseException | None = None
        self._wanted: SimpleQueue[_Exchange | None] = SimpleQueue()
        self._worker = ThreadPoolExecutor(1, "mace_stream.jax")

    def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` in a thread of its own, and exchange its rows in this one.

        Raises:
            ValueError: Another rank has failed.
        """
        future = self._worker.submit(function)
        future.add_done_callback(lambda _: self._wanted.put(None))
        while (exchange := self._next()) is not None:
            self._do(exchange)
        error, self._error = self._error, None
        if error is not None:
            raise error
        return future.result()

    def _next(self) -> _Exchange | None:
        while True:
            try:
                return self._wanted.get()
            except KeyboardInterrupt as error:  # noqa: PERF203
                self._error = self._error or error

    def _do(self, exchange: _Exchange) -> None:
        out, into = exchange.out, exchange.into
        try:
            if self._error is None:
                row_bytes = out[0].nbytes
                self.halo.start(out.ctypes.data, into.ctypes.data, row_bytes, exchange.home)
                self.halo.finish()
        except BaseException as error:  # noqa: BLE001 - raised again once the program has ended
            self._error = error
        finally:
            exchange.ended.set()

    def exchange(self, rows: Array, n_in: int, *, home: bool) -> Array:
        """Send ``rows`` [n, width] one way; return the rows that come, [n_in, width].

        They travel as words of 32 bits: callbacks run where JAX may not know float64.
        """
        words = jax.lax.bitcast_convert_type(rows, jnp.uint32)
        shape = jax.ShapeDtypeStruct((n_in, *words.shape[1:]), words.dtype)
        came = io_callback(partial(self._wait, n_in, home), shape, words, ordered=True)
        return jax.lax.bitcast_convert_type(came, rows.dtype)

    def _wait(self, n_in: int, home: bool, rows: Array) -> np.ndarray:
        out = np.ascontiguousarray(rows)
        into = np.zeros((n_in, *out.shape[1:]), out.dtype)
        exchange = _Exchange(out, into, home, Event())
        self._wanted.put(exchange)
        exchange.ended.wait()
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
