"""What would give wrong numbers is refused before the first step, with the line to add."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lammps_cells import cluster, mixed_cell
from lammps_support import (
    SAME,
    Setup,
    add_style,
    binary,
    define,
    evaluate,
    measure,
    opened,
    run_lmp,
    run_program,
)
from plugin_builds import build_plugin


def refusal(setup: Setup, coeff: str = "") -> str:
    """LAMMPS' message for a setup; fails if a step was taken."""
    with opened() as lmp:
        define(lmp, setup)
        usual = f'pair_coeff * * "{setup.model.path}" {" ".join(setup.symbols())}'
        lines = [f"pair_style mace/stream {setup.style}", coeff or usual, "fix 1 all nve", "run 2"]
        with pytest.raises(Exception) as caught:
            lmp.commands_list(lines)
        assert lmp.extract_global("ntimestep") == 0
    message = str(caught.value)
    assert "Pair style mace/stream: " in message
    assert "Traceback" not in message
    return message


# ---- environment ----


@pytest.mark.parametrize("units", ["lj", "electron", "si", "nano"])
def test_units(model, units):
    setup = Setup(mixed_cell(), model("plain"), units=units)
    message = refusal(setup)
    assert f"units {units} are not supported; use 'units metal' or 'units real'" in message


def test_atom_map_missing(model):
    message = refusal(Setup(mixed_cell(), model("plain"), atom_modify="sort 0 0"))
    assert "'atom_modify map yes' before the simulation box" in message


def test_atom_ids_missing(model, lmp):
    atoms = mixed_cell()
    lmp.commands_list(
        [
            "units metal",
            "atom_modify id no",
            "region cell block 0 9 0 9 0 9",
            "create_box 1 cell",
            "create_atoms 1 random 5 42 NULL overlap 1.5",
            "mass 1 28.0855",
        ]
    )
    setup = replace(Setup(atoms, model("plain")), types=("Si",))
    add_style(lmp, setup)
    with pytest.raises(Exception, match=r"needs atom ids.*remove 'atom_modify id no'"):
        lmp.command("run 0")


# ---- bonds ----

BONDS = (
    "bond_style harmonic",
    "bond_coeff 1 0 1",
    "pair_style zero 6.0",
    "pair_coeff * *",
    "create_bonds many all all 1 0.5 2.4",
)


@pytest.mark.parametrize("special", ["", "special_bonds lj 1 0 1 coul 1 0 1"])
def test_bonded_pairs_taken_out_of_the_list(model, special):
    """R44."""
    setup = Setup(cluster(), model("plain"), atom_style="full", extra=(*BONDS, special))
    message = refusal(setup)
    assert "special_bonds takes bonded pairs out of the neighbor list of 7 atoms" in message
    assert "'special_bonds lj 1 1 1 coul 1 1 1'" in message


@pytest.mark.parametrize(
    "special",
    ["lj 1 1 1 coul 1 1 1", "lj 0.5 0.5 0.5 coul 0.5 0.5 0.5", "lj 0 0 0 coul 1 1 1"],
)
@pytest.mark.parametrize("kind", ["full", "half"])
def test_weights_that_keep_all_pairs(model, kind, special):
    """The weights travel in the upper bits of the neighbor index."""
    extra = (*BONDS, f"special_bonds {special}")
    setup = Setup(cluster(), model("plain"), f"neighbors {kind}", atom_style="full", extra=extra)
    assert evaluate(setup).gap(evaluate(cluster(), model("plain"))) < SAME


def test_bonds_matter_to_these_tests(model, lmp):
    """Without the refusal the numbers would be wrong: lj/cut shows which pairs are gone."""
    energies = []
    for special in ("lj 1 1 1 coul 1 1 1", "lj 0 0 0 coul 0 0 0"):
        extra = (*BONDS, f"special_bonds {special}")
        define(lmp, Setup(cluster(), None, atom_style="full", extra=extra))
        lmp.commands_list(["pair_style lj/cut 4.5", "pair_coeff * * 0.01 2.0"])
        energies.append(measure(lmp).energy)
    assert abs(energies[0] - energies[1]) > 1e-3


# ---- pair_style ----


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("devise cpu", ["unknown keyword devise", "did you mean device?", "keywords: device, "]),
        ("neighbor full", ["unknown keyword neighbor", "did you mean neighbors?"]),
        ("xyzzy 1", ["unknown keyword xyzzy", "keywords: device, precision"]),
        ("device", ["keyword device has no value", "expected auto, cpu, cuda or cuda:N"]),
        ("device gpu", ["keyword device: expected auto, cpu, cuda or cuda:N, got gpu"]),
        ("precision half", ["keyword precision: expected auto or double or single, got half"]),
        ("device cpu device cpu", ["keyword device is given twice"]),
        ("device cuda:63", ["device cuda:63", "sees", "CUDA devices", "device cpu"]),
    ],
)
def test_keywords(model, style, expected):
    message = refusal(Setup(mixed_cell(), model("plain"), style))
    for text in expected:
        assert text in message


@pytest.mark.parametrize("style", ["", "head nope"])
def test_heads(model, style):
    """R23."""
    message = refusal(Setup(mixed_cell(), model("heads"), style))
    assert "a_pbe, b_scan" in message
    assert ("head nope is not in the model" if style else "add the keyword: head a_pbe") in message


# ---- pair_coeff ----


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("* * {model} C H O", ["and 4 element names", "got 3 names"]),
        ("* * {model} C H O Si Si", ["and 4 element names", "got 5 names"]),
        ("* * {model} C H O Xx", ["Xx is no chemical symbol", "the model knows: H C O Si"]),
        ("* * {model} C H O si", ["si is no chemical symbol"]),
        ("* * {model} C H O Fe", ["the model does not know Fe; it knows: H C O Si"]),
        ("* * {model} NULL NULL NULL NULL", ["names no element, only NULL"]),
        ("* * nowhere.mace C H O Si", ["nowhere.mace"]),
        ("* * {pickle} C H O Si", ["mace-torch", "mace-stream convert", "-o"]),
        ("* * {text} C H O Si", ["notes.mace"]),
        ("* * {folder} C H O Si", ["directory"]),
    ],
)
def test_coefficients(model, tmp_path, words, expected):
    """R02, R30, R31."""
    potential = model("plain")
    notes = tmp_path / "notes.mace"
    notes.write_text("no model\n")
    coeff = "pair_coeff " + words.format(
        model=potential.path, pickle=potential.pickle, text=notes, folder=tmp_path
    )
    message = refusal(Setup(mixed_cell(), potential), coeff=coeff)
    for text in expected:
        assert text in message


def test_swapped_names_are_warned_about(model, tmp_path):
    """R31: the masses know better."""
    setup = Setup(mixed_cell(), model("plain"))
    for names, count in (("C H O Si", 0), ("Si H O C", 2)):
        log = tmp_path / "log"
        with opened(log) as lmp:
            define(lmp, setup)
            lmp.command("pair_style mace/stream")
            lmp.command(f'pair_coeff * * "{setup.model.path}" {names}')
            lmp.command("run 0")
        assert log.read_text().count("check the order of the element names") == count
    assert "atom type 1 has mass 12.011, but the element named for it" in log.read_text()


def test_infinite_weights_stop_at_step_zero(model, tmp_path):
    """R26: numbers that are not finite never reach LAMMPS."""
    from mace_stream import io

    spec, tensors = io.load(model("plain").path)
    for name in (n for n in tensors if n.startswith("readouts")):
        tensors[name] = np.full_like(tensors[name], 1e200)
    wrong = tmp_path / "huge.mace"
    io.save(wrong, spec, tensors)
    setup = Setup(mixed_cell(), replace(model("plain"), path=wrong))
    message = refusal(setup)
    assert "failed at step 0" in message
    assert "finite" in message


# ---- another version of LAMMPS ----


@pytest.fixture(scope="module")
def old_plugin(tmp_path_factory):
    """Folder of the plugin as a build against a LAMMPS of 2020 would give it."""
    return build_plugin(tmp_path_factory.mktemp("old_plugin"), 20200101, "1 Jan 2020", "MPICH")


def test_plugin_of_another_version(model, tmp_path, old_plugin):
    """R01, R06: both versions are named, and other inputs run."""
    environment = {"program": binary(), "LAMMPS_PLUGIN_PATH": str(old_plugin)}
    setup = Setup(mixed_cell(), model("plain"))
    done = run_program(setup, tmp_path, "run 0", **environment)
    assert done.returncode != 0
    assert "built for LAMMPS 20200101 (1 Jan 2020)" in done.stdout
    assert "loaded into LAMMPS 20250722" in done.stdout
    assert "pip install" in done.stdout

    script = (tmp_path / "in.test").read_text()
    first = script.index("pair_style")
    (tmp_path / "in.test").write_text(script[:first] + "compute d all mace/stream/deviation\n")
    done = run_lmp(tmp_path, **environment)
    assert "Compute mace/stream/deviation: built for LAMMPS 20200101" in done.stdout

    lines = [line for line in script.splitlines() if not line.startswith(("pair_", "run"))]
    (tmp_path / "in.test").write_text(
        "\n".join([*lines, "pair_style zero 4.0", "pair_coeff * *", "run 0", ""])
    )
    done = run_lmp(tmp_path, **environment)
    assert done.returncode == 0, done.stdout


def test_style_without_plugin(model, tmp_path):
    """The test above would pass for the wrong reason if the program found the right plugin."""
    setup = Setup(mixed_cell(), model("plain"))
    done = run_program(setup, tmp_path, "run 0", program=binary())
    assert "Unrecognized pair style 'mace/stream'" in done.stdout
