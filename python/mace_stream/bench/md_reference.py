"""mace-torch's results of step 0, kept on disk: they depend on model and pattern only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mace_stream import io
from mace_stream.bench.md_models import cache_directory
from mace_stream.bench.md_system import System


@dataclass(frozen=True)
class Reference:
    """Exact results of one pattern."""

    name: str
    energy: float
    """Per atom, eV."""
    forces: np.ndarray
    """[n_pattern, 3] eV/Å."""


def place_of(name: str, model: Path, head: str, system: System) -> Path:
    """Return the file for the results of a model on a system's pattern.

    The name of the reference counts, with its version, and every byte of model and pattern.
    """
    digest = hashlib.sha256(f"{name}|{head}|{io.sha256(model)}".encode())
    digest.update(system.pattern.tobytes() + system.pattern_cell.tobytes())
    folder = cache_directory() / "references"
    folder.mkdir(exist_ok=True)
    return folder / f"{digest.hexdigest()[:32]}.npz"


def read(path: Path, name: str) -> Reference:
    """Return what is kept there."""
    with np.load(path) as kept:
        return Reference(name, float(kept["energy"]), kept["forces"])


def keep(path: Path, reference: Reference) -> None:
    """Write a reference; a file is there whole or not at all."""
    part = path.with_suffix(".part.npz")
    np.savez(part, energy=reference.energy, forces=reference.forces)
    part.replace(path)
