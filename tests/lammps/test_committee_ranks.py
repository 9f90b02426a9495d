"""Several MPI ranks: a committee gives the numbers of one rank, and fails as one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from committee_support import DEVIATION, MOVE, NAMES, carbide, make_alike, setup_of
from lammps_cells import mixed_cell
from lammps_support import SAME
from rank_support import NUMBERS, Job, gap, run_jobs

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(200)]

STYLES = ("committee mean", "committee first radial exact")
ALL = (*NUMBERS, "c_dev", "summary")
RUN = ("neigh_modify every 3 delay 0 check no", *MOVE, "run 10")
"""New lists, and steps on which nobody asks for the deviation."""


def named(prefix: str, style: str) -> str:
    return f"{prefix} {style}".replace(" ", "_")


@pytest.fixture(scope="module")
def jobs(model) -> list[Job]:
    three, alike = tuple(model(name) for name in NAMES), make_alike(model)
    slab = mixed_cell(seed=5)
    slab.cell[2, 2] = 40.0
    found = []
    for style in STYLES:
        still = setup_of(three, carbide(), style)
        moving = setup_of(alike, slab, style, newton="off")
        found.append(Job(named("still", style), still, after=(DEVIATION,)))
        found.append(Job(named("run", style), moving, after=(DEVIATION, *RUN)))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("committee")


@pytest.fixture(scope="module")
def one_rank(jobs, folder):
    return run_jobs(jobs, 1, folder)


@pytest.mark.parametrize("n_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_number_is_that_of_one_rank(jobs, folder, one_rank, n_ranks):
    found = run_jobs(jobs, n_ranks, folder)
    gaps = {job.name: gap(found[job.name], one_rank[job.name], ALL) for job in jobs}
    assert max(gaps.values()) < SAME, gaps


def test_the_rule_does_not_change_the_deviation(one_rank):
    mean, first = (one_rank[named("still", style)] for style in STYLES)
    assert gap(first, mean, ["c_dev", "summary"]) < 1e-8
    assert np.min(mean["c_dev"]) > 0.1


@pytest.fixture(scope="module")
def failures(model, jobs, folder):
    """Failures one after the other on two ranks, then an evaluation as it should be."""
    alike = make_alike(model)
    planted = []
    for (rank, rule), number in product(((0, "mean"), (1, "first")), (1, 2)):
        setup = setup_of(alike, mixed_cell(), f"radial exact committee {rule}")
        plants = (("fail_in", rank, alike[number].path.name),)
        planted.append(Job(f"{rule}_{number}", setup, after=(DEVIATION,), plants=plants))
    setup = setup_of(alike, mixed_cell(), "radial exact committee first")
    planted.append(Job("sum", setup, after=(DEVIATION,), plants=(("skip_sum",),)))
    planted.append(Job("stop", setup, after=(f"{DEVIATION} stop 1e-6",)))
    return run_jobs([*planted, Job("right", setup, after=(DEVIATION,))], 2, folder), alike


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(("rank", "rule"), [(0, "mean"), (1, "first")])
def test_a_failure_of_one_model_ends_both_ranks(failures, number, rank, rule):
    results, alike = failures
    path = alike[number].path
    for text in results[f"{rule}_{number}"]["errors"]:
        assert f"committee failed at step 0: {path}: planted in {path.name}" in text
        assert f"(on rank {rank} of 2)" in text


def test_stop_finds_the_atom_of_any_rank(failures):
    results, _ = failures
    deviation = np.ravel(results["right"]["c_dev"])
    for text in results["stop"]["errors"]:
        assert (
            f"differ by {deviation.max():.6g} in the force on atom {deviation.argmax() + 1},"
            in text
        )


def test_cotangents_that_are_not_summed_show_in_the_deviation(failures):
    results, _ = failures
    assert gap(results["sum"], results["right"], ["c_dev"]) > 1e-4
