"""The host's side of a step: memory that a GPU copies by itself, waiting, lack of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from jax import Array

from mace_stream.evaluation import is_out_of_memory
from mace_stream.jax.placement import Placement
from mace_stream.kernels.launching import page_locked, primary_context


class HostArrays(NamedTuple):
    """What a program reads and writes without arrays being handed over, float64.

    Handing positions over takes JAX 0.3 ms, a tenth of a step of 5,488 atoms on an H200.
    """

    positions: np.ndarray
    """[n_atoms, 3] in Å."""
    results: np.ndarray

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of positions, and of results."""
        return len(self.positions), len(self.results)

    @property
    def addresses(self) -> tuple[int, int]:
        """A program is compiled for these."""
        return self.positions.ctypes.data, self.results.ctypes.data

    @classmethod
    def of(cls, sizes: tuple[int, int], device: int) -> HostArrays:
        """Take memory for so many positions and results, for a CUDA device by number."""
        with primary_context(device):
            return cls(page_locked((sizes[0], 3)), page_locked((sizes[1],)))


def wait(array: Array, *, alone: bool) -> None:
    """Wait until an array is there, without giving up the processor where no other thread needs it.

    A core that has slept for a step does the host's share of the next one at half its speed.
    """
    while alone and not array.is_ready():
        pass
    array.block_until_ready()


@contextmanager
def explained(placement: Placement, tile: int) -> Iterator[None]:
    """Turn a failed allocation into an error that says what to type.

    Raises:
        ValueError: Memory has run out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(
            f"out of memory on {placement.device_name}; use fewer atoms, precision single, or add "
            f"the keyword: tile N, with N below {tile} ({error})"
        ) from error
