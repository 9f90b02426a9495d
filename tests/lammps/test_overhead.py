"""What the style costs beside the model."""

from __future__ import annotations

import re
import time

import pytest
from lammps_cells import hcp
from lammps_support import Setup, opened, prepare

from mace_stream.torch.inference.evaluator import InferenceEvaluator

OVERHEAD = 1.0
"""ms per step at a thousand atoms, on one core."""
LOOSE = 10.0
"""ms; for wall time, which other programs of the machine lengthen."""


@pytest.mark.parametrize("kind", ["full", "half"])
def test_processor_time_outside_the_model(model, lmp, monkeypatch, kind):
    """A step of LAMMPS, pair style and bridge, while the model repeats its first answer."""
    answers: dict = {}
    evaluate = InferenceEvaluator.evaluate

    def repeat(self, positions, *wanted):
        if wanted not in answers:
            answers[wanted] = evaluate(self, positions, *wanted)
        return answers[wanted]

    monkeypatch.setattr(InferenceEvaluator, "evaluate", repeat)
    prepare(lmp, Setup(hcp((8, 8, 8), rattle=0.02), model("ti"), f"neighbors {kind}"))
    lmp.command("neigh_modify delay 100000 every 100000 check no")
    lmp.command("run 1 post no")
    n_steps = 200
    start = time.process_time()
    lmp.command(f"run {n_steps} pre no post no")
    per_step = 1e3 * (time.process_time() - start) / n_steps
    print(f"{per_step:.3f} ms per step outside the model, {kind} list")
    assert per_step < OVERHEAD


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
        for part in ("list", "bridge", "arrangement", "model", "scatter")
    }
    print(f"{len(setup.atoms)} atoms, {kind} list, ms per step: {ms}")
    assert sum(ms.values()) - ms["model"] < LOOSE
