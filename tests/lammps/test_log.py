"""The block at the start of a run and the table at its end."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import pytest
from ase import Atoms
from ase.neighborlist import neighbor_list
from lammps_cells import hcp, mixed_cell, triclinic_cell
from lammps_support import LISTS, Setup, define, opened, prepare, run_program

from mace_stream import __version__

PARTS = {
    "spline": ("list", "bridge", "arrangement", "model", "scatter"),
    "exact": ("list", "bridge", "model forward", "model VJP", "scatter"),
}


def log_of(setup: Setup, tmp_path, commands: Sequence[str] = ("run 3",)) -> str:
    """LAMMPS' log file of these commands."""
    log = tmp_path / "log.lammps"
    with opened(log) as lmp:
        prepare(lmp, setup)
        lmp.commands_list(list(commands))
    return log.read_text()


def start_block(log: str) -> dict[str, str]:
    """Entries of the block by name; ends at the closing rule."""
    block = re.search(r"-{78}\npair_style mace/stream\n(.*?)-{78}\n", log, re.DOTALL).group(1)
    lines = [(line[2:16].strip(), line[17:]) for line in block.splitlines()]
    entries: dict[str, str] = {}
    name = ""
    for key, text in lines:
        name = key or name
        entries[name] = f"{entries[name]} {text}" if not key else text
    return entries


def end_table(log: str, radial: str = "spline") -> dict[str, tuple[float, float]]:
    """Milliseconds per step, and share in percent, of every part."""
    number = r"([0-9.]+)"
    rows = {
        part: re.search(rf"^  {part} +{number} +{number} %$", log, re.MULTILINE).groups()
        for part in PARTS[radial]
    }
    return {part: (float(ms), float(share)) for part, (ms, share) in rows.items()}


def test_start_block(model, tmp_path):
    potential = model("heads")
    setup = Setup(mixed_cell(), potential, "head b_scan", extra=("neighbor 1.3 bin",))
    entries = start_block(log_of(setup, tmp_path))
    assert entries["model"] == f"{potential.path} (ScaleShiftMACE)"
    assert entries["SHA-256"] == hashlib.sha256(potential.path.read_bytes()).hexdigest()
    assert entries["head"] == "b_scan (of: a_pbe, b_scan)"
    energies = potential.torch.atomic_energies_fn.atomic_energies[1].tolist()
    for kind, (symbol, element) in enumerate(zip("CHO", (1, 0, 2), strict=True), 1):
        text = f"{symbol}, element {element} of the model, E0 {energies[element]:.6f} eV"
        assert entries[f"type {kind}"] == text
    assert entries["device"]
    assert entries["precision"].startswith(("double (default on cpu", "single (default on cuda"))
    assert entries["threads"] == "1"
    assert entries["r_max"] == "4.5 Å"
    assert entries["skin"] == "1.3 Å, ghost cutoff 5.8 Å"
    for layer in (0, 1):
        assert re.fullmatch(r"convolution \w+: .+", entries[f"layer {layer}"])
    assert entries["units"] == "metal"
    for version in (f"mace-stream {__version__}", "LAMMPS 22 Jul 2025", "torch 2.", "Python 3."):
        assert version in entries["versions"]


@pytest.mark.parametrize("cell", [mixed_cell, triclinic_cell])
@pytest.mark.parametrize(("command", "cutoff"), [((), "5.8"), (("comm_modify cutoff 7",), "7")])
def test_the_ghost_cutoff_is_in_angstrom(model, tmp_path, cell, command, cutoff):
    extra = ("neighbor 1.3 bin", *command)
    entries = start_block(log_of(Setup(cell(), model("plain"), extra=extra), tmp_path))
    assert entries["skin"] == f"1.3 Å, ghost cutoff {cutoff} Å"


@pytest.mark.parametrize(("kind", "newton"), LISTS)
def test_the_list_is_named(model, tmp_path, kind, newton):
    setup = Setup(mixed_cell(), model("plain"), f"neighbors {kind}", newton)
    expected = kind if kind == "full" else f"half, newton {newton}"
    assert start_block(log_of(setup, tmp_path))["neighbor list"] == expected


def test_types_of_other_styles_are_named(model, tmp_path):
    log = tmp_path / "log.lammps"
    setup = Setup(Atoms("ArO", [[1, 1, 1], [3, 1, 1]], cell=[9, 9, 9], pbc=True), model("plain"))
    with opened(log) as lmp:
        define(lmp, setup)
        lmp.commands_list(
            [
                "pair_style hybrid mace/stream lj/cut 4.0",
                f'pair_coeff * * mace/stream "{setup.model.path}" NULL O',
                "pair_coeff 1 * lj/cut 0.01 2.0",
                "run 0",
            ]
        )
    assert start_block(log.read_text())["type 1"] == "NULL: served by another style"


def test_precision_asked_for(model, tmp_path):
    for word in ("double", "single"):
        setup = Setup(mixed_cell(), model("plain"), f"precision {word}")
        assert start_block(log_of(setup, tmp_path))["precision"] == f"{word} (asked for)"


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("", r"spline: .*"),
        ("radial spline", r"spline: .*"),
        ("radial exact", r"exact: .* \(asked for\)"),
        ("conv standard", r"exact: .* \(conv standard is asked for\)"),
    ],
)
def test_the_radial_part_is_named(model, tmp_path, style, expected):
    log = log_of(Setup(mixed_cell(), model("plain"), style), tmp_path, ["run 0"])
    assert re.fullmatch(expected, start_block(log)["radial part"])


@pytest.mark.parametrize("radial", PARTS)
def test_end_table_adds_up(model, tmp_path, radial):
    setup = Setup(hcp((2, 2, 2), 0.05), model("ti"), f"radial {radial}")
    log = log_of(setup, tmp_path, ["fix 1 all nve", "run 9"])
    assert "10 evaluations, 1 new lists" in log
    table = end_table(log, radial)
    total = float(re.search(r"^  total +([0-9.]+)$", log, re.MULTILINE).group(1))
    assert sum(ms for ms, _ in table.values()) == pytest.approx(total, abs=0.003)
    assert sum(share for _, share in table.values()) == pytest.approx(100, abs=0.3)
    assert all(ms > 0 for part, (ms, _) in table.items() if part.startswith("model"))
    per_atom = float(re.search(r"([0-9.]+) µs per atom and step", log).group(1))
    assert per_atom == pytest.approx(1e3 * total / 16, rel=1e-2)
    assert re.search(r"peak memory [0-9]+ MiB", log)


@pytest.mark.parametrize("radial", PARTS)
@pytest.mark.parametrize("kind", ["full", "half"])
def test_edges_per_atom_are_those_within_the_cutoff(model, tmp_path, kind, radial):
    """R39: the skin is in the list, not in the model."""
    atoms = hcp((2, 2, 2))
    style = f"neighbors {kind} radial {radial}"
    setup = Setup(atoms, model("ti"), style, extra=("neighbor 2.0 bin",))
    log = log_of(setup, tmp_path, ["run 0"])
    inside = len(neighbor_list("i", atoms, 6.0)) / len(atoms)
    listed = len(neighbor_list("i", atoms, 8.0))
    assert f"  {inside:.1f} edges per atom within r_max\n" in log
    assert start_block(log)["graph"] == f"16 atoms, {listed} edges, skin included"


def test_one_block_and_a_table_per_run(model, tmp_path):
    """The counters start anew with every run."""
    log = log_of(Setup(mixed_cell(), model("plain")), tmp_path, ["run 0", "run 0", "run 2"])
    assert log.count("\npair_style mace/stream\n") == 1
    assert re.findall(r"(\d+) evaluations", log) == ["1", "1", "3"]


def test_program_prints_what_the_log_holds(model, tmp_path):
    """Also with its output in a pipe, where a Python that is never finalized could lose text."""
    setup = Setup(mixed_cell(), model("plain"))
    done = run_program(setup, tmp_path, "run 1")
    assert done.returncode == 0, done.stdout
    log = (tmp_path / "log.lammps").read_text()
    for text in (done.stdout, log):
        assert start_block(text)["head"] == "Default (of: Default)"
        assert set(end_table(text)) == set(PARTS["spline"])
    assert "Traceback" not in done.stdout


def test_threads_are_taken_from_the_environment(model, tmp_path):
    setup = Setup(mixed_cell(), model("plain"))
    done = run_program(setup, tmp_path, "run 0", OMP_NUM_THREADS="2")
    assert start_block(done.stdout)["threads"].startswith("2")


# ---- planted mistake ----


def test_a_table_that_does_not_add_up_is_noticed(model, tmp_path):
    log = log_of(Setup(hcp(), model("ti")), tmp_path)
    total = float(re.search(r"^  total +([0-9.]+)$", log, re.MULTILINE).group(1))
    wrong = {part: ms for part, (ms, _) in end_table(log).items() if part != "model"}
    assert abs(sum(wrong.values()) - total) > 0.01
