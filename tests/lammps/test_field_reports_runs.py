"""Runs, sums of styles and numbers of ranks that other interfaces stumbled over.

Rows of docs/field_reports.md that no other file of this folder has.
"""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import cluster, mixed_cell
from lammps_models import mace_torch
from lammps_support import (
    Setup,
    assert_reference,
    by_id,
    define,
    energies,
    evaluate,
    opened,
    prepare,
    run_lmp,
)

from mace_stream.testing import EXACT

MOVE = ("velocity all create 300 4711", "timestep 0.0002", "fix move all nve")


# ---- runs ----


def test_a_hot_cluster_that_falls_apart(model, lmp):
    """R45: atoms lose all neighbors, one after the other."""
    lines = ("velocity all create 60000 4711", "timestep 0.0005", "fix move all nve")
    atoms = cluster()
    atoms.set_cell([60, 60, 60])
    atoms.pbc = True
    setup = Setup(atoms, model("zbl"), extra=lines)
    prepare(lmp, setup)
    for _ in range(3):
        lmp.command("run 40 post no")
        end = assert_reference(lmp, setup)
    distances = end.get_all_distances(mic=True) + 9 * np.eye(7)
    assert (distances.min(axis=1) > 4.5).sum() > 3


FIXES = {
    "langevin": "fix 1 all langevin 300 300 0.05 99",
    "langevin zero": "fix 1 all langevin 300 300 0.05 99 zero yes",
    "nvt of a group": "fix 1 part nvt temp 300 300 0.05",
    "momentum": "fix 1 all momentum 1 linear 1 1 1",
    "setforce": "fix 1 part setforce 0 NULL 0",
    "spring": "fix 1 part spring tether 10 2 2 2 1",
    "temp/rescale": "fix 1 all temp/rescale 1 300 300 1 1",
}


@pytest.mark.parametrize("fix", FIXES.values(), ids=FIXES)
def test_fixes_with_new_lists_and_with_a_suffix(model, fix):
    """R92: threaded variants of LAMMPS' own styles beside ours give the same run."""
    lists = "neigh_modify every 1 delay 0 check no"
    series = []
    for suffix in ((), ("-sf", "omp")):
        with opened("none", *suffix) as lmp:
            setup = Setup(mixed_cell(), model("plain"), extra=("group part id 1:6", lists))
            prepare(lmp, setup)
            lmp.command("velocity all create 300 4711")
            nve = "part2" if "nvt" in fix else "all"
            lmp.commands_list(["group part2 id 7:12", f"fix move {nve} nve", fix])
            lmp.command("timestep 0.0002")
            series.append(energies(lmp, 20))
            assert_reference(lmp, setup, forces=False)
    np.testing.assert_allclose(series[1], series[0], rtol=0, atol=1e-9)
    assert np.ptp(series[0]) > 1e-5


def test_the_ghost_cutoff_does_not_grow_with_layers(model, tmp_path):
    """R39, R40."""
    extra = ("neighbor 1.0 bin",)
    for name in ("one_layer", "three_layers"):
        with opened(tmp_path / "log") as lmp:
            prepare(lmp, Setup(mixed_cell(), model(name), extra=extra))
            lmp.command("run 0")
        log = (tmp_path / "log").read_text()
        assert "master list distance cutoff = 5.5" in log
        assert "ghost atom cutoff = 5.5" in log


def test_too_many_neighbors_for_lammps_is_its_own_message(model, lmp):
    """R72."""
    setup = Setup(mixed_cell(), model("plain"), extra=("neigh_modify one 20 page 200",))
    prepare(lmp, setup)
    with pytest.raises(Exception, match="Neighbor list overflow, boost neigh_modify one"):
        lmp.command("run 0")


def test_the_library_interface_of_ase_needs_no_activation(model):
    """R96."""
    from ase.calculators.lammpslib import LAMMPSlib

    setup = Setup(mixed_cell(), model("plain"))
    atoms = mixed_cell()
    atoms.calc = LAMMPSlib(
        lmpcmds=[
            "pair_style mace/stream",
            f'pair_coeff * * "{setup.model.path}" {" ".join(setup.symbols())}',
        ],
        atom_types={symbol: k for k, symbol in enumerate(setup.symbols(), 1)},
        lammps_header=["units metal", "atom_style atomic", "atom_modify map array sort 0 0"],
        keep_alive=True,
        log_file=None,
    )
    for seed in (1, 5):
        atoms.positions = mixed_cell().positions
        atoms.rattle(0.05, seed=seed)
        truth = mace_torch(setup.model, atoms)
        assert abs(atoms.get_potential_energy() - truth.energy) / 12 < EXACT.energy
        np.testing.assert_allclose(atoms.get_forces(), truth.forces, rtol=0, atol=EXACT.force)
    atoms.calc.clean()


# ---- below hybrid styles ----


def test_pair_coeff_without_the_name_of_the_style(model, lmp):
    """R84: LAMMPS' own message for hybrid, ours for the style alone."""
    setup = Setup(mixed_cell(), model("plain"))
    names = f'"{setup.model.path}" {" ".join(setup.symbols())}'
    define(lmp, setup)
    lmp.command("pair_style hybrid/overlay mace/stream zbl 1.0 2.0")
    with pytest.raises(Exception, match=r"[Ee]xpected hybrid sub-style instead of"):
        lmp.command(f"pair_coeff * * {names}")
    lmp.command("pair_style mace/stream")
    with pytest.raises(Exception, match="leave the word mace/stream out"):
        lmp.command(f"pair_coeff * * mace/stream {names}")


def test_dispersion_adds_up(model, lmp):
    """R86: each part alone, and their sum."""
    setup = Setup(mixed_cell(), model("plain"))
    names = " ".join(setup.symbols())
    d3 = "dispersion/d3 bj pbe 12.0 8.0"
    define(lmp, setup)
    lmp.commands_list([f"pair_style {d3}", f"pair_coeff * * {names}", "run 0"])
    alone, forces = lmp.get_thermo("pe"), lmp.numpy.extract_atom("f")[by_id(lmp)].copy()
    define(lmp, setup)
    lmp.commands_list(
        [
            f"pair_style hybrid/overlay mace/stream {d3}",
            f'pair_coeff * * mace/stream "{setup.model.path}" {names}',
            f"pair_coeff * * dispersion/d3 {names}",
            "run 0",
        ]
    )
    ours = evaluate(setup)
    assert abs(alone) > 0.1
    assert abs(lmp.get_thermo("pe") - alone - ours.energy) < 1e-9
    found = lmp.numpy.extract_atom("f")[by_id(lmp)]
    assert np.abs(found - forces - ours.forces).max() < 1e-9


# ---- replicas ----

NEB = """
units metal
atom_modify map array sort 0 0.0
read_data data.atoms
{style}
{coeff}
fix 1 all neb 1.0
timestep 0.0005
min_style quickmin
dump d all custom 1 path.${{p}} id type x y z
dump_modify d sort id format float %.17g
thermo_style custom step pe
thermo_modify format float %.12f
neb 0.0 0.001 10 5 5 final final.txt
"""


@pytest.mark.mpi
@pytest.mark.slow
def test_a_path_between_two_minima(model, tmp_path):
    """R65, R67: every replica has a model of its own, and its energy is that of its atoms."""
    setup = Setup(mixed_cell(), model("plain"))
    with opened() as lmp:
        define(lmp, setup)
        lmp.command(f'write_data "{tmp_path}/data.atoms" nocoeff')
    x, y, z = mixed_cell().positions[0] + [0.3, 0.2, 0.1]
    (tmp_path / "final.txt").write_text(f"1\n1 {x} {y} {z}\n")
    coeff = f"pair_coeff * * {setup.model.path} {' '.join(setup.symbols())}"
    text = NEB.format(style="pair_style mace/stream", coeff=coeff)
    (tmp_path / "in.test").write_text("variable p uloop 3\n" + text)
    done = run_lmp(tmp_path, ("mpiexec", "-n", "3"), arguments=("-partition", "3x1"))
    assert done.returncode == 0, done.stdout[-2000:]
    rows = (tmp_path / "log.lammps").read_text().splitlines()
    told = [float(v) for v in rows[-1].split()[10::2]]
    for replica in range(3):
        atoms = last_frame(tmp_path / f"path.{replica + 1}", setup)
        energy = mace_torch(setup.model, atoms).energy
        assert min(abs(energy - value) for value in told) < 1e-4, (energy, told)
    assert np.ptp(told) > 1e-3


def last_frame(path, setup: Setup) -> Atoms:
    """Atoms of the last frame of a dump with columns id type x y z."""
    frame = path.read_text().split("ITEM: ATOMS")[-1].splitlines()[1:]
    rows = np.array([line.split() for line in frame], dtype=float)
    symbols = [setup.symbols()[int(kind) - 1] for kind in rows[:, 1]]
    return Atoms(symbols, rows[:, 2:], cell=setup.atoms.cell, pbc=True)


# ---- planted mistakes ----


def test_a_run_without_its_fix_is_noticed(model):
    """The comparison of series above tells runs apart."""
    series = []
    for fix in ("fix 1 all momentum 1 linear 1 1 1", "fix 1 all langevin 300 300 0.05 99"):
        with opened() as lmp:
            prepare(lmp, Setup(mixed_cell(), model("plain"), extra=MOVE))
            lmp.command(fix)
            series.append(energies(lmp, 20))
    assert np.abs(series[1] - series[0]).max() > 1e-6
