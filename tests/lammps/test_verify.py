"""verify yes: the fast path is compared with the exact one on the user's own structure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from lammps_cells import cluster, hcp, lone_atom, mixed_cell, one_atom_cell, triclinic_cell
from lammps_models import mace_torch
from lammps_support import LISTS, Setup, by_id, evaluate, opened, prepare

from mace_stream.bridge.session import Session
from mace_stream.bridge.verify import BOUNDS, RATTLE
from mace_stream.testing import EXACT
from mace_stream.torch.inference.evaluator import InferenceEvaluator

NUMBER = r"([0-9.e+-]+)"
PART = rf"{NUMBER} eV/atom, forces {NUMBER} \(RMS {NUMBER}\) eV/Å"
LINE = rf"^  verify         as given: {PART}; rattled by 0\.05 Å: {PART}; bounds"


def line_of(setup: Setup, tmp_path, *commands: str) -> list[float]:
    """The six numbers of the one line; and the run goes on."""
    log = tmp_path / "log"
    with opened(log) as lmp:
        prepare(lmp, setup)
        lmp.commands_list(list(commands) or ["run 0"])
    found = re.findall(LINE, log.read_text(), re.MULTILINE)
    assert len(found) == 1
    return [float(number) for number in found[0]]


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize(("kind", "newton"), LISTS)
def test_rounding_is_all_there_is(model, tmp_path, kind, newton, precision):
    style = f"verify yes neighbors {kind} precision {precision}"
    setup = Setup(mixed_cell(), model("zbl"), style, newton)
    numbers = line_of(setup, tmp_path, "fix 1 all nve", "run 2", "run 2")
    assert max(numbers[1:3]) > 0
    assert max(numbers[4:]) > 0
    assert max(numbers[0], numbers[3]) < BOUNDS[precision].energy
    assert max(numbers) < BOUNDS[precision].force


CELLS = {
    "triclinic": (triclinic_cell, "plain"),
    "cluster": (cluster, "three_layers"),
    "one_atom": (one_atom_cell, "ti"),
    "hcp": (lambda: hcp((2, 2, 2)), "ti"),
    "lone": (lone_atom, "plain"),
}


@pytest.mark.parametrize("cell", CELLS)
def test_cells_of_every_sort(model, tmp_path, cell):
    build, name = CELLS[cell]
    assert max(line_of(Setup(build(), model(name), "verify yes"), tmp_path)) < 1e-10


def test_no_atoms_at_all(model, tmp_path):
    nothing = replace(Setup(mixed_cell()[:0], model("plain"), "verify yes"), types=("Si", "C"))
    assert line_of(nothing, tmp_path) == [0.0] * 6


def test_the_run_is_as_without(model):
    usual = evaluate(mixed_cell(), model("plain"))
    assert evaluate(mixed_cell(), model("plain"), style="verify yes").gap(usual) == 0


def test_exact_in_single_precision_is_compared_with_double(model, tmp_path):
    style = "verify yes radial exact precision single"
    numbers = line_of(Setup(mixed_cell(), model("plain"), style), tmp_path)
    assert 1e-12 < max(numbers) < 1e-5


# ---- what is compared is what it says ----


@dataclass
class Record:
    """Positions of all evaluations."""

    positions: list[np.ndarray]
    forces: list[np.ndarray]


@pytest.fixture
def record(monkeypatch):
    """What the fast path was asked for, and answered."""
    seen = Record([], [])
    usual = InferenceEvaluator.evaluate

    def recorded(self, positions, *wanted):
        result = usual(self, positions, *wanted)
        seen.positions.append(positions.copy())
        seen.forces.append(result.forces.copy())
        return result

    monkeypatch.setattr(InferenceEvaluator, "evaluate", recorded)
    return seen


def test_the_rattled_copy_is_that_of_mace_torch(model, lmp, record):
    """Images move with their owners: the forces are those of the moved crystal."""
    prepare(lmp, Setup(mixed_cell(), model("plain"), "verify yes"))
    lmp.command("run 0")
    given, rattled, step = record.positions
    assert np.array_equal(given, step)
    moves = (rattled - given)[:12]
    assert np.std(moves) == pytest.approx(RATTLE, rel=0.4)
    order = by_id(lmp)
    atoms = mixed_cell()
    atoms.positions += moves[order]
    truth = mace_torch(model("plain"), atoms).forces
    np.testing.assert_allclose(record.forces[1][order], truth, rtol=0, atol=EXACT.force)


def test_the_copy_is_the_same_every_time(model, record):
    for _ in range(2):
        with opened() as lmp:
            prepare(lmp, Setup(mixed_cell(), model("plain"), "verify yes"))
            lmp.command("run 0")
    assert np.array_equal(record.positions[1], record.positions[4])


# ---- planted mistakes ----


def spoil(session: Session, factor: float) -> None:
    """Change one table of the fast path by this factor."""
    session.evaluator.model.tables.convs[1].mul_(factor)


@pytest.mark.parametrize(("precision", "factor"), [("double", 1 + 1e-7), ("single", 1.01)])
def test_a_wrong_table_stops_the_run(model, lmp, monkeypatch, precision, factor):
    start = Session.__init__

    def spoiled(self, *arguments):
        start(self, *arguments)
        spoil(self, factor)

    monkeypatch.setattr(Session, "__init__", spoiled)
    prepare(lmp, Setup(mixed_cell(), model("plain"), f"verify yes precision {precision}"))
    with pytest.raises(Exception, match="verify: the structure as given differs") as caught:
        lmp.command("run 2")
    assert lmp.extract_global("ntimestep") == 0
    message = str(caught.value)
    remedy = {"double": "add the keyword: radial exact", "single": "precision double"}[precision]
    assert remedy in message
    assert "Traceback" not in message


def test_the_rattled_copy_finds_what_symmetry_hides(model, lmp, monkeypatch):
    """Forces in a perfect crystal vanish, whatever they are multiplied with."""
    usual = InferenceEvaluator.evaluate

    def scaled(self, *arguments):
        result = usual(self, *arguments)
        return replace(result, forces=result.forces * 1.001)

    monkeypatch.setattr(InferenceEvaluator, "evaluate", scaled)
    prepare(lmp, Setup(hcp((2, 2, 2)), model("ti"), "verify yes"))
    with pytest.raises(Exception, match=r"verify: the structure rattled by 0\.05 Å differs"):
        lmp.command("run 0")


def test_other_errors_say_where_they_come_from(model, lmp):
    atoms = mixed_cell()
    atoms.positions[3] = atoms.positions[7] + [0, 0, 0.4]
    prepare(lmp, Setup(atoms, model("plain"), "verify yes"))
    with pytest.raises(Exception, match="verify: the structure as given: atoms 8 and 4 are"):
        lmp.command("run 0")


def test_no_memory_for_the_exact_path(model, lmp, monkeypatch):
    from mace_stream.torch.evaluator import TorchEvaluator

    def fail(self, *arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(TorchEvaluator, "evaluate", fail)
    prepare(lmp, Setup(mixed_cell(), model("plain"), "verify yes"))
    with pytest.raises(Exception, match="verify a smaller structure"):
        lmp.command("run 0")
