"""Small structures with names, the same in every test.

Example:
    atoms = structure("sic_rattled", elements=(22, 8))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from ase import Atoms
from ase.build import bulk

HCP_TI = {"a": 2.934, "c": 4.676}
"""Lattice constants of the shipped titanium model, in Å."""


def structure(name: str, elements: Sequence[int] | None = None) -> Atoms:
    """A structure by name; with ``elements``, its atoms get these atomic numbers in turn.

    Raises:
        ValueError: There is no such structure; the message lists those there are.
    """
    if name not in STRUCTURES:
        raise ValueError(f"structure: expected one of {', '.join(STRUCTURES)}, got {name}")
    atoms = STRUCTURES[name]()
    if elements is not None:
        atoms.numbers = np.resize(elements, len(atoms))
    return atoms


def _rattled(atoms: Atoms, amplitude: float, seed: int) -> Atoms:
    atoms.positions += np.random.default_rng(seed).normal(0, amplitude, atoms.positions.shape)
    return atoms


def _hcp_ti() -> Atoms:
    return bulk("Ti", "hcp", **HCP_TI)


def _hcp_ti_rattled() -> Atoms:
    return _rattled(_hcp_ti().repeat((3, 3, 2)), 0.1, seed=1)


def _one_atom_cell() -> Atoms:
    """One atom in a triclinic cell much smaller than any cutoff: all its edges are images."""
    return Atoms("Ti", cell=[[2.7, 0, 0], [0.9, 2.5, 0], [0.4, 0.7, 2.6]], pbc=True)


def _sic() -> Atoms:
    return bulk("SiC", "zincblende", a=4.36, cubic=True)


def _sic_rattled() -> Atoms:
    return _rattled(_sic(), 0.1, seed=2)


def _triclinic() -> Atoms:
    cell = [[5.2, 0, 0], [1.3, 4.9, 0], [-0.8, 1.1, 5.6]]
    fractions = np.random.default_rng(3).permutation(
        [[0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5], [0.5, 0.5, 0.5]]
    )
    return _rattled(Atoms("SiC3Si", scaled_positions=fractions, cell=cell, pbc=True), 0.08, seed=4)


def _slab() -> Atoms:
    """Periodic in two directions only."""
    atoms = _rattled(_hcp_ti().repeat((2, 2, 2)), 0.05, seed=5)
    atoms.center(vacuum=6.0, axis=2)
    atoms.pbc = (True, True, False)
    return atoms


def _cluster() -> Atoms:
    """A free molecule, not periodic."""
    positions = [[0, 0, 0], [1.6, 0.2, 0], [-0.3, 1.7, 0.4], [0.5, 0.6, 1.8], [1.9, 1.8, 1.5]]
    return Atoms("SiCSiC2", positions=positions)


def _dimer() -> Atoms:
    return Atoms("Ti2", positions=[[0, 0, 0], [1.3, 1.1, 0.9]])


def _isolated_atom() -> Atoms:
    return Atoms("Ti", positions=[[1.0, 2.0, 3.0]])


STRUCTURES: dict[str, Callable[[], Atoms]] = {
    "hcp_ti": _hcp_ti,
    "hcp_ti_rattled": _hcp_ti_rattled,
    "one_atom_cell": _one_atom_cell,
    "sic": _sic,
    "sic_rattled": _sic_rattled,
    "triclinic": _triclinic,
    "slab": _slab,
    "cluster": _cluster,
    "dimer": _dimer,
    "isolated_atom": _isolated_atom,
}
