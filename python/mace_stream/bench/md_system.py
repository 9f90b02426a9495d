"""Hexagonal titanium of any size, built of one small pattern of displaced atoms.

The pattern is repeated without a change. Energy per atom and forces at step 0 are therefore those
of the pattern alone, so that a slow and exact reference of some hundred atoms checks a million.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

ATOMIC_NUMBER, SYMBOL, MASS = 22, "Ti", 47.867
A, C = 2.95, 4.68
"""Lattice constants in Å."""
CELL = (A, math.sqrt(3) * A, C)
"""The orthogonal cell of four atoms, in Å."""
BASIS = np.array([[0, 0, 0], [1 / 2, 1 / 2, 0], [1 / 2, 5 / 6, 1 / 2], [0, 1 / 3, 1 / 2]])
THERMAL = 0.08
"""Root mean square displacement per direction at 300 K in Å: B = 8 π² u² of about 0.5 Å²."""
PATTERN_LENGTH = 8.0
"""Least length of the pattern in Å where the box is longer."""
PATTERN_ATOMS = 512
ASPECT = 2.0
"""Largest ratio of two sides of the box."""


@dataclass(frozen=True)
class System:
    """A periodic box of titanium.

    Atoms are ordered by copy of the pattern (z slowest, x fastest), then within the pattern, which
    is how LAMMPS' ``replicate`` numbers them.
    """

    pattern: np.ndarray
    """Positions [n_pattern, 3] in Å."""
    pattern_cell: np.ndarray
    """Sides [3] in Å."""
    copies: tuple[int, int, int]

    @property
    def n_atoms(self) -> int:
        """Number of atoms in the box."""
        return len(self.pattern) * math.prod(self.copies)

    @property
    def cell(self) -> np.ndarray:
        """Sides [3] of the box in Å."""
        return self.pattern_cell * np.array(self.copies)

    def positions(self) -> np.ndarray:
        """Return the positions [n_atoms, 3] in Å."""
        places = np.unravel_index(np.arange(math.prod(self.copies)), self.copies, order="F")
        shifts = np.stack(places, axis=1) * self.pattern_cell
        return (shifts[:, None] + self.pattern).reshape(-1, 3)

    def pattern_alone(self) -> System:
        """Return the box that holds the pattern once."""
        return System(self.pattern, self.pattern_cell, (1, 1, 1))

    def edges_per_atom(self, r_max: float) -> float:
        """Return the mean number of neighbors within ``r_max`` Å."""
        from ase.neighborlist import primitive_neighbor_list

        receiver = primitive_neighbor_list(
            "i", (True,) * 3, np.diag(self.pattern_cell), self.pattern, r_max
        )
        return len(receiver) / len(self.pattern)

    def write_pattern(self, path: Path) -> None:
        """Write the pattern as a data file of LAMMPS."""
        sides = [
            f"0 {side:.17g} {axis}lo {axis}hi"
            for side, axis in zip(self.pattern_cell, "xyz", strict=True)
        ]
        atoms = [
            f"{number} 1 {x:.17g} {y:.17g} {z:.17g}"
            for number, (x, y, z) in enumerate(self.pattern, 1)
        ]
        lines = ["titanium", "", f"{len(atoms)} atoms", "1 atom types", "", *sides]
        lines += ["", "Masses", "", f"1 {MASS}", "", "Atoms # atomic", "", *atoms, ""]
        path.write_text("\n".join(lines))


def make_system(n_atoms: int, temperature: float = 300.0, seed: int = 0) -> System:
    """Return the box whose number of atoms is nearest to ``n_atoms``, the most cubic of those.

    Args:
        n_atoms: At least 4.
        temperature: In K; decides how far atoms are displaced.
        seed: Of the displacements.
    """
    shape = nearest_shape(n_atoms)
    inner = np.array([*map(_pattern_length, shape, CELL)])
    cells = np.array(list(product(*map(range, inner))))
    positions = ((cells[:, None] + BASIS) * CELL).reshape(-1, 3)
    amplitude = THERMAL * np.sqrt(temperature / 300)
    positions += np.random.default_rng(seed).normal(0, amplitude, positions.shape)
    copies = tuple(int(count) for count in np.array(shape) // inner)
    sides = inner * CELL
    return System(positions % sides, sides, copies)


def nearest_shape(n_atoms: int) -> tuple[int, int, int]:
    """Return the numbers of cells along x, y and z.

    Raises:
        ValueError: There are fewer atoms than a cell has.
    """
    if n_atoms < len(BASIS):
        raise ValueError(f"sizes: expected at least {len(BASIS)} atoms, got {n_atoms}")
    n_cells = n_atoms / len(BASIS)
    edge = np.cbrt(n_cells * np.prod(CELL))
    limit = [max(1, int(np.ceil(ASPECT * edge / side))) for side in CELL]
    shapes = (
        (x, y, z)
        for x, y in product(range(1, limit[0] + 1), range(1, limit[1] + 1))
        for z in {max(1, int(n_cells / (x * y))), int(n_cells / (x * y)) + 1}
    )
    return min(shapes, key=lambda shape: _badness(shape, n_atoms))


def _badness(shape: tuple[int, int, int], n_atoms: int) -> tuple[bool, int, float]:
    """Boxes that are long, or of a large pattern, come last; then the count decides."""
    sides = [count * side for count, side in zip(shape, CELL, strict=True)]
    aspect = max(sides) / min(sides)
    n_pattern = len(BASIS) * math.prod(map(_pattern_length, shape, CELL))
    unfit = aspect > ASPECT or n_pattern > PATTERN_ATOMS
    return unfit, abs(len(BASIS) * math.prod(shape) - n_atoms), aspect


def _pattern_length(count: int, side: float) -> int:
    """Return the smallest divisor of ``count`` cells that is long enough, or ``count``."""
    fits = (n for n in range(1, count) if count % n == 0 and n * side >= PATTERN_LENGTH)
    return next(fits, count)
