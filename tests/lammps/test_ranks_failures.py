"""Failures on several MPI ranks: planted mistakes show, and no rank waits for one that failed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from lammps_cells import hcp
from lammps_support import Setup, run_program
from rank_support import Job, gap, run_jobs

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

LAUNCH = ("mpiexec", "-n", "2")
STAGES = ("_find_edges", "_forward_tiles", "_last_layer", "_backward_tiles", "_sum_up")
CALLS = (
    *("__init__", "set_halo", "set_topology", "take_list", "start_report", "evaluate"),
    "end_report",
)


def titanium(model, style: str = "") -> Setup:
    return Setup(hcp((3, 3, 3), rattle=0.05), model("ti"), style)


@pytest.fixture(scope="module")
def results(model, tmp_path_factory):
    """Planted mistakes one after the other on two ranks, then an evaluation as it should be."""
    jobs = [
        Job(f"{plant}_{path}", titanium(model, f"radial {path}"), plants=((plant,),))
        for path in ("spline", "exact")
        for plant in ("skip_exchange", "skip_sum")
    ]
    jobs += [
        Job(f"{method}_{rank}", titanium(model), plants=(("fail_on", rank, method),))
        for method, rank in product((*STAGES, *CALLS), (0, 1))
    ]
    jobs += [Job(f"right_{p}", titanium(model, f"radial {p}")) for p in ("spline", "exact")]
    return run_jobs(jobs, 2, tmp_path_factory.mktemp("failures"), timeout=100)


@pytest.mark.parametrize("path", ["spline", "exact"])
def test_an_exchange_left_out_shows(results, path):
    wrong, right = results[f"skip_exchange_{path}"], results[f"right_{path}"]
    assert gap(wrong, right, ["energy"]) > 1e-4
    assert gap(wrong, right, ["forces"]) > 1e-4


@pytest.mark.parametrize("path", ["spline", "exact"])
def test_cotangents_that_are_not_summed_show(results, path):
    wrong, right = results[f"skip_sum_{path}"], results[f"right_{path}"]
    assert gap(wrong, right, ["energy"]) < 1e-12
    assert gap(wrong, right, ["forces"]) > 1e-4


@pytest.mark.parametrize("method", STAGES)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_at_any_stage_ends_both_ranks_with_its_message(results, method, rank):
    for text in results[f"{method}_{rank}"]["errors"]:
        assert f"failed at step 0: planted in {method} (on rank {rank} of 2)" in text


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_of_the_session_ends_both_ranks_with_its_message(results, method, rank):
    for text in results[f"{method}_{rank}"]["errors"]:
        assert f"planted in {method} (on rank {rank} of 2)" in text


def test_what_was_wrong_before_leaves_nothing_behind(results):
    assert gap(results["right_spline"], results["right_exact"], ["forces"]) < 1e-8


def test_the_program_ends_with_one_message_where_one_rank_fails(model, tmp_path):
    setup = titanium(model)
    atoms = setup.atoms.copy()
    first, second = np.argsort(atoms.positions[:, 2])[:2]
    atoms.positions[second] = atoms.positions[first] + [0.1, 0, 0]
    done = run_program(replace(setup, atoms=atoms), tmp_path, "run 2", launch=LAUNCH)
    assert done.returncode != 0
    assert done.stdout.count("ERROR") == 1
    assert "are 0.1000 Å apart" in done.stdout
    assert "of 2)" in done.stdout
    assert "Traceback" not in done.stdout
