"""The host's side of a step: memory that a GPU copies by itself, and waiting."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import numpy as np
from jax import Array

from mace_stream.kernels.launching import page_locked, primary_context

NOTHING = -1.0
"""Stands in :attr:`HostArrays.arrived` until a program is done."""
POLLS = 10_000
"""Looks at :attr:`HostArrays.arrived` between two questions to JAX, about half a millisecond."""


class HostArrays(NamedTuple):
    """What a program reads and writes without arrays being handed over, float64.

    Handing positions over takes JAX 0.3 ms, a tenth of a step of 5,488 atoms on an H200.
    """

    positions: np.ndarray
    """[n_atoms, 3] in Å."""
    results: np.ndarray
    arrived: np.ndarray
    """The first result once more, [1]; it is copied after all of them, and never negative."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of positions, and of results."""
        return len(self.positions), len(self.results)

    @property
    def addresses(self) -> tuple[int, ...]:
        """A program is compiled for these."""
        return tuple(array.ctypes.data for array in self)

    @classmethod
    def of(cls, sizes: tuple[int, int], device: int) -> HostArrays:
        """Take memory for so many positions and results, for a CUDA device by number."""
        shapes = (sizes[0], 3), (sizes[1],), (1,)
        with primary_context(device):
            return cls(*map(page_locked, shapes))

    def give(self, positions: np.ndarray) -> None:
        """Leave positions for the next program, whose results are not there yet."""
        self.positions[: len(positions)] = positions
        self.arrived[0] = NOTHING

    def wait(self, array: Array) -> None:
        """Wait for the results of the program that returned ``array``, on the processor.

        JAX is asked rarely, whether the program has failed: it says so 0.2 ms late, leaves as much
        to tidy up when it is asked all the time, and a core that has slept for a step does the
        host's share of the next one at half its speed.

        Raises:
            jax.errors.JaxRuntimeError: The program has failed.
        """
        for poll in count(1):
            if self.arrived[0] != NOTHING:
                return
            if poll % POLLS == 0 and array.is_ready():
                array.block_until_ready()
