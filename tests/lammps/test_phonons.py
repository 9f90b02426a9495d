"""The example of phonons, and the first program of docs/hessian.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "phonons"))


@pytest.fixture(scope="module")
def example():
    """The example's functions, and exact force constants of a small supercell."""
    pytest.importorskip("phonopy", reason="needs phonopy: pip install 'mace-stream[phonons]'")
    import phonons_hcp_ti

    phonon = phonons_hcp_ti.titanium((2, 2, 1))
    return phonons_hcp_ti, phonon, phonons_hcp_ti.exact_force_constants(phonon)


def test_force_constants_are_the_limit_of_differences(example):
    """The error falls with the square of the displacement."""
    phonons, phonon, exact = example
    gaps = [
        np.abs(phonons.displaced_force_constants(phonon, d, "radial spline") - exact).max()
        for d in (1e-2, 1e-4)
    ]
    assert 1e-4 < gaps[0] < 0.1
    assert gaps[1] == pytest.approx(gaps[0] / 1e4, rel=0.1)


def test_frequencies(example):
    """Three acoustic branches begin at zero, without any correction; no mode is unstable."""
    phonons, phonon, exact = example
    at_gamma, *others = phonons.frequencies(phonon, exact)
    assert np.abs(at_gamma[:3]).max() < 1e-4
    assert (at_gamma[3:] > 3).all()
    assert (np.array(others) > 1).all()


def test_a_transposed_array_is_noticed(example):
    """Atoms of the rows taken for directions."""
    phonons, phonon, exact = example
    wrong = exact.swapaxes(2, 3)[:, ::-1]
    right = phonons.displaced_force_constants(phonon, 1e-3, "")
    assert np.abs(wrong - right).max() > 0.1


def test_the_program_of_the_page_runs():
    page = (ROOT / "docs" / "hessian.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
