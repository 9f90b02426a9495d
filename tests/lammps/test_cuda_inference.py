"""The fast path on a GPU, in LAMMPS: the numbers of the exact path on the CPU in float64."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from ase import Atoms
from lammps_cells import carbide, cluster, hcp, lone_atom, mixed_cell, one_atom_cell, triclinic_cell
from lammps_models import Result, mace_torch, single_forces
from lammps_support import (
    Setup,
    assert_reference,
    define,
    energies,
    evaluate,
    measure,
    opened,
    prepare,
)

from mace_stream.bridge.session import Session

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
ENERGY, FORCE = 1e-9, 1e-7
"""eV/atom and eV/Å between the fast path on a GPU and the exact one on a CPU, both in float64."""
ROUNDING = 1e-10
"""eV and Å; the same path twice, whose sums are in another order each time."""


def silicon_oxide() -> Atoms:
    """Two elements of the four that the model knows, in a cell of 40 atoms."""
    atoms = mixed_cell().repeat((2, 2, 1))
    atoms.symbols[atoms.symbols == "H"] = "O"
    atoms.symbols[atoms.symbols == "C"] = "Si"
    del atoms[::6]
    return atoms


CASES = {
    "mixed": ("plain", mixed_cell),
    "zbl": ("zbl", mixed_cell),
    "triclinic": ("plain", triclinic_cell),
    "three_layers": ("three_layers", triclinic_cell),
    "one_layer": ("one_layer", mixed_cell),
    "gated": ("charged", carbide),
    "two_elements": ("zbl", silicon_oxide),
    "cluster": ("plain", cluster),
    "lone": ("plain", lone_atom),
    "one_atom_cell": ("ti", one_atom_cell),
    "hcp": ("ti", lambda: hcp((3, 3, 2), rattle=0.1)),
    "tiles": ("ti", lambda: hcp((8, 8, 8), rattle=0.1)),
}


def assert_same(found: Result, exact: Result, energy: float, force: float) -> None:
    """Every number that LAMMPS can ask for; large virials relative to the largest."""
    n_atoms = len(exact.forces)
    assert abs(found.energy - exact.energy) / n_atoms < energy
    assert np.abs(found.forces - exact.forces).max() < force
    assert np.abs(found.node_energy - exact.node_energy).max() < energy
    for name in ("virial", "node_virial", "centroid_virial"):
        right = getattr(exact, name)
        scale = max(1.0, np.abs(right).max())
        assert np.abs(getattr(found, name) - right).max() < force * scale, name


def on_cpu(atoms: Atoms, model) -> Result:
    return evaluate(atoms, model, style="device cpu precision double radial exact")


# ---- numbers ----


@pytest.mark.parametrize("neighbors", ["device", "full"])
@pytest.mark.parametrize("graphs", ["yes", "no"])
@pytest.mark.parametrize("case", CASES)
def test_double_precision_equals_the_exact_cpu(model, case, graphs, neighbors):
    """Second evaluations, too: the first one of a graph is run as it is."""
    name, build = CASES[case]
    atoms = build()
    style = f"device cuda precision double radial spline graphs {graphs} neighbors {neighbors}"
    exact = on_cpu(atoms, model(name))
    with opened() as lmp:
        prepare(lmp, Setup(atoms, model(name), style))
        for _ in range(3):
            assert_same(measure(lmp), exact, ENERGY, FORCE)


@pytest.mark.parametrize("newton", ["on", "off"])
def test_half_lists(model, newton):
    """Senders that move along with an image of their receiver."""
    style = "device cuda precision double neighbors half"
    found = evaluate(triclinic_cell(), model("zbl"), style=style, newton=newton)
    assert_same(found, on_cpu(triclinic_cell(), model("zbl")), ENERGY, FORCE)


def test_other_styles_atoms(model, lmp):
    """Types named NULL have nodes on no list, made by LAMMPS below a hybrid style."""
    atoms = mixed_cell()
    setup = Setup(atoms, model("plain"), types=("C", "H", "O", "Si"))
    define(lmp, setup)
    lmp.commands_list(
        [
            "pair_style hybrid/overlay mace/stream device cuda precision double lj/cut 4.0",
            f'pair_coeff * * mace/stream "{setup.model.path}" C NULL O Si',
            "pair_coeff * * lj/cut 0.0 2.0",
        ]
    )
    ours = atoms.numbers != 1
    exact = on_cpu(atoms[ours], model("plain"))
    found = measure(lmp)
    assert abs(found.energy - exact.energy) / ours.sum() < ENERGY
    assert np.abs(found.forces[ours] - exact.forces).max() < FORCE
    assert np.abs(found.forces[~ours]).max() == 0


@pytest.mark.parametrize("case", ["mixed", "zbl", "three_layers", "two_elements", "hcp"])
def test_single_precision_errs_no_more_than_mace_torch(model, case):
    """RMS error of forces over a few structures; mace-torch in float32 is the yardstick."""
    name, build = CASES[case]
    errors = np.zeros(2)
    for seed in range(4):
        atoms = build()
        atoms.rattle(0.03, seed=seed)
        exact = mace_torch(model(name), atoms).forces
        ours = evaluate(atoms, model(name), style="device cuda precision single").forces
        theirs = single_forces(model(name), atoms)
        errors += [np.mean((forces - exact) ** 2) for forces in (ours, theirs)]
    print(f"{case}: RMS errors of forces {np.sqrt(errors / 4)} eV/Å, ours and theirs")
    assert 0 < errors[0] <= errors[1]


@pytest.mark.parametrize("case", ["mixed", "zbl", "hcp"])
def test_single_precision_of_all_numbers(model, case):
    name, build = CASES[case]
    exact = on_cpu(build(), model(name))
    found = evaluate(build(), model(name), style="device cuda precision single")
    scale = max(1.0, np.abs(exact.forces).max())  # short distances: large energies, too
    assert_same(found, exact, 1e-5 * scale, 1e-5 * scale)


@pytest.mark.parametrize("tile", [4, 64, 1000])
def test_tiles_change_no_numbers(model, tile):
    atoms = hcp((8, 8, 8), rattle=0.1)
    style = "device cuda precision double"
    usual = evaluate(atoms, model("ti"), style=style)
    found = evaluate(atoms, model("ti"), style=f"{style} tile {tile}")
    assert_same(found, usual, ROUNDING, ROUNDING * 10)


# ---- runs ----

MOVE = (
    "neighbor 0.4 bin",
    "neigh_modify every 1 delay 0 check yes",
    "velocity all create 900 4711",
    "timestep 0.001",
    "fix move all nve",
)


@pytest.mark.parametrize("style", ["", "graphs no", "neighbors full", "neighbors half"])
def test_a_run_follows_the_exact_one(model, style):
    """Forty steps with new lists of other sizes, replayed as a graph between them."""
    series = []
    for words in (f"device cuda precision double {style}", "device cpu radial exact"):
        with opened() as lmp:
            prepare(lmp, Setup(hcp((4, 4, 3), 0.05), model("ti"), words, extra=MOVE))
            series.append(energies(lmp, 40))
    assert np.ptp(series[1]) > 1e-3
    np.testing.assert_allclose(series[0], series[1], rtol=0, atol=1e-8)


def test_atoms_come_and_go(model, lmp):
    """Arrays grow and shrink, graphs are captured again, species change their places."""
    style = "device cuda precision double"
    prepare(lmp, Setup(mixed_cell(), model("plain"), style))
    lines = [
        "set atom 3 type 1",
        "create_atoms 2 single 0.4 0.3 0.2",
        "delete_atoms random count 3 no all NULL 4711",
        "replicate 2 1 1",
        "change_box all x scale 1.02 remap",
        "set group all type/fraction 4 0.3 99",
        "delete_atoms random count 12 no all NULL 815",
    ]
    for line in ["", *lines]:
        if line:
            lmp.command(line)
        for _ in range(2):
            lmp.command("run 0")
            assert_reference(lmp, Setup(mixed_cell(), model("plain")))


# ---- keywords and errors ----


@pytest.mark.parametrize("neighbors", ["device", "full", "half"])
@pytest.mark.parametrize("precision", ["double", "single"])
def test_verify(model, tmp_path, precision, neighbors):
    log = tmp_path / "log"
    style = f"device cuda precision {precision} neighbors {neighbors} verify yes"
    with opened(log) as lmp:
        prepare(lmp, Setup(mixed_cell(), model("zbl"), style))
        lmp.command("run 0")
    numbers = re.findall(r"([0-9.e+-]+) eV/atom, forces ([0-9.e+-]+)", log.read_text())
    assert len(numbers) == 2
    assert float(numbers[0][0]) < (1e-9 if precision == "double" else 1e-5)


@pytest.mark.parametrize("neighbors", ["device", "full", "half"])
@pytest.mark.parametrize("graphs", ["yes", "no"])
def test_atoms_that_are_too_close_are_named(model, lmp, graphs, neighbors):
    """Also in a replayed graph: the second atom comes near in the last step."""
    atoms = Atoms("OHC", [[5, 5, 5], [6.03, 5, 5], [5, 6.5, 5]], cell=[12, 12, 12], pbc=True)
    style = f"device cuda graphs {graphs} neighbors {neighbors}"
    prepare(lmp, Setup(atoms, model("plain"), style, extra=("timestep 0.001",)))
    lmp.commands_list(["group mover id 2", "fix m mover move linear -100 0 0 units box"])
    with pytest.raises(Exception, match=r"step 6: atoms \d and \d are 0\.4300 Å apart") as caught:
        lmp.command("run 20")
    assert set(re.search(r"atoms (\d) and (\d)", str(caught.value)).groups()) == {"1", "2"}


def test_deterministic_takes_the_exact_path_and_says_so(model, tmp_path):
    """In a rectangular box: in a tilted one LAMMPS rounds positions anew in every ``run 0``."""
    log = tmp_path / "log"
    found = []
    with opened(log) as lmp:
        setup = Setup(
            mixed_cell().repeat((5, 5, 4)), model("plain"), "device cuda deterministic yes"
        )
        prepare(lmp, setup)
        for _ in range(10):
            lmp.command("run 0 post no")
            arrays = (lmp.numpy.extract_atom(name)[: len(setup.atoms)] for name in "xf")
            found.append(np.stack([*arrays]))
    assert all(np.array_equal(found[0], other) for other in found[1:])
    text = log.read_text()
    assert "deterministic yes, and the fast path sums atomically on a GPU" in text
    assert "deterministic  yes: all sums in one order" in text


def test_deterministic_and_spline_are_refused(model, lmp):
    style = "device cuda deterministic yes radial spline"
    with pytest.raises(Exception, match="does not go with radial spline on a GPU"):
        prepare(lmp, Setup(mixed_cell(), model("plain"), style))


# ---- memory ----


@pytest.fixture
def sessions(monkeypatch):
    """The session that was opened last."""
    found = []
    begin = Session.__init__

    def kept(self, *arguments):
        begin(self, *arguments)
        found[:] = [self]

    monkeypatch.setattr(Session, "__init__", kept)
    return found


@pytest.mark.parametrize("neighbors", ["device", "full"])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_the_estimate_is_what_is_taken(model, lmp, sessions, precision, neighbors):
    """11,616 atoms, every step with a new list; what libraries take for themselves comes on top."""
    style = f"device cuda precision {precision} neighbors {neighbors}"
    lines = ("neigh_modify every 1 delay 0 check no", "fix 1 all nve", "timestep 1e-5")
    prepare(lmp, Setup(hcp((22, 22, 12), 0.05), model("ti"), style, extra=lines))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    lmp.command("run 3")
    torch.cuda.reset_peak_memory_stats()
    lmp.command("run 3")
    told = sessions[0].evaluator._budget.memory().total
    taken = torch.cuda.max_memory_allocated() - before
    print(f"{precision} {neighbors}: told {told / 2**20:.1f} MiB, taken {taken / 2**20:.1f} MiB")
    assert 0.7 * told < taken < 1.3 * told + (48 << 20)


def test_out_of_memory_names_the_keyword(model, lmp):
    """For real, with a limit of 64 MiB beyond what there is after the first run."""
    prepare(lmp, Setup(hcp((4, 4, 2)), model("ti"), "device cuda"))
    lmp.command("run 0")
    total = torch.cuda.get_device_properties(0).total_memory
    limit = (torch.cuda.memory_reserved() + (64 << 20)) / total
    torch.cuda.set_per_process_memory_fraction(limit)
    try:
        lmp.command("replicate 12 12 12")
        with pytest.raises(Exception, match="out of memory on ") as caught:
            lmp.command("run 0")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    message = str(caught.value)
    assert "add the keyword: tile N" in message
    assert "Traceback" not in message
    lmp.command("delete_atoms random fraction 0.99 no all NULL 4711")
    lmp.command("run 0")


# ---- planted mistakes ----


def test_another_structure_is_told_apart(model):
    found = evaluate(mixed_cell(), model("plain"), style="device cuda precision double")
    with pytest.raises(AssertionError):
        assert_same(found, on_cpu(mixed_cell(seed=2), model("plain")), ENERGY, FORCE)


def test_single_precision_is_told_apart(model):
    found = evaluate(mixed_cell(), model("plain"), style="device cuda precision single")
    with pytest.raises(AssertionError):
        assert_same(found, on_cpu(mixed_cell(), model("plain")), 1e-12, 1e-12)
