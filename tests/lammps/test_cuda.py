"""The whole model on a GPU, in LAMMPS: equal to the CPU in double precision, close in single."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lammps_cells import lone_atom, mixed_cell, triclinic_cell
from lammps_models import mace_torch
from lammps_support import Setup, evaluate, run_program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
CELLS = {"mixed": mixed_cell, "triclinic": triclinic_cell, "lone": lone_atom}
ENERGY = 1e-9
"""eV/atom between CPU and GPU in double precision."""
FORCE = 1e-8
"""eV/Å likewise."""


@pytest.mark.parametrize("conv", ["streaming", "standard"])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_double_precision_equals_the_cpu(model, cell, conv):
    cpu = evaluate(cell(), model("plain"), style="device cpu precision double")
    gpu = evaluate(cell(), model("plain"), style=f"device cuda precision double conv {conv}")
    assert abs(gpu.energy - cpu.energy) / len(cell()) < ENERGY
    assert np.abs(gpu.forces - cpu.forces).max() < FORCE
    assert np.abs(gpu.virial - cpu.virial).max() < FORCE
    assert np.abs(gpu.node_energy - cpu.node_energy).max() < ENERGY


def test_single_precision_errs_about_as_much_as_on_the_cpu(model):
    """On the CPU the error is held to that of mace-torch in float32 (tests/python)."""
    potential = model("plain")
    exact = mace_torch(potential, mixed_cell()).forces
    cpu, gpu = (
        evaluate(mixed_cell(), potential, style=f"device {device} precision single").forces
        for device in ("cpu", "cuda")
    )
    error, yardstick = (np.sqrt(np.mean((forces - exact) ** 2)) for forces in (gpu, cpu))
    assert 0 < error <= 2 * yardstick


def test_a_planted_wrong_layer_is_seen(model):
    """The comparison above tells models apart that differ in one number."""
    gpu = evaluate(mixed_cell(), model("plain"), style="device cuda precision double")
    other = evaluate(mixed_cell(seed=2), model("plain"), style="device cpu precision double")
    assert np.abs(gpu.forces - other.forces).max() > FORCE


def test_the_default_device_is_the_gpu(model, tmp_path):
    setup = Setup(mixed_cell(), model("plain"))
    text = run_program(setup, tmp_path, "run 0").stdout
    assert torch.cuda.get_device_name() in text
    assert "single (default on cuda)" in text
