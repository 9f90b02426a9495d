"""Phonons of HCP titanium from exact second derivatives, and from displacements as a check.

    python examples/phonons/phonons_hcp_ti.py                     frequencies at M, K and A
    python examples/phonons/phonons_hcp_ti.py 0.1 0.01 0.001      and differences to displacements

Needs phonopy (pip install phonopy). With displacements in Å it also does what is usually done:
phonopy moves atoms, LAMMPS computes forces with pair_style mace/stream, and force constants are
differences of forces. Both ways use the same supercell, so only the derivatives differ.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.lammpslib import LAMMPSlib
from phonopy import Phonopy
from phonopy.structure.atoms import PhonopyAtoms

import mace_stream

MODEL = Path(__file__).resolve().parents[1] / "models" / "ti_hcp_meam.mace"
REPEAT = (5, 5, 3)
POINTS = {"Γ": (0, 0, 0), "M": (0.5, 0, 0), "K": (1 / 3, 1 / 3, 0), "A": (0, 0, 0.5)}


def titanium(repeat: tuple[int, int, int] = REPEAT) -> Phonopy:
    """The crystal at the model's lattice constants, and its supercell."""
    cell = bulk("Ti", "hcp", a=2.934, c=4.676)
    unit = PhonopyAtoms(
        symbols=cell.get_chemical_symbols(), cell=cell.cell.array, positions=cell.positions
    )
    return Phonopy(unit, np.diag(repeat), "P")


def to_ase(cell: PhonopyAtoms) -> Atoms:
    """The same atoms for ASE."""
    return Atoms(cell.symbols, cell.positions, cell=cell.cell, pbc=True)


def exact_force_constants(phonon: Phonopy) -> np.ndarray:
    """[n_primitive, n_supercell, 3, 3] in eV/Å²: rows of the Hessian of the supercell."""
    rows = phonon.primitive.p2s_map
    hessian = mace_stream.hessian(MODEL, to_ase(phonon.supercell), rows)
    return hessian.transpose(0, 2, 1, 3)


def displaced_force_constants(phonon: Phonopy, distance: float, style: str) -> np.ndarray:
    """The same from forces at displaced positions, in LAMMPS."""
    commands = [f"pair_style mace/stream {style}", f'pair_coeff * * "{MODEL}" Ti']
    calculator = LAMMPSlib(lmpcmds=commands, atom_types={"Ti": 1}, log_file=None)
    phonon.generate_displacements(distance=distance)
    forces = []
    for cell in phonon.supercells_with_displacements:
        atoms = to_ase(cell)
        atoms.calc = calculator
        forces.append(atoms.get_forces())
    phonon.forces = np.array(forces)
    phonon.produce_force_constants(calculate_full_force_constants=False)
    return phonon.force_constants


def frequencies(phonon: Phonopy, force_constants: np.ndarray) -> np.ndarray:
    """THz at the points of :data:`POINTS`, [n_points, 6]."""
    phonon.force_constants = force_constants
    phonon.run_qpoints(np.array(list(POINTS.values())))
    return phonon.get_qpoints_dict()["frequencies"]


def main(distances: list[float]) -> None:
    """Print frequencies, and a table row for every distance and radial path."""
    phonon = titanium()
    start = time.perf_counter()
    exact = exact_force_constants(phonon)
    seconds = time.perf_counter() - start
    n_atoms = len(phonon.supercell)
    print(f"{6 * n_atoms * 3} second derivatives, {n_atoms} atoms: {seconds:.1f} s")
    print(f"their sum over all atoms, which is zero: {np.abs(exact.sum(axis=1)).max():.1e} eV/Å²")
    reference = frequencies(phonon, exact)
    for name, values in zip(POINTS, reference, strict=True):
        print(f"{name}  " + "  ".join(f"{value:7.4f}" for value in values) + "  THz")
    for style in ("radial exact", "radial spline"):
        for distance in distances:
            found = displaced_force_constants(phonon, distance, style)
            largest = np.abs(found - exact).max()
            shift = np.abs(frequencies(phonon, found) - reference)[1:].max()
            print(f"{style}  {distance:g} Å  {largest:.1e} eV/Å²  {shift:.1e} THz")


if __name__ == "__main__":
    main([float(word) for word in sys.argv[1:]])
