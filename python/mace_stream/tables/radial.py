"""What the passes read of the radial part of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mace_stream.tables.grid import RadialGrid


@dataclass(frozen=True)
class RadialTables:
    """Radial functions of every ordered pair of present species as polynomials, float64.

    Rows are ``(receiver * S + sender) * n_knots + knot``; polynomials are in ``t``, the place
    between two knots, see :class:`RadialGrid`. Below ``grid.r_0`` nothing is tabulated; at
    ``grid.r_max`` value and slope are zero.
    """

    grid: RadialGrid
    n_coef: int
    """4 (cubic) or 6 (quintic)."""
    hidden: np.ndarray
    """First layer: features before the last product of the radial network, [rows, n_coef, H]."""
    convs: Sequence[np.ndarray | None]
    """Path weights of every later layer, [rows, paths, n_coef, C]; None for the first."""
    densities: Sequence[np.ndarray | None]
    """Of every layer with a density, [rows, n_coef]; else None."""
    value_error: float
    """Worst error measured between the knots, relative to the largest value of its kind."""
    slope_error: float
    """The same of the derivative."""

    @property
    def n_bytes(self) -> int:
        """Size in float64."""
        tables = [self.hidden, *self.convs, *self.densities]
        return sum(table.nbytes for table in tables if table is not None)

    @property
    def text(self) -> str:
        """One line for the log."""
        kind = {4: "cubic", 6: "quintic"}[self.n_coef]
        return (
            f"radial tables: {kind}, {self.grid.n_knots} intervals from {self.grid.r_0:g} to"
            f" {self.grid.r_max:g} Å; relative error {self.value_error:.1e} of values,"
            f" {self.slope_error:.1e} of derivatives"
        )
