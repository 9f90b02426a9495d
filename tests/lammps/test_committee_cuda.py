"""A committee on a GPU: the numbers of the CPU in double precision, by every kind of list."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from committee_support import DEVIATION, MOVE, NAMES, carbide, make_alike, peratom, setup_of
from lammps_cells import mixed_cell
from lammps_support import evaluate, opened, prepare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
BOUND = 1e-8
"""Between CPU and GPU in double precision, in eV, eV/Å."""
LISTS = ("neighbors device", "neighbors full", "graphs no", "radial exact")


@pytest.mark.parametrize("style", LISTS)
def test_the_mean(model, style):
    setup = setup_of(tuple(model(name) for name in NAMES), carbide(), "device cpu precision double")
    found = evaluate(setup, style=f"device cuda precision double {style}")
    assert found.gap(evaluate(setup)) < BOUND


@pytest.mark.parametrize("rule", ["mean", "first"])
@pytest.mark.parametrize("style", LISTS)
def test_the_deviation_along_a_run(model, style, rule):
    """Asked for in the middle of a list's life, when others than the first begin to use it."""
    found = {}
    for device in ("device cpu", f"device cuda {style}"):
        words = f"{device} precision double committee {rule}"
        with opened() as lmp:
            prepare(lmp, setup_of(make_alike(model), mixed_cell(), words))
            lmp.commands_list([DEVIATION, "neigh_modify every 7 delay 0 check no", *MOVE])
            lmp.commands_list(["thermo_style custom step c_dev", "thermo 5", "run 15"])
            found[device] = peratom(lmp)
    cpu, gpu = found.values()
    np.testing.assert_allclose(gpu, cpu, rtol=0, atol=100 * BOUND)  # trajectories part slowly
    assert cpu.min() > 1e-4
