"""Functions of a distance as piecewise polynomials on one uniform grid, and how fine it must be.

Between two knots a function is the polynomial that has its values and first n derivatives at both
(two-point Hermite interpolation): cubic for n = 1, quintic for n = 2. The derivative is taken from
the same polynomial, so that a force is the exact gradient of the tabulated energy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RadialFunction = Callable[[np.ndarray, int], Sequence[np.ndarray]]
"""Maps distances [n] and an order up to 2 to the function and its derivatives up to that order,
each [n, families, width]. Errors are measured relative to the largest number of a family."""

LADDER = (
    *(32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768),
    *(1024, 1280, 1536, 2048, 2560, 3072, 4096),
)
"""Numbers of intervals that are tried, in turn."""

CAUTION = 0.7
"""Of the number of intervals that the order of the interpolation promises, to be tried next."""

INTERVALS = 128
"""Intervals that are measured at a time, to bound memory."""

PROBES = np.array([0.12, 0.21, 0.28, 0.39, 0.5, 0.63, 0.73, 0.79, 0.93])
"""Places between two knots where the error is measured. That of the value is largest in the
middle, that of the slope at 0.28 and 0.72 (quintic) or 0.21 and 0.79 (cubic)."""


@dataclass(frozen=True)
class Tabulated:
    """A function of the distance, and what is read of it.

    ``projection`` [width, parts, channels] makes ``parts`` families of each of the function's. As
    it is linear, polynomials may be projected in place of values, and errors are measured of what
    comes out. None: the function itself is read.
    """

    function: RadialFunction
    projection: np.ndarray | None = None

    def project(self, x: np.ndarray) -> np.ndarray:
        """Map [n, families, width] to [n, families * parts, channels]."""
        if self.projection is None:
            return x
        width, _, channels = self.projection.shape
        flat = x.reshape(-1, width) @ self.projection.reshape(width, -1)
        return flat.reshape(len(x), -1, channels)


class TableError(ValueError):
    """A function of the distance has no table that is good or small enough."""


@dataclass(frozen=True)
class RadialGrid:
    """``n_knots`` equal intervals from ``r_0`` to ``r_max``, in Å."""

    r_0: float
    r_max: float
    n_knots: int

    @property
    def h(self) -> float:
        """Length of one interval in Å."""
        return (self.r_max - self.r_0) / self.n_knots

    @property
    def inverse_step(self) -> float:
        """Intervals per Å."""
        return self.n_knots / (self.r_max - self.r_0)

    @property
    def knots(self) -> np.ndarray:
        """Ends of the intervals, [n_knots + 1]; the last is ``r_max`` exactly."""
        return np.linspace(self.r_0, self.r_max, self.n_knots + 1)


@dataclass(frozen=True)
class Refinement:
    """A grid that is fine enough, and what was measured on it."""

    grid: RadialGrid
    value_error: float
    """Worst error of the value, relative to the largest value of its family."""
    slope_error: float
    """The same of the derivative."""


def hermite_coefficients(derivatives: Sequence[np.ndarray], h: float) -> np.ndarray:
    """Return polynomials in t = (r - knot) / h that have these derivatives at both ends.

    Args:
        derivatives: Function, first, .. n-th derivative at the knots, each [n_knots + 1, ...].
        h: Distance between knots.

    Returns:
        Coefficients of 1, t, t^2 .. in every interval, [n_knots, 2n + 2, ...].
    """
    n = len(derivatives) - 1
    scaled = [np.asarray(d) * h**k for k, d in enumerate(derivatives)]
    ends = np.stack([d[:-1] for d in scaled] + [d[1:] for d in scaled], axis=1)
    flat = np.linalg.inv(_conditions(n)) @ ends.reshape(*ends.shape[:2], -1)
    return flat.reshape(ends.shape)


def _conditions(n: int) -> np.ndarray:
    """Derivatives 0..n at t = 0 and at t = 1 of the monomials 1, t .. t^(2n+1)."""
    matrix = np.zeros((2 * n + 2, 2 * n + 2))
    for power in range(2 * n + 2):
        factor = 1.0
        for order in range(n + 1):
            if power == order:
                matrix[order, power] = factor
            matrix[n + 1 + order, power] = factor
            factor *= power - order
    return matrix


def knot_derivatives(function: RadialFunction, grid: RadialGrid, order: int) -> list[np.ndarray]:
    """Derivatives 0..order at the knots; exactly zero at the last, where the cutoff ends."""
    derivatives = [np.array(d) for d in function(grid.knots, order)]
    for d in derivatives:
        d[-1] = 0.0
    return derivatives


def tabulate(function: RadialFunction, grid: RadialGrid, order: int) -> np.ndarray:
    """Coefficients of ``function``, [n_knots, 2 order + 2, families, width]."""
    return hermite_coefficients(knot_derivatives(function, grid, order), grid.h)


def refine(
    functions: Mapping[str, Tabulated],
    r_max: float,
    order: int,
    bound: float,
    r_0: float = 0.5,
) -> Refinement:
    """Find the coarsest grid on which every value and every slope is within ``bound``.

    Args:
        functions: What to tabulate, by names for messages. All share the grid.
        r_max: End of the grid, where all functions and their derivatives are zero.
        order: Derivatives matched at the knots: 1 (cubic) or 2 (quintic).
        bound: Largest error allowed, relative to the largest number of its family.
        r_0: Start of the grid in Å.

    Raises:
        ValueError: 4096 intervals are not enough.
    """
    names = list(functions)
    enough = 0
    for n_knots in LADDER:
        if n_knots < min(enough, LADDER[-1]):
            continue
        grid = RadialGrid(r_0, r_max, n_knots)
        name, worst = _measure_all({name: functions[name] for name in names}, grid, order, bound)
        if worst.max() <= bound:
            return Refinement(grid, *worst.tolist())
        names.sort(key=lambda other, worst_name=name: other != worst_name)
        enough = CAUTION * n_knots * (worst.max() / bound) ** (1 / (2 * order + 1))
    raise TableError(
        f"radial table: {name} has a relative error of {worst.max():.1e} with {n_knots} intervals"
        f" from {r_0:g} to {r_max:g} Å, more than {bound:g}; use `radial exact`"
    )


def _measure_all(
    functions: Mapping[str, Tabulated], grid: RadialGrid, order: int, bound: float
) -> tuple[str, np.ndarray]:
    """Worst errors of all functions, or those of the first that exceeds ``bound``; and its name."""
    worst = np.zeros(2)
    for name, function in functions.items():
        errors = measure(function, grid, order)
        if not errors.max() <= bound:
            return name, errors
        worst = np.maximum(worst, errors)
    return "", worst


def measure(item: Tabulated, grid: RadialGrid, order: int) -> np.ndarray:
    """Worst relative error of value and of slope, [2], at places between the knots."""
    coefficients = tabulate(item.function, grid, order)
    slopes = coefficients[:, 1:] * np.arange(1, 2 * order + 2)[:, None, None] * grid.inverse_step
    worst = np.zeros(2)
    for k, polynomials in enumerate((coefficients, slopes)):
        largest = np.abs(item.project(polynomials[:, 0])).max(axis=(0, 2))
        error = np.zeros_like(largest)
        for start in range(0, grid.n_knots, INTERVALS):
            mine = slice(start, min(start + INTERVALS, grid.n_knots))
            exact = item.function((grid.knots[mine, None] + PROBES * grid.h).reshape(-1), k)[k]
            difference = item.project(_at_probes(polynomials[mine]) - exact)
            error = np.maximum(error, np.abs(difference).max(axis=(0, 2)))
        worst[k] = (error / np.where(largest > 0, largest, 1.0)).max()
    return worst


def _at_probes(polynomials: np.ndarray) -> np.ndarray:
    """Polynomials [n, n_coef, ...] at every probe of their intervals, [n * n_probes, ...]."""
    n, n_coef, *rest = polynomials.shape
    powers = PROBES[:, None] ** np.arange(n_coef)
    return (powers @ polynomials.reshape(n, n_coef, -1)).reshape(-1, *rest)
