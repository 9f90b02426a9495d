"""Situations in which other interfaces gave wrong numbers without a word (docs/field_reports.md).

Only those that no other file of this folder has.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import cluster, hcp, mixed_cell
from lammps_models import Model, mace_torch
from lammps_support import (
    Setup,
    by_id,
    define,
    evaluate,
    measure,
    opened,
    prepare,
)

from mace_stream.testing import EXACT

TITANIUM = Path(__file__).parents[2] / "examples" / "models" / "ti_hcp_meam.mace"


def log_of(setup: Setup, folder: Path, *lines: str) -> str:
    """LAMMPS' log of these commands behind the pair style."""
    with opened(folder / "log") as lmp:
        prepare(lmp, setup)
        lmp.commands_list(list(lines))
    return (folder / "log").read_text()


# ---- heads ----


@pytest.mark.parametrize("head", ["zeta", "alpha"])
def test_heads_that_are_in_no_alphabetical_order(model, tmp_path, head):
    """R25: by name, and told in the log."""
    potential = model("unsorted_heads")
    truth = mace_torch(potential, cluster(), head=["zeta", "alpha"].index(head))
    other = mace_torch(potential, cluster(), head=["alpha", "zeta"].index(head))
    setup = Setup(cluster(), potential, f"head {head}")
    result = evaluate(setup)
    assert abs(result.energy - truth.energy) / 7 < EXACT.energy
    np.testing.assert_allclose(result.forces, truth.forces, rtol=0, atol=EXACT.force)
    assert abs(other.energy - truth.energy) > 1e-3
    assert f"  head           {head} (of: zeta, alpha)\n" in log_of(setup, tmp_path, "run 0")


# ---- minimisation ----


def minimum(model, precision: str) -> float:
    with opened() as lmp:
        prepare(lmp, Setup(cluster(), model("zbl"), f"precision {precision}"))
        lmp.commands_list(["min_style cg", "minimize 0 1e-4 25 80"])
        return lmp.get_thermo("pe")


def test_relaxations_end_alike(model):
    """R28: twice the same in double precision; close to that in single, by LAMMPS' criteria."""
    first = minimum(model, "double")
    assert abs(minimum(model, "double") - first) < 1e-8
    assert abs(minimum(model, "single") - first) / 7 < 1e-3


# ---- stress ----


def lonely() -> Atoms:
    """A pair at exactly r_max, a pair within, and an atom alone."""
    places = [[1, 1, 1], [1, 1, 5.5], [8, 8, 8], [9.2, 8, 8], [1, 9, 12]]
    return Atoms("HOCSiH", places, cell=[15, 15, 17], pbc=True)


def test_pressure_where_atoms_are_alone(model, lmp):
    """R48: finite, and the derivative of the energy with the volume."""
    setup = Setup(lonely(), model("plain"))
    prepare(lmp, setup)
    virial = measure(lmp).virial
    volume, strain, energies = lonely().get_volume(), 1e-4, []
    for sign in (1, -1):
        atoms = lonely()
        atoms.set_cell(atoms.cell * (1 + sign * strain), scale_atoms=True)
        energies.append(evaluate(replace(setup, atoms=atoms)).energy)
    derivative = (energies[0] - energies[1]) / (6 * strain * volume)
    assert np.trace(virial) / 3 / volume == pytest.approx(-derivative, rel=1e-5)
    lmp.commands_list(["fix 1 all npt temp 100 100 0.1 iso 0 0 1.0", "run 5"])
    assert np.isfinite(lmp.get_thermo("press"))


# ---- exclusions ----

EXCLUDED = ("group frozen id 1:5", "neigh_modify exclude group frozen frozen")
DELETED = ("group gone id 1:5", "neigh_modify exclude group gone all")
FIRST = ("group kept id 1:7", "atom_modify first kept", "neigh_modify include kept")


def test_exclusions_are_warned_about_and_deletions_are_not(model, tmp_path):
    """R79."""
    setup = Setup(mixed_cell(), model("plain"))
    warning = "neigh_modify exclude takes pairs out of the neighbor list"
    assert log_of(setup, tmp_path, *EXCLUDED, "run 0").count(warning) == 1
    assert warning not in log_of(setup, tmp_path, *DELETED, "run 0")
    assert warning not in log_of(setup, tmp_path, "run 0")


def test_lists_of_a_group_hold_a_model_of_this_group(model, lmp):
    """neigh_modify include: neither edges nor E0 of the other atoms."""
    setup = Setup(mixed_cell(), model("plain"))
    prepare(lmp, setup)
    lmp.commands_list(list(FIRST))
    found, right = measure(lmp), evaluate(mixed_cell()[:7], model("plain"))
    assert abs(found.energy - right.energy) < 1e-9
    assert np.abs(found.forces[:7] - right.forces).max() < 1e-9  # LAMMPS clears no other forces


# ---- repulsion ----


def dimer(distance: float) -> Atoms:
    return Atoms("SiC", [[5, 5, 5], [5, 5, 5 + distance]], cell=[15, 15, 15], pbc=True)


@pytest.mark.parametrize("distance", [0.3, 0.5001, 0.7, 1.2, 2.0])
@pytest.mark.parametrize("radial", ["spline", "exact"])
def test_a_models_own_repulsion(model, radial, distance):
    """R89: as mace-torch has it; the tables do not answer below their start."""
    truth = mace_torch(model("zbl"), dimer(distance))
    setup = Setup(dimer(distance), model("zbl"), f"radial {radial}")
    if radial == "spline" and distance < 0.5:
        with pytest.raises(Exception, match=r"closer than 0\.5 Å"):
            evaluate(setup)
        return
    result = evaluate(setup)
    scale = max(1.0, abs(truth.energy), np.abs(truth.forces).max())
    assert abs(result.energy - truth.energy) / scale < EXACT.energy
    assert np.abs(result.forces - truth.forces).max() / scale < EXACT.force


def test_repulsion_on_top_of_a_models_own_is_warned_about(model, tmp_path):
    """R89: and the log tells that the model has one."""
    told, warning = "  repulsion      zbl, a part of the model\n", "has a ZBL repulsion of its own"
    for name, expected in (("zbl", 1), ("plain", 0)):
        setup = Setup(mixed_cell(), model(name))
        log = log_of(setup, tmp_path, "run 0")
        assert log.count(told) == expected
        assert warning not in log
        with opened(tmp_path / "log") as lmp:
            define(lmp, setup)
            names = " ".join(setup.symbols())
            lmp.commands_list(
                [
                    "pair_style hybrid/overlay mace/stream zbl 1.0 2.0",
                    f'pair_coeff * * mace/stream "{setup.model.path}" {names}',
                    "pair_coeff * * zbl 6 6",
                    "run 0",
                ]
            )
        assert (tmp_path / "log").read_text().count(warning) == expected


# ---- other styles, fixes and computes ----


def test_a_scaled_sum_of_two(model, lmp):
    """R83, R87: hybrid/scaled clears forces between its styles and adds them up itself."""
    setup = Setup(mixed_cell(), model("plain"))
    define(lmp, setup)
    lmp.command("pair_style hybrid/scaled 0.25 mace/stream 0.75 mace/stream radial exact")
    for number in (1, 2):
        names = " ".join(setup.symbols())
        lmp.command(f'pair_coeff * * mace/stream {number} "{setup.model.path}" {names}')
    lmp.commands_list(["compute m_v all pressure NULL pair", "run 0"])
    usual = evaluate(setup)
    assert abs(lmp.get_thermo("pe") - usual.energy) < 1e-8
    assert np.abs(lmp.numpy.extract_atom("f")[by_id(lmp)] - usual.forces).max() < 1e-8


def test_local_thermostats_and_their_energy(lmp):
    """R93: forces of fixes stay, and what they put in is what the atoms gain."""
    setup = Setup(hcp((2, 2, 5)), Model(TITANIUM, None))  # a trained model: the crystal is stable
    prepare(lmp, setup)
    lmp.commands_list(
        [
            "region ends block INF INF INF INF INF 3",
            "region left block INF INF INF INF 3 14",
            "region right block INF INF INF INF 14 INF",
            *[f"group {name} region {name}" for name in ("ends", "left", "right")],
            "group mobile union left right",
            "velocity mobile create 300 4711",
            "timestep 0.001",
            "fix move mobile nve",
            "fix hold ends setforce 0 0 0",
            "fix hot left langevin 600 600 0.05 99 tally yes",
            "fix cold right langevin 50 50 0.05 98 tally yes",
            "compute left left temp",
            "compute right right temp",
            "thermo_style custom step etotal f_hot f_cold c_left c_right",
            "run 0 post no",
        ]
    )
    before = lmp.get_thermo("etotal")
    lmp.command("run 150")
    gained = lmp.get_thermo("etotal") - before
    given = [-lmp.extract_fix(name, 0, 0) for name in ("hot", "cold")]
    assert given[0] > 0.05
    assert given[1] < -0.05
    assert abs(gained - sum(given)) < 0.01 * (abs(given[0]) + abs(given[1]))
    hot, cold = (lmp.extract_compute(name, 0, 0) for name in ("left", "right"))
    assert hot > 2 * cold


def test_another_model_needs_a_new_setup(model, lmp):
    """Its cutoff may be longer than the lists reach."""
    setup = Setup(mixed_cell(), model("plain"))
    prepare(lmp, setup)
    lmp.commands_list(["fix 1 all nve", "run 1"])
    lmp.command(f'pair_coeff * * "{model("zbl").path}" {" ".join(setup.symbols())}')
    with pytest.raises(Exception, match=r"lists may be too short; leave out 'pre no'"):
        lmp.command("run 1 pre no")


def test_other_keywords_need_the_model_again(model, lmp):
    """Or the old ones would stay in force."""
    prepare(lmp, Setup(mixed_cell(), model("plain")))
    lmp.commands_list(["run 0", "pair_style mace/stream precision single"])
    with pytest.raises(Exception, match="All pair coeffs are not set"):
        lmp.command("run 0")


def test_parameters_of_the_model_cannot_be_adapted(model, lmp):
    prepare(lmp, Setup(mixed_cell(), model("plain")))
    lmp.commands_list(["variable v equal 0.5", "fix a all adapt 1 pair mace/stream r_max * * v_v"])
    with pytest.raises(Exception, match="adapt"):
        lmp.command("run 1")


@pytest.mark.parametrize("style", ["pe/tally all", "force/tally all", "stress/tally all"])
def test_computes_that_add_up_pairs_are_refused(model, lmp, style):
    """They would show zero: no pair of a many-body model has an energy of its own."""
    prepare(lmp, Setup(mixed_cell(), model("plain")))
    name, group = style.split()
    lmp.commands_list(
        [
            f"compute t all {name} {group}",
            "compute sum all reduce sum c_t[1]",
            "thermo_style custom step c_sum",
        ]
    )
    with pytest.raises(Exception, match=r"computes of the TALLY package.*leave compute t out"):
        lmp.command("run 0")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("compute g all group/group all", "thermo_style custom step c_g"), "group/group"),
        (("run_style respa 2 2 inner 1 3.0 4.0 outer 2",), "respa"),
        (("compute p all pair/local eng", "dump d all local 1 none index c_p"), "pair/local"),
    ],
    ids=["group/group", "respa", "pair/local"],
)
def test_lammps_refuses_what_a_many_body_style_cannot_do(model, lmp, lines, message):
    prepare(lmp, Setup(mixed_cell(), model("plain")))
    with pytest.raises(Exception, match=r"(?i)(support|single).*"):
        lmp.commands_list([*lines, "run 1"])


@pytest.mark.parametrize(
    ("lists", "count"),
    [("", 0), ("neigh_modify every 1 delay 0 check yes", 0), ("neigh_modify every 9 check no", 1)],
)
def test_lists_that_are_kept_too_long_are_told(model, tmp_path, lists, count):
    """R43: where pairs are missing, and only there."""
    fast = ("velocity all create 3000 4711", "timestep 0.0005", "fix move all nve")
    setup = Setup(
        mixed_cell(), model("zbl"), extra=(*fast, "neighbor 0.1 bin", *[lists] * bool(lists))
    )
    log = log_of(
        setup,
        tmp_path,
        "run 8",
        "unfix move",
        "fix npt all npt temp 3000 3000 0.01 iso 0 0 0.1",
        "run 8",
    )
    told = "since the neighbor list was made, more than half of the skin"
    assert log.count(told) == 2 * count


LISTS = {
    "nsq": ("neighbor 1.0 nsq",),
    "multi": ("neighbor 1.0 multi",),
    "multi ghosts": ("neighbor 1.0 multi", "comm_modify mode multi"),
    "wide": ("comm_modify cutoff 9.0",),
    "once": ("neigh_modify once yes",),
}


@pytest.mark.parametrize("lines", LISTS.values(), ids=LISTS)
def test_every_way_to_find_neighbors(model, lines):
    """R37: whatever builds the list, it is a full one."""
    usual = evaluate(mixed_cell(), model("plain"))
    assert evaluate(mixed_cell(), model("plain"), extra=lines).gap(usual) < 1e-10
