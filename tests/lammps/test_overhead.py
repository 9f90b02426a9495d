"""What the style costs beside the model; prints the numbers, since a shared machine is no clock."""

from __future__ import annotations

import re

import pytest
from lammps_cells import hcp
from lammps_support import Setup, opened, prepare

LOOSE = 10.0
"""ms; the goal is 1 ms on an idle machine, the test only notices a change of order."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "half"])
def test_overhead_per_step_at_a_thousand_atoms(model, tmp_path, kind):
    log = tmp_path / "log.lammps"
    setup = Setup(hcp((8, 8, 8), rattle=0.02), model("ti"), f"neighbors {kind}")
    with opened(log) as lmp:
        prepare(lmp, setup)
        lmp.commands_list(["timestep 0.0005", "fix 1 all nve", "run 2", "run 20"])
    last = log.read_text().rpartition("pair_style mace/stream:")[2]
    ms = {
        part: float(re.search(rf"^  {part} +([0-9.]+) ", last, re.MULTILINE).group(1))
        for part in ("list", "bridge", "model forward", "model VJP", "scatter")
    }
    print(f"{len(setup.atoms)} atoms, {kind} list, ms per step: {ms}")
    assert ms["list"] + ms["bridge"] + ms["scatter"] < LOOSE
