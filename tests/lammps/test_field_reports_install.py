"""Installations that other interfaces stumbled over (docs/field_reports.md)."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from lammps_cells import mixed_cell
from lammps_support import Setup, binary, define, opened, run_lmp, run_program
from plugin_builds import build_plugin

import mace_stream
from mace_stream.compiled import compiled_directory

RANKS = ("mpiexec", "-n", "2")
PLUGIN = compiled_directory()


@pytest.fixture
def setup(model) -> Setup:
    return Setup(mixed_cell(), model("plain"))


def only_error(text: str) -> str:
    """The one line of LAMMPS' error; no traceback, nothing said twice."""
    assert text.count("ERROR") == 1, text[-2000:]
    assert "Traceback" not in text
    return text[text.index("ERROR") :]


# ---- versions ----


def test_a_compiled_part_of_another_version(setup, lmp, monkeypatch):
    """R01: both are named, before the model is read."""
    monkeypatch.setattr(mace_stream, "__version__", "0.0.9")
    define(lmp, setup)
    right = r"that of mace-stream 0\.1\.0, the Python package that of 0\.0\.9; install"
    with pytest.raises(Exception, match=right):
        lmp.command("pair_style mace/stream")


def test_another_family_of_mpi(setup, tmp_path):
    """R07."""
    folder = build_plugin(tmp_path, 20250722, "22 Jul 2025", "Open MPI")
    done = run_program(setup, tmp_path, "run 0", program=binary(), LAMMPS_PLUGIN_PATH=str(folder))
    assert done.returncode != 0
    assert "built with MPI library Open MPI, this LAMMPS runs on MPICH" in only_error(done.stdout)


def test_the_plugin_needs_no_mpi_and_no_python_to_load():
    """R06, R07, R10: whatever is missing, there is a message and no loader's error."""
    file = PLUGIN / "mace_streamplugin.so"
    table = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True)
    needed = [
        line.split("[")[1].rstrip("]") for line in table.stdout.splitlines() if "NEEDED" in line
    ]
    assert "libstdc++.so.6" in needed
    assert not [name for name in needed if any(k in name for k in ("mpi", "python", "lammps"))]


# ---- plugins ----


def test_lammps_lists_the_plugin_and_the_style(tmp_path):
    """R08."""
    (tmp_path / "in.test").write_text("plugin list\ninfo styles pair\n")
    found = run_lmp(tmp_path, program=binary(), LAMMPS_PLUGIN_PATH=str(PLUGIN)).stdout
    assert "pair style plugin mace/stream" in found
    assert "mace/stream" in found.split("Pair styles:")[1]
    assert "mace/stream" not in run_lmp(tmp_path, program=binary()).stdout


# ---- interpreters ----


def run_bare(setup: Setup, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """The program itself, in an environment with nothing but these variables."""
    with opened() as lmp:
        define(lmp, setup)
        lmp.command(f'write_data "{folder}/data.atoms" nocoeff')
    run_program(setup, folder, "run 0", program="true")
    kept = {k: os.environ[k] for k in ("LD_LIBRARY_PATH", "PATH") if k in os.environ}
    return subprocess.run(
        [binary(), "-in", "in.test", "-nocite"],
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", "LAMMPS_PLUGIN_PATH": str(PLUGIN), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_interpreter_that_is_named_is_taken(setup, tmp_path):
    """R09: without an active environment."""
    done = run_bare(setup, tmp_path, MACE_STREAM_PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_an_interpreter_that_is_not_there(setup, tmp_path):
    """R09."""
    done = run_bare(setup, tmp_path, MACE_STREAM_PYTHON="/nowhere/python3")
    message = only_error(done.stdout)
    assert "no Python interpreter at /nowhere/python3; set MACE_STREAM_PYTHON" in message


def test_an_environment_without_the_package(setup, tmp_path):
    """R09: interpreter, folders and module are named."""
    venv.create(tmp_path / "empty", with_pip=False)
    python = tmp_path / "empty" / "bin" / "python3"
    done = run_bare(setup, tmp_path, MACE_STREAM_PYTHON=str(python))
    message = only_error(done.stdout)
    assert "No module named 'mace_stream'" in message
    assert f"Python interpreter: {python}" in message
    assert "searched:" in message
    assert "MACE_STREAM_PYTHON" in message


# ---- files that are no models, on several ranks ----


@pytest.mark.mpi
def test_a_checkpoint_is_told_once(setup, tmp_path):
    """R03."""
    torch.save({"model": setup.model.torch.state_dict()}, tmp_path / "ckpt.pt")
    usual = f'"{setup.model.path}"'
    run_program(setup, tmp_path, "run 0", program="true")
    text = (tmp_path / "in.test").read_text().replace(usual, "ckpt.pt")
    (tmp_path / "in.test").write_text(text)
    done = run_lmp(tmp_path, RANKS)
    assert done.returncode != 0
    message = only_error(done.stdout)
    assert "ckpt.pt: expected a .mace file, found" in message
    assert "(on rank 0 of 2)" in message
