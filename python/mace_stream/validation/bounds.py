"""How far LAMMPS may be from the reference."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """Largest allowed differences.

    The virial's difference is relative to its largest component, but to at least
    :attr:`virial_floor` times the number of atoms: a relaxed crystal has next to none.
    """

    energy: float
    """eV/atom, of every atom's energy and of the total energy per atom."""
    force: float
    """eV/Å, of every component."""
    virial: float
    """Relative, of every component."""
    virial_floor: float = 0.1
    """eV/atom; about 1 GPa in a metal."""


BOUNDS = {
    # Rounding of float64 sums over some hundred edges stays well below these.
    "double": Bounds(energy=1e-9, force=1e-8, virial=1e-8),
    # float32 carries 7 digits, TF32 only 3: this tells them apart.
    "single": Bounds(energy=1e-5, force=1e-4, virial=1e-4),
}
