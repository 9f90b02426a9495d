"""Structures to validate, and the boxes that LAMMPS makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import ase
import ase.io
import numpy as np

PADDING = 2.0  # Å of vacuum between an open boundary and the outermost atom


@dataclass(frozen=True)
class Frame:
    """One configuration. Lengths in Å, arrays in atom order."""

    name: str
    numbers: np.ndarray
    """Atomic numbers [n_atoms]."""
    positions: np.ndarray
    """[n_atoms, 3]"""
    cell: np.ndarray
    """[3, 3], one vector per row."""
    pbc: np.ndarray
    """[3] bool"""

    @classmethod
    def from_atoms(cls, name: str, atoms: ase.Atoms) -> Frame:
        """Take over what defines the energy of ``atoms``."""
        return cls(name, atoms.numbers.copy(), atoms.positions.copy(), atoms.cell[:], atoms.pbc)

    def to_atoms(self) -> ase.Atoms:
        """Return the same configuration for ASE."""
        return ase.Atoms(self.numbers, positions=self.positions, cell=self.cell, pbc=self.pbc)


@dataclass(frozen=True)
class Result:
    """What is compared, in the frame's own axes and atom order; eV and Å."""

    energy: float
    """Total energy."""
    node_energy: np.ndarray
    """[n_atoms]"""
    forces: np.ndarray
    """[n_atoms, 3], or [len(force_atoms), 3]"""
    virial: np.ndarray
    """[3, 3], W = sum of x f = -dE/dstrain; stress is -W/V."""
    force_atoms: np.ndarray | None = None
    """The atoms whose forces are known; ``None`` for all."""


@dataclass(frozen=True)
class LammpsBox:
    """A frame in LAMMPS' restricted axes: a along x, b in the xy plane."""

    origin: np.ndarray
    """[3]"""
    vectors: np.ndarray
    """[3, 3] lower triangular."""
    rotation: np.ndarray
    """[3, 3], takes LAMMPS' row vectors back: ``lab = lammps @ rotation``."""
    positions: np.ndarray
    """[n_atoms, 3] in LAMMPS' axes."""
    boundary: tuple[str, str, str]
    """``p`` or ``f`` for each vector."""


def read_frames(paths: Iterable[str | Path]) -> list[Frame]:
    """Read every frame of files that ASE understands.

    Raises:
        ValueError: A file is missing, unreadable or without atoms.
    """
    return [frame for path in paths for frame in _read_file(Path(path))]


def _read_file(path: Path) -> list[Frame]:
    try:
        images = ase.io.read(path, index=":")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; name a structure that ASE can read") from None
    except (ase.io.formats.UnknownFileTypeError, OSError, ValueError, LookupError) as error:
        raise ValueError(
            f"{path}: ASE cannot read it ({error}); write it as extended XYZ or CIF"
        ) from error
    if not images or any(len(atoms) == 0 for atoms in images):
        raise ValueError(f"{path}: a frame has no atoms; name a structure with atoms")
    names = [path.name] if len(images) == 1 else [f"{path.name}#{i}" for i in range(len(images))]
    return [Frame.from_atoms(*pair) for pair in zip(names, images, strict=True)]


def to_lammps_box(frame: Frame) -> LammpsBox:
    """Rotate a frame into LAMMPS' axes and give open directions a box around their atoms."""
    cell, origin = _closed_cell(frame)
    pbc = frame.pbc
    if np.linalg.det(cell) < 0:  # LAMMPS wants right-handed vectors; their order means nothing
        cell, pbc = cell[[1, 0, 2]], pbc[[1, 0, 2]]
    vectors = np.linalg.cholesky(cell @ cell.T)
    rotation = np.linalg.solve(vectors, cell)
    return LammpsBox(
        origin=origin @ rotation.T,
        vectors=vectors,
        rotation=rotation,
        positions=frame.positions @ rotation.T,
        boundary=tuple("p" if periodic else "f" for periodic in pbc),
    )


def _closed_cell(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Return (cell, origin) in which open directions are perpendicular and enclose the atoms."""
    periodic = np.flatnonzero(frame.pbc)
    cell, origin = frame.cell.astype(float).copy(), np.zeros(3)
    if len(periodic) and np.linalg.matrix_rank(cell[periodic]) < len(periodic):
        raise ValueError(f"{frame.name}: a periodic direction has no cell vector; set its cell")
    normals = _complement(cell[periodic])
    for direction, normal in zip(np.flatnonzero(~frame.pbc), normals, strict=True):
        height = frame.positions @ normal
        cell[direction] = normal * (np.ptp(height) + 2 * PADDING)
        origin += normal * (height.min() - PADDING)
    return cell, origin


def _complement(vectors: np.ndarray) -> np.ndarray:
    """Return orthonormal rows that complete ``vectors`` [k, 3] to a basis."""
    if len(vectors) == 0:
        return np.eye(3)
    return np.linalg.svd(vectors)[2][len(vectors) :]
