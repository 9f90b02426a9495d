"""Single precision, and what a host program does to torch, Python and newton settings."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from lammps_cells import hcp, mixed_cell, triclinic_cell
from lammps_models import mace_torch, single_forces
from lammps_support import SAME, Setup, assert_reference, evaluate, prepare

from mace_stream import io

ENERGY_32 = 5e-6
"""eV/atom in single precision."""
FORCE_32 = 5e-4
"""eV/Å in single precision."""


@pytest.mark.parametrize("kind", ["full", "half"])
def test_single_precision(model, kind):
    potential = model("plain")
    truth = mace_torch(potential, mixed_cell())
    result = evaluate(mixed_cell(), potential, style=f"precision single neighbors {kind}")
    assert abs(result.energy - truth.energy) / 12 < ENERGY_32
    assert np.abs(result.forces - truth.forces).max() < FORCE_32
    scale = np.abs(truth.virial).max()
    assert np.abs(result.virial - truth.virial).max() / scale < 1e-3
    assert np.abs(result.forces - truth.forces).max() > 1e-9, "this should not be double precision"


YARDSTICK = {
    "plain": mixed_cell,
    "zbl": mixed_cell,
    "three_layers": triclinic_cell,
    "one_layer": mixed_cell,
    "ti": lambda: hcp((3, 3, 2), rattle=0.1),
}


@pytest.mark.parametrize("radial", ["spline", "exact"])
@pytest.mark.parametrize("name", YARDSTICK)
def test_single_precision_errs_no_more_than_mace_torch(model, name, radial):
    """RMS error of forces, over a few structures, since a single one scatters."""
    errors = np.zeros(2)
    for seed in range(4):
        atoms = YARDSTICK[name]()
        atoms.rattle(0.03, seed=seed)
        exact = mace_torch(model(name), atoms).forces
        ours = evaluate(atoms, model(name), style=f"precision single radial {radial}").forces
        theirs = single_forces(model(name), atoms)
        errors += [np.mean((forces - exact) ** 2) for forces in (ours, theirs)]
    print(f"{name} {radial}: RMS errors of forces {np.sqrt(errors / 4)} eV/Å, ours and theirs")
    assert 0 < errors[0] <= errors[1]


def test_large_isolated_energies_are_kept_in_double_precision(model, tmp_path):
    """R26: float32 has seven digits, and all-electron E0 alone would use them up."""
    potential = model("plain")
    spec, tensors = io.load(potential.path)
    tensors["atomic_energies"] = tensors["atomic_energies"] - 200_000.0
    deep = replace(potential, path=tmp_path / "deep.mace")
    io.save(deep.path, spec, tensors)
    energy = evaluate(mixed_cell(), deep, style="precision single").energy + 12 * 200_000.0
    truth = mace_torch(potential, mixed_cell()).energy
    assert abs(energy - truth) / 12 < ENERGY_32
    assert abs(float(np.float32(truth / 12 - 200_000)) + 200_000 - truth / 12) > 10 * ENERGY_32


@pytest.fixture
def default_dtype():
    """Give the process its default dtype back."""
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_the_default_dtype_of_torch_has_no_part_in_it(model, default):
    """R27."""
    truth = mace_torch(model("plain"), mixed_cell())
    torch.set_default_dtype(default)
    assert evaluate(mixed_cell(), model("plain")).gap(truth) < SAME
    assert evaluate(mixed_cell(), model("plain"), style="precision single").gap(truth) < 1e-3
    assert torch.get_default_dtype() == default


@pytest.mark.parametrize("newton", ["off on", "on off"])
@pytest.mark.parametrize("kind", ["full", "half"])
def test_newton_set_for_pairs_and_bonds_apart(model, kind, newton):
    """R42."""
    usual = evaluate(mixed_cell(), model("plain"))
    result = evaluate(mixed_cell(), model("plain"), style=f"neighbors {kind}", newton=newton)
    assert result.gap(usual) < SAME


def test_a_second_python_thread(model, lmp):
    """R10: LAMMPS lets go of the GIL, the pair style takes it, and neither waits forever."""
    setup = Setup(mixed_cell(), model("plain"), extra=("timestep 0.0005", "fix 1 all nve"))
    prepare(lmp, setup)
    stop, turns = threading.Event(), []

    def work() -> None:
        while not stop.wait(0.001):
            turns.append(sum(range(100)))

    thread = threading.Thread(target=work)
    thread.start()
    lmp.command("run 20")
    stop.set()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert len(turns) > 0
    assert_reference(lmp, setup)


def test_lammps_in_a_second_python_thread(model, lmp):
    setup = Setup(mixed_cell(), model("plain"))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            prepare(lmp, setup)
            lmp.command("run 2")
            assert_reference(lmp, setup)
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=120)
    assert not thread.is_alive()
    assert failures == []
