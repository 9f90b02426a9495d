"""Named bounds of comparisons with mace-torch in float64; nobody tunes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """Largest differences allowed."""

    energy: float
    """eV per atom."""
    force: float
    """eV/Å, per component."""
    virial: float
    """Relative to the largest component."""


EXACT = Tolerance(energy=1e-9, force=1e-8, virial=1e-8)
"""Same formulas, same numbers, both in float64: only rounding is left."""

BACKENDS = Tolerance(energy=1e-10, force=1e-9, virial=1e-9)
"""torch and JAX with the same convolution kernels, both in float64."""
