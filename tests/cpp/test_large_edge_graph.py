"""A neighbor list with more than 2^31 edges becomes a graph with 64-bit offsets."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOM = HERE.parents[1] / "pair_mace_stream"
N_EDGES = 2100 * 2**20


def run(folder: Path, room: Path) -> str:
    """Compile the program with the sources in ``room``, run it, return what it prints."""
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "no C++ compiler found; install g++"
    sources = [HERE / "large_edge_graph.cpp", room / "edge_graph.cpp"]
    target = folder / "large_edge_graph"
    command = [compiler, "-std=c++17", "-O2", f"-I{room}", *map(str, sources), "-o", str(target)]
    subprocess.run(command, check=True)
    return subprocess.run([target], capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
def test_more_than_2_31_edges(tmp_path):
    assert N_EDGES > 2**31
    assert run(tmp_path, ROOM) == f"{N_EDGES} edges, 0 wrong\n"


@pytest.mark.slow
def test_offsets_of_32_bits_are_noticed(tmp_path):
    old, new = "std::vector<std::int64_t> indptr;", "std::vector<std::int32_t> indptr;"
    for name in ("edge_graph.h", "edge_graph.cpp"):
        text = (ROOM / name).read_text(encoding="utf-8").replace(old, new)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert new in (tmp_path / "edge_graph.h").read_text(encoding="utf-8")
    assert "0 wrong" not in run(tmp_path, tmp_path)
