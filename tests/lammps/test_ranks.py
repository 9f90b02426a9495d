"""Several MPI ranks give the numbers of one rank."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import carbide, cluster, hcp, mixed_cell, one_atom_cell, triclinic_cell
from lammps_support import SAME, Setup
from rank_support import Job, gap, run_jobs

pytestmark = pytest.mark.mpi


def slab() -> Atoms:
    """The mixed cell with vacuum above, so that upper ranks have nothing."""
    atoms = mixed_cell(seed=5)
    atoms.cell[2, 2] = 40.0
    return atoms


def far_apart() -> Atoms:
    """Two atoms that do not see each other."""
    return Atoms("HO", [[1, 1, 1], [8, 8, 8]], cell=[15, 15, 15], pbc=True)


CELLS = {
    "mixed": ("plain", mixed_cell()),
    "cluster": ("plain", cluster()),
    "slab": ("plain", slab()),
    "far_apart": ("plain", far_apart()),
    "one_layer": ("one_layer", triclinic_cell()),
    "three_layers": ("three_layers", triclinic_cell()),
    "three_layers_slab": ("three_layers", slab()),
    "one_atom": ("ti", one_atom_cell()),
}


def cases(model) -> list[Job]:
    """Everything that has to be the same on any number of ranks."""
    jobs = [Job(name, Setup(atoms, model(twin))) for name, (twin, atoms) in CELLS.items()]
    for style, newton in product(("spline", "exact", "spline neighbors half"), ("on", "off")):
        name = f"carbide_{style}_{newton}".replace(" ", "_")
        jobs.append(Job(name, Setup(carbide(), model("binary"), f"radial {style}", newton)))
    half = Setup(slab(), model("three_layers"), "radial exact neighbors half")
    ti = Setup(hcp((4, 4, 2), rattle=0.1), model("ti"))
    return [
        *jobs,
        *(
            Job(f"gated_{radial}", Setup(carbide(), model("charged"), f"radial {radial} charge 1"))
            for radial in ("spline", "exact")
        ),
        Job("exact_half", half),
        Job("tiled", ti, before=("comm_style tiled",), after=("balance 1.0 rcb",)),
        Job("shift", ti, after=("balance 1.0 shift xyz 10 1.02",)),
        Job("columns", ti, before=("processors * 1 1",)),
        Job("layers", ti, before=("processors 1 1 *",)),
        Job("wide_ghosts", ti, before=("comm_modify cutoff 9.0",)),
        Job("real", replace(ti, units="real")),
    ]


@pytest.fixture(scope="module")
def jobs(model):
    return cases(model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def one_rank(jobs, folder):
    return run_jobs(jobs, 1, folder)


@pytest.mark.parametrize(
    "n_ranks",
    [2, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 8))],
    ids="ranks{}".format,
)
def test_every_number_is_that_of_one_rank(jobs, folder, one_rank, n_ranks):
    found = run_jobs(jobs, n_ranks, folder)
    gaps = {job.name: gap(found[job.name], one_rank[job.name]) for job in jobs}
    assert max(gaps.values()) < SAME, gaps


def test_the_cases_have_what_they_are_for(one_rank, jobs, folder):
    found = run_jobs([job for job in jobs if job.name in ("slab", "one_atom")], 4, folder)
    assert 0 in found["slab"]["n_local"]
    assert sorted(found["one_atom"]["n_local"]) == [0, 0, 0, 1]
    assert np.abs(one_rank["mixed"]["forces"]).max() > 0.01
