"""Small structures of the elements of the tiny models, in lower triangular cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ase import Atoms


def mixed_cell(seed: int = 1) -> Atoms:
    """Twelve atoms of all four elements in an orthogonal cell shorter than 2 r_max."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid([0, 1], [0, 1], [0, 1, 2], indexing="ij"), -1).reshape(-1, 3)
    cell = np.array([5.0, 5.4, 7.2])
    positions = (grid + 0.25) / [2, 2, 3] * cell + rng.normal(0, 0.15, grid.shape)
    symbols = rng.permutation(["H", "C", "O", "Si"] * 3)
    return Atoms(symbols, positions, cell=cell, pbc=True)


def triclinic_cell() -> Atoms:
    """The mixed cell, sheared."""
    atoms = mixed_cell(seed=2)
    cell = atoms.cell.array.copy()
    cell[1, 0], cell[2, 0], cell[2, 1] = 1.1, -0.8, 0.9
    atoms.set_cell(cell, scale_atoms=True)
    return atoms


def carbide() -> Atoms:
    """Two elements in a sheared cell thinner than the cutoff."""
    atoms = triclinic_cell()
    atoms.symbols = ["Si", "C"] * 6
    return atoms


def cluster() -> Atoms:
    """Seven atoms without periodicity, in a box that holds them."""
    rng = np.random.default_rng(3)
    positions = 1.7 * np.array(
        [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [1, 1, 1]]
    )
    positions = positions + rng.normal(0, 0.15, positions.shape) + 5.0
    return Atoms("SiCOHHCO", positions, cell=[12, 12, 12], pbc=False)


def lone_atom(symbol: str = "O") -> Atoms:
    """One atom far from its images."""
    return Atoms(symbol, [[5, 6, 7]], cell=[15, 15, 15], pbc=True)


def hcp(repeat: Sequence[int] = (1, 1, 1), rattle: float = 0.0) -> Atoms:
    """HCP titanium, two atoms per cell."""
    a, c = 2.934, 4.676
    cell = [[a, 0, 0], [-a / 2, a * np.sqrt(0.75), 0], [0, 0, c]]
    fractions = [[1 / 3, 2 / 3, 1 / 4], [2 / 3, 1 / 3, 3 / 4]]
    atoms = Atoms("Ti2", scaled_positions=fractions, cell=cell, pbc=True).repeat(repeat)
    atoms.positions += np.random.default_rng(4).normal(0, 1, atoms.positions.shape) * rattle
    return atoms


def one_atom_cell() -> Atoms:
    """One titanium atom whose neighbors are all images of itself."""
    cell = [[2.7, 0, 0], [0.9, 2.5, 0], [0.4, 0.7, 2.6]]
    return Atoms("Ti", [[0.3, 0.2, 0.1]], cell=cell, pbc=True)
