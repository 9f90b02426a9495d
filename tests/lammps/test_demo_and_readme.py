"""The demo's script and numbers, and the input that the README shows."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("run_demo", ROOT / "examples/demo/run_demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_thermo_lines_are_told_from_others(demo):
    lines = [
        "   Step          Time           Temp   \n",
        "         0  0 600 -1391.3 22.3 -1369.0 4795.9\n",
        "Loop time of 1.2 on 1 procs\n",
        "1 by 1 by 1 MPI processor grid\n",
        "         5  0.01 553 -1389.5 20.5 -1369.0 7080.8\n",
    ]
    assert demo.thermo_table(lines)[:, 0].tolist() == [0, 5]
    assert demo.thermo_table([]).shape == (0, 7)


def test_the_drift_is_the_slope_per_atom_without_the_start(demo):
    thermo = np.zeros((40, 7))
    thermo[:, 1] = np.linspace(0, 2, 40)
    thermo[:, 5] = -100 + 3e-4 * thermo[:, 1]
    thermo[:10, 5] += 0.5
    assert demo.drift_per_atom(thermo, 10) == pytest.approx(3e-5)


def run_lmp(*arguments: str) -> subprocess.CompletedProcess:
    lmp = Path(sys.executable).with_name("lmp")
    command = [str(lmp), "-log", "none", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_demo_input_runs(demo):
    done = run_lmp("-in", str(demo.INPUT), "-var", "steps", "2", "-var", "every", "1")
    assert done.returncode == 0, done.stdout[-2000:]
    thermo = demo.thermo_table(done.stdout.splitlines())
    assert thermo[:, 0].tolist() == [0, 1, 2]
    assert thermo[0, 2] == pytest.approx(600)
    assert np.ptp(thermo[:, 5]) / 288 < 1e-6


def test_the_input_in_the_readme_runs(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^    units .*?^    run +100$", readme, re.MULTILINE | re.DOTALL)
    script = tmp_path / "in.readme"
    script.write_text(re.sub(r"^    ", "", block, flags=re.MULTILINE).replace("100", "1") + "\n")
    done = run_lmp("-in", str(script))
    assert done.returncode == 0, done.stdout[-2000:]
    assert "1 steps with 288 atoms" in done.stdout
