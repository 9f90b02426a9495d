"""Whose functions torch calls inside LAMMPS: read from the dynamic linker's own account.

LAMMPS exports a plain ``dgemm_`` and brings an OpenMP runtime. Bound to those, double precision ran
five times slower, without a word.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lammps_cells import mixed_cell
from lammps_support import Setup, run_program

BINDING = re.compile(r"binding file (.+?) \[0\] to (.+?) \[0\]: normal symbol `(\w+)'")


def bindings(folder: Path) -> set[tuple[str, str, str]]:
    """File that calls, file that answers, and name of the function."""
    found = set()
    for account in folder.glob("account.*"):
        for match in BINDING.finditer(account.read_text(errors="replace")):
            caller, answerer, symbol = match.groups()
            found.add((Path(caller).name, Path(answerer).name, symbol))
    return found


def watched(folder: Path) -> dict[str, str]:
    return {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(folder / "account")}


@pytest.fixture(scope="module")
def seen(model, tmp_path_factory):
    """Bindings of one evaluation in the program ``lmp``."""
    folder = tmp_path_factory.mktemp("linking")
    setup = Setup(mixed_cell(), model("plain"), style="device cpu precision double")
    run_program(setup, folder, "run 0", **watched(folder))
    return bindings(folder)


def test_torch_multiplies_matrices_with_its_own_blas(seen):
    answers = {answer for caller, answer, symbol in seen if symbol == "dgemm_"}
    assert answers == {"libtorch_cpu.so"}


def test_torch_and_our_kernels_share_one_openmp_runtime(seen):
    answers = {
        caller: answer
        for caller, answer, symbol in seen
        if symbol == "GOMP_parallel" and caller in ("libtorch_cpu.so", "libmace_stream_core.so")
    }
    assert len(answers) == 2
    assert len(set(answers.values())) == 1
    assert not any("e985bcbb" in answer for answer in answers.values()), "LAMMPS' own runtime"


def test_planted_without_our_care_torch_takes_lammps_blas(tmp_path):
    """The same reading finds the fault where a host program imports torch after LAMMPS."""
    text = (
        "from lammps import lammps; lammps(cmdargs=['-screen', 'none', '-log', 'none']);"
        "import torch; torch.eye(64).double() @ torch.eye(64).double()"
    )
    environment = {**os.environ, **watched(tmp_path)}
    subprocess.run([sys.executable, "-c", text], env=environment, check=True, cwd=tmp_path)
    answers = {answer for _, answer, symbol in bindings(tmp_path) if symbol == "dgemm_"}
    assert any(answer.startswith("liblammps") for answer in answers)
