"""Compare two results and judge the differences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mace_stream.validation.bounds import Bounds
from mace_stream.validation.frames import Result


@dataclass(frozen=True)
class Difference:
    """Largest and root-mean-square difference of one quantity, against its bound."""

    quantity: str
    unit: str
    max: float
    rms: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the largest difference is within the bound; NaN is not."""
        return bool(self.max <= self.bound)


@dataclass(frozen=True)
class FrameReport:
    """The comparison of one frame."""

    name: str
    n_atoms: int
    differences: tuple[Difference, ...]
    lammps: Result
    reference: Result

    @property
    def passed(self) -> bool:
        """Whether every quantity is within its bound."""
        return all(difference.passed for difference in self.differences)


def compare(name: str, lammps: Result, reference: Result, bounds: Bounds) -> FrameReport:
    """Return the differences in energies, forces and virial.

    Raises:
        ValueError: The results have different numbers of atoms.
    """
    n_atoms = len(reference.node_energy)
    if len(lammps.forces) != n_atoms:
        raise ValueError(f"{name}: {len(lammps.forces)} atoms in LAMMPS, expected {n_atoms}")
    total = (lammps.energy - reference.energy) / n_atoms
    scale = max(np.abs(reference.virial).max(), bounds.virial_floor * n_atoms)
    virial = (lammps.virial - reference.virial) / scale
    atoms = lammps.node_energy - reference.node_energy
    forces, label = lammps.forces, "forces"
    if reference.force_atoms is not None and len(reference.force_atoms) < n_atoms:
        forces = forces[reference.force_atoms]
        label = f"forces, {len(forces)} atoms"
    return FrameReport(
        name,
        n_atoms,
        (
            _difference("energy", "eV/atom", total, bounds.energy),
            _difference("atom energies", "eV", atoms, bounds.energy),
            _difference(label, "eV/Å", forces - reference.forces, bounds.force),
            _difference("virial", "relative", virial, bounds.virial),
        ),
        lammps,
        reference,
    )


def _difference(quantity: str, unit: str, error: np.ndarray, bound: float) -> Difference:
    error = np.abs(error)
    rms = float(np.sqrt(np.mean(error**2)))
    return Difference(quantity, unit, float(np.max(error)), rms, bound)
