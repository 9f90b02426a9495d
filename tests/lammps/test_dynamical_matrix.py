"""LAMMPS' ``dynamical_matrix`` (package PHONON) with the pair style, against exact derivatives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ase.data import atomic_masses
from lammps_cells import cluster, hcp, mixed_cell, triclinic_cell
from lammps_support import Setup, prepare, run_program

import mace_stream

STEP = 1e-4
"""Å, for LAMMPS' central differences."""
BOUND = 1e-6
"""Of the largest value: differences of this step are good to some 1e-8."""
ESKM = 9648.5
"""10 J/mol per eV as LAMMPS has it; 3e-6 less than the 9648.533 of the 2019 SI."""
SYSTEMS = {
    "periodic": (mixed_cell, "plain"),
    "triclinic": (triclinic_cell, "zbl"),
    "molecule": (cluster, "three_layers"),
    "titanium": (lambda: hcp((2, 2, 1), rattle=0.05), "ti"),
}


def exact(setup: Setup) -> np.ndarray:
    """Hessian over the root of the masses, [3 n, 3 n] in eV/Å² per g/mol."""
    size = 3 * len(setup.atoms)
    hessian = mace_stream.hessian(setup.model.path, setup.atoms, device="cpu")
    mass = np.repeat(atomic_masses[setup.atoms.numbers], 3)
    return hessian.reshape(size, size) / np.sqrt(np.outer(mass, mass))


def found(path) -> np.ndarray:
    """What LAMMPS wrote, lines of three numbers."""
    numbers = np.loadtxt(path)
    size = round(numbers.size**0.5)
    return numbers.reshape(size, size)


def in_lammps(lmp, setup: Setup, folder, kind: str = "regular") -> np.ndarray:
    prepare(lmp, setup)
    lmp.command(f'dynamical_matrix all {kind} {STEP} file "{folder}/dm.dat"')
    return found(folder / "dm.dat")


def gap(matrix: np.ndarray, expected: np.ndarray) -> float:
    return np.abs(matrix - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("radial", [pytest.param("exact", marks=pytest.mark.slow), "spline"])
@pytest.mark.parametrize(("cell", "name"), SYSTEMS.values(), ids=SYSTEMS)
def test_regular(model, lmp, tmp_path, cell, name, radial):
    setup = Setup(cell(), model(name), f"precision double radial {radial}")
    assert gap(in_lammps(lmp, setup, tmp_path), exact(setup)) < BOUND


def test_eskm(model, lmp, tmp_path):
    setup = Setup(mixed_cell(), model("plain"))
    matrix = in_lammps(lmp, setup, tmp_path, "eskm")
    assert gap(matrix, ESKM * exact(setup)) < BOUND


@pytest.mark.slow
def test_units_real(model, lmp, tmp_path):
    """Forces in kcal/mol/Å; eskm has units of its own."""
    setup = Setup(mixed_cell(), model("plain"), units="real")
    matrix = in_lammps(lmp, setup, tmp_path, "eskm")
    assert gap(matrix, ESKM * exact(setup)) < 1e-5


@pytest.mark.mpi
def test_two_ranks(model, tmp_path):
    setup = Setup(mixed_cell(), model("plain"))
    command = f"dynamical_matrix all regular {STEP} file dm.dat"
    done = run_program(setup, tmp_path, command, launch=("mpiexec", "-n", "2"))
    assert done.returncode == 0, done.stdout
    assert gap(found(tmp_path / "dm.dat"), exact(setup)) < BOUND


# ---- planted mistakes ----


def test_another_model_is_noticed(model, lmp, tmp_path):
    setup = Setup(mixed_cell(), model("plain"))
    matrix = in_lammps(lmp, setup, tmp_path)
    assert gap(matrix, exact(replace(setup, model=model("three_layers")))) > 100 * BOUND


def test_a_moved_atom_is_noticed(model, lmp, tmp_path):
    setup = Setup(mixed_cell(), model("plain"))
    matrix = in_lammps(lmp, setup, tmp_path)
    setup.atoms.positions[3, 1] += 1e-3
    assert gap(matrix, exact(setup)) > 100 * BOUND
