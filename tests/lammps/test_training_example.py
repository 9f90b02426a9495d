"""The whole example of training: both frameworks, and their models in LAMMPS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.cell import Cell
from lammps_models import Model
from lammps_support import evaluate

from mace_stream import io

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "training"
sys.path.insert(0, str(FOLDER))

import fit_torch  # noqa: E402
import titanium  # noqa: E402
from train_titanium import read_losses  # noqa: E402

SPLINE = 1e-7
"""What radial tables, the pair style's default, may differ from the exact path, eV and eV/Å."""
SIZES = ["--structures", "4", "--batch", "2", "--channels", "4", "--epochs", "10"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder in which the example has run, and what it has printed last."""
    pytest.importorskip("jax", reason="needs JAX: pip install 'mace-stream[jax]'")
    folder = tmp_path_factory.mktemp("training")
    for command in ("prepare", "torch", "jax", "compare"):
        words = [sys.executable, FOLDER / "train_titanium.py", command, folder, *SIZES]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
        assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.slow
def test_both_frameworks_learn_the_same(run):
    folder, printed = run
    curves = [read_losses(folder / f"{name}.csv") for name in ("torch", "jax")]
    assert np.abs(curves[1] / curves[0] - 1).max() < 1e-6
    assert curves[0][-2:].mean() < 0.5 * curves[0][:2].mean()
    assert "largest relative difference of the loss, JAX to torch" in printed


@pytest.fixture(scope="module")
def upright(run):
    """The first structure, turned as LAMMPS wants it, and as a batch with its labels."""
    data = np.load(run[0] / "data.npz")
    cell, turn = Cell(data["cells"][0]).standard_form()
    positions = data["positions"][0] @ turn.T
    atoms = Atoms(f"Ti{len(positions)}", positions, cell=cell, pbc=True)
    labels = data["energies"][:1], data["forces"][:1] @ turn.T
    return atoms, titanium.make_batches([atoms], *labels, 6.0, 1)[0]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_lammps_runs_what_was_trained(run, upright, framework):
    """The trained file gives the forces of its own model, which are nearer to the labels."""
    folder, _ = run
    atoms, batch = upright
    trained, initial = folder / f"{framework}.mace", folder / "initial.mace"
    found = evaluate(atoms, Model(trained, None))
    energies, forces = fit_torch.energies_and_forces(fit_torch.MACE.from_file(trained), batch)
    assert np.abs(found.forces - forces.detach().numpy()).max() < SPLINE
    assert abs(found.energy - energies.item()) < SPLINE * len(atoms)
    _, before = fit_torch.energies_and_forces(fit_torch.MACE.from_file(initial), batch)
    lack = [np.abs(x - batch.forces).mean() for x in (found.forces, before.detach().numpy())]
    assert lack[0] < lack[1]
    assert io.load(trained)[0] == io.load(initial)[0]
