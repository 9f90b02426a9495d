"""Runs of every sort end in numbers that mace-torch gives for the configuration reached."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import pytest
from lammps_cells import cluster, hcp, mixed_cell, triclinic_cell
from lammps_models import mace_torch
from lammps_support import (
    BAR,
    KCAL,
    SAME,
    Setup,
    add_style,
    assert_reference,
    by_id,
    current_atoms,
    energies,
    evaluate,
    measure,
    opened,
    prepare,
)

from mace_stream.bridge.session import Session

MOVE = ("velocity all create 600 4711", "timestep 0.0005", "fix move all nve")


@pytest.mark.parametrize("kind", ["full", "half"])
def test_runs_repeated_and_continued(model, lmp, kind):
    """R103: many steps, with changing numbers of edges."""
    setup = Setup(mixed_cell(), model("zbl"), f"neighbors {kind}", extra=MOVE)
    prepare(lmp, setup)
    for n_steps in (1, 1, 5):
        lmp.command(f"run {n_steps}")
        assert_reference(lmp, setup)
    lmp.command("run 4 pre no post no")
    assert_reference(lmp, setup)
    lmp.command("replicate 2 1 1")
    lmp.command("run 3")
    assert_reference(lmp, setup)


def test_clear_and_start_again(model, lmp):
    for name, atoms in (("zbl", mixed_cell()), ("plain", cluster()), ("ti", hcp())):
        setup = Setup(atoms, model(name), extra=MOVE)
        prepare(lmp, setup)
        lmp.command("run 2")
        assert_reference(lmp, setup)


def test_a_second_lammps_in_the_same_process(model, lmp):
    setup = Setup(mixed_cell(), model("zbl"), extra=MOVE)
    prepare(lmp, setup)
    lmp.command("run 2")
    evaluate(cluster(), model("plain"))
    lmp.command("run 2")
    assert_reference(lmp, setup)


def test_pair_style_given_ten_times(model, lmp, monkeypatch):
    """R75: the old model goes before the new one comes, and none is left behind."""
    alive: weakref.WeakSet = weakref.WeakSet()
    start = Session.__init__

    def counted(self, *arguments):
        assert len(alive) == 0, "an old model still lives while the new one is read"
        alive.add(self)
        start(self, *arguments)

    monkeypatch.setattr(Session, "__init__", counted)
    setup = Setup(mixed_cell(), model("plain"))
    prepare(lmp, setup)
    first = measure(lmp)
    for _ in range(9):
        add_style(lmp, setup)
        assert measure(lmp).gap(first) < SAME
        assert len(alive) == 1
    lmp.command(f'pair_coeff * * "{setup.model.path}" C H O Si')
    assert measure(lmp).gap(first) < SAME
    lmp.command("pair_style none")
    assert len(alive) == 0


# ---- units ----


def test_units_real(model, lmp):
    """R97: energies and forces x 23.0605, pressure in atm."""
    metal = evaluate(mixed_cell(), model("plain"))
    setup = Setup(mixed_cell(), model("plain"), units="real")
    assert evaluate(setup).gap(metal) < 1e-6, "after conversion with LAMMPS' own constants"
    prepare(lmp, setup)
    lmp.command("thermo_style custom step pe press")
    lmp.command("run 0")
    assert lmp.get_thermo("pe") == pytest.approx(metal.energy * KCAL, rel=1e-7)
    forces = lmp.numpy.extract_atom("f")[by_id(lmp)]
    np.testing.assert_allclose(forces, metal.forces * KCAL, rtol=0, atol=1e-6)
    pressure = np.trace(metal.virial) / 3 / mixed_cell().get_volume() * BAR / 1.01325
    assert lmp.get_thermo("press") == pytest.approx(pressure, rel=1e-5)


def test_dynamics_in_units_real(model):
    """Forces, masses and time step fit together: the same motion as in units metal."""
    ends = {}
    for units, step in (("metal", 0.0005), ("real", 0.5)):
        with opened() as lmp:
            setup = Setup(mixed_cell(), model("zbl"), units=units)
            prepare(lmp, setup)
            lmp.commands_list([f"timestep {step}", "fix 1 all nve", "run 15"])
            assert_reference(lmp, setup) if units == "metal" else None
            ends[units] = current_atoms(lmp, setup.symbols()).positions
    moved = np.abs(ends["metal"] - mixed_cell().positions).max()
    assert moved > 1e-3
    np.testing.assert_allclose(ends["real"], ends["metal"], rtol=0, atol=1e-5 * moved)


# ---- motion ----


def test_skins_give_the_same_energies(model):
    """R43: 25 steps at 1500 K; a little later these random forces press two atoms together."""
    series = []
    for skin in (0.3, 1.0, 2.0):
        lines = (
            f"neighbor {skin} bin",
            "neigh_modify every 1 delay 0 check yes",
            "velocity all create 1500 4711",
            "timestep 0.0005",
            "fix move all nve",
        )
        with opened() as lmp:
            prepare(lmp, Setup(mixed_cell(), model("zbl"), extra=lines))
            series.append(energies(lmp, 25))
    assert np.ptp(series[0]) > 1e-2
    for other in series[1:]:
        np.testing.assert_allclose(other, series[0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("sort", ["sort 0 0", "sort 2 2.0"])
@pytest.mark.parametrize("build", [mixed_cell, triclinic_cell], ids=["orthogonal", "triclinic"])
def test_drift_across_the_boundaries(model, build, sort):
    """R91, R95: a moving frame crosses the box; energies are those at rest."""
    series = []
    for speed in ("0 0 0", "200 170 250"):
        lines = (
            "neigh_modify every 1 delay 0 check yes",
            "velocity all create 300 4711 mom yes",
            f"velocity all set {speed} sum yes",
            "timestep 0.0005",
            "fix move all nve",
        )
        setup = Setup(build(), model("plain"), atom_modify=f"map yes {sort}", extra=lines)
        with opened() as lmp:
            prepare(lmp, setup)
            series.append(energies(lmp, 60))
            assert_reference(lmp, setup)
    np.testing.assert_allclose(series[1], series[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("triclinic", [False, True])
def test_a_molecule_across_the_boundary(model, lmp, triclinic):
    """R34: ghost coordinates do the wrapping."""
    lines = ("change_box all triclinic xy final 2.5 xz final 1.0 yz final -1.5",) * triclinic
    molecule = cluster()
    molecule.pbc = True
    setup = Setup(molecule, model("plain"), extra=lines)
    prepare(lmp, setup)
    before = measure(lmp)
    for shift in ("6 0 0", "0 6 0", "1 2 6"):
        lmp.command(f"displace_atoms all move {shift} units box")
        after = measure(lmp)
        assert abs(after.energy - before.energy) < 1e-9
        assert np.abs(after.forces - before.forces).max() < 1e-9


def test_npt(model, lmp):
    lines = (*MOVE[:2], "fix 1 all npt temp 300 300 0.05 tri 1000 1000 0.05")
    setup = Setup(triclinic_cell(), model("zbl"), extra=lines)
    prepare(lmp, setup)
    lmp.command("run 20")
    atoms = assert_reference(lmp, setup)
    assert np.abs(atoms.cell.array - setup.atoms.cell.array).max() > 1e-4


# ---- minimization ----


@pytest.mark.parametrize(("min_style", "left"), [("cg", 1e-3), ("fire", 0.2)])
def test_minimize(model, lmp, min_style, left):
    """R94: the line search believes the forces."""
    setup = Setup(cluster(), model("zbl"))
    prepare(lmp, setup)
    start = measure(lmp)
    lmp.command(f"min_style {min_style}")
    lmp.command(f"minimize 0 {left / 10} 200 800")
    atoms = assert_reference(lmp, setup)
    end = mace_torch(setup.model, atoms)
    assert end.energy < start.energy - 0.1
    assert np.abs(end.forces).max() < left * np.abs(start.forces).max()


def test_box_relax(model, lmp):
    lines = ("fix relax all box/relax aniso 0.0 vmax 0.001", "min_style cg")
    setup = Setup(mixed_cell(), model("zbl"), extra=lines)
    prepare(lmp, setup)
    start = measure(lmp)
    lmp.command("minimize 0 1e-4 20 60")
    atoms = assert_reference(lmp, setup, forces=False)
    assert mace_torch(setup.model, atoms).energy < start.energy
    assert abs(atoms.get_volume() - setup.atoms.get_volume()) > 1e-2


# ---- configurations from elsewhere ----


def test_rerun(model, lmp, tmp_path):
    setup = Setup(mixed_cell(), model("zbl"), extra=MOVE)
    prepare(lmp, setup)
    dump = tmp_path / "dump"
    lmp.command(f"dump d all custom 5 {dump} id type x y z")
    lmp.command("dump_modify d format float %.17g sort id")
    series = energies(lmp, 15)
    lmp.command("undump d")
    for step in (15, 0, 5):
        lmp.command(f"rerun {dump} first {step} last {step} dump x y z")
        assert abs(lmp.get_thermo("pe") - series[step]) < 1e-9
        assert_reference(lmp, setup)


def test_restart(model, lmp, tmp_path):
    """R90: the style must be named again, and goes on where it was."""
    setup = Setup(mixed_cell(), model("zbl"), extra=MOVE)
    prepare(lmp, setup)
    unbroken = energies(lmp, 10)
    prepare(lmp, setup)
    first = energies(lmp, 5)
    lmp.commands_list([f"write_restart {tmp_path}/r", "clear", f"read_restart {tmp_path}/r"])
    with pytest.raises(Exception, match="air"):
        lmp.command("run 0")
    add_style(lmp, setup)
    lmp.commands_list(["timestep 0.0005", "fix move all nve"])
    second = energies(lmp, 5)
    np.testing.assert_allclose([*first, *second[1:]], unbroken, rtol=0, atol=1e-9)


def test_positions_scattered_from_outside(model, lmp):
    """R96: a driver that sets positions needs no more than run 0."""
    setup = Setup(mixed_cell(), model("plain"))
    prepare(lmp, setup)
    lmp.command("run 0")
    other = mixed_cell(seed=1).positions + 0.1 * np.sin(np.arange(36)).reshape(12, 3)
    lmp.numpy.extract_atom("x")[by_id(lmp)] = other
    lmp.command("run 0")
    assert_reference(lmp, setup)


def change_box(lmp) -> None:
    lmp.command("change_box all x scale 1.02 y scale 0.99 xy delta 0.4 remap units box")


def tilt(lmp) -> None:
    lmp.command("change_box all xz delta -0.5 yz delta 0.3 remap units box")


def displace(lmp) -> None:
    lmp.command("displace_atoms all random 0.1 0.1 0.1 77 units box")


@pytest.mark.parametrize("change", [change_box, tilt, displace])
def test_changes_between_runs(model, lmp, change: Callable):
    setup = Setup(triclinic_cell(), model("plain"))
    prepare(lmp, setup)
    before = measure(lmp).energy
    change(lmp)
    lmp.command("run 0")
    assert_reference(lmp, setup)
    assert abs(lmp.get_thermo("pe") - before) > 1e-4


# ---- planted mistake ----


def test_a_stale_configuration_is_noticed(model, lmp):
    setup = Setup(mixed_cell(), model("zbl"), extra=MOVE)
    prepare(lmp, setup)
    lmp.command("run 5")
    assert_reference(lmp, setup)
    lmp.numpy.extract_atom("x")[by_id(lmp)[0], 0] += 1e-4
    with pytest.raises(AssertionError):
        assert_reference(lmp, setup)
