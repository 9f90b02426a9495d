"""LAMMPS and torch share one OpenMP runtime: threaded styles beside ours must keep their threads.

An evaluation that leaves another number of threads behind lets LAMMPS' next threaded loop skip
atoms, without a word.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch
from lammps_cells import hcp
from lammps_support import Setup, by_id, define, opened

from mace_stream.torch.evaluator import TorchEvaluator

THREADS = 2


def overlay_forces(model, threaded: bool, each_step: Callable[[], object] | None = None):
    """Forces after two steps of an overlay with lj/cut or lj/cut/omp, eV/Å."""
    suffix, arguments = ("/omp", ("-pk", "omp", str(THREADS))) if threaded else ("", ())
    with opened("none", *arguments) as lmp:
        setup = Setup(hcp((3, 3, 2), rattle=0.1), model("ti"))
        define(lmp, setup)
        lmp.commands_list(
            [
                f"pair_style hybrid/overlay lj/cut{suffix} 6.0 mace/stream",
                f"pair_coeff * * lj/cut{suffix} 0.01 2.5",
                f'pair_coeff * * mace/stream "{setup.model.path}" Ti',
                "fix move all nve",
            ]
        )
        if each_step:
            lmp.command("fix plant all external pf/callback 1 1")
            lmp.set_fix_external_callback("plant", lambda *arguments: each_step())
        lmp.command("run 2 post no")
        return lmp.numpy.extract_atom("f")[by_id(lmp)].copy()


@pytest.fixture
def restored_threads():
    """Give the test process its number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("restored_threads")
def test_a_threaded_style_beside_ours(model):
    serial = overlay_forces(model, threaded=False)
    assert np.abs(overlay_forces(model, threaded=True) - serial).max() < 1e-12


@pytest.mark.usefixtures("restored_threads")
def test_a_model_that_changes_the_threads_does_no_harm(model, monkeypatch):
    """The guard around every entry into Python puts LAMMPS' number back."""
    serial = overlay_forces(model, threaded=False)
    evaluate = TorchEvaluator.evaluate

    def careless(self, *arguments):
        result = evaluate(self, *arguments)
        torch.set_num_threads(1)
        return result

    monkeypatch.setattr(TorchEvaluator, "evaluate", careless)
    assert np.abs(overlay_forces(model, threaded=True) - serial).max() < 1e-12


@pytest.mark.usefixtures("restored_threads")
def test_threads_lost_elsewhere_are_noticed(model):
    """The same change outside the guard gives wrong forces, so the tests above can fail."""
    serial = overlay_forces(model, threaded=False)
    set_threads = ctypes.CDLL(None).omp_set_num_threads
    wrong = overlay_forces(model, threaded=True, each_step=lambda: set_threads(1))
    assert np.abs(wrong - serial).max() > 1e-3
