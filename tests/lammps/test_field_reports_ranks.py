"""Two ranks in situations that other interfaces stumbled over (docs/field_reports.md).

All are done by one process per number of ranks; those that end with an error come last.
"""

from __future__ import annotations

import pytest
from ase import Atoms
from lammps_cells import cluster, mixed_cell
from lammps_models import mace_torch
from lammps_support import Setup
from rank_support import Job, gap, run_jobs

pytestmark = pytest.mark.mpi

SAME = (
    "middle",
    "boundary",
    "both",
    "second_excluded",
    "second_deleted",
    "drift",
    "others",
    "taken_over",
)
HALVES = ("processors 1 1 *",)
DRIFT = (
    "velocity all create 300 4711",
    "velocity all set 0 0 400 sum yes",
    "timestep 0.001",
    "fix move all nve",
    "run 60",
)
FLING = (
    *("neigh_modify every 1000 delay 1000 check no", "fix move all nve", "timestep 0.001", "run 1"),
    *("group bad id 7", "velocity bad set 0 1e300 0", "run 3 pre no"),
)


def water(at: float) -> Atoms:
    return Atoms("OHH", [[2, 2, at], [2.96, 2, at], [1.76, 2.93, at]], cell=[12, 12, 40], pbc=True)


def tall(atoms: Atoms, width: float) -> Atoms:
    """The same atoms in a periodic cell 40 Å high."""
    atoms = atoms.copy()
    atoms.set_cell([width, width, 40])
    atoms.pbc = True
    return atoms


def jobs(model) -> list[Job]:
    plain = model("plain")
    molecule = cluster()
    molecule.pbc = True
    place = Setup(molecule, plain)
    both = Setup(water(2.0) + water(22.0), plain)
    ours = mixed_cell()[mixed_cell().numbers != 8]
    oxygen = Atoms("O3", [[1, 1, 30], [5, 1, 30], [1, 5, 31]])
    hybrid = (
        "pair_style hybrid mace/stream lj/cut 6.0",
        f'pair_coeff * * mace/stream "{plain.path}" C H NULL Si',
        "pair_coeff 1*3 3 lj/cut 0.01 3.0",
        "pair_coeff 3 4 lj/cut 0.01 3.0",
    )
    group = ("group kept id 1:7", "atom_modify first kept", "neigh_modify include kept")
    mixed = Setup(mixed_cell(), plain)
    return [
        Job("middle", place),
        Job("boundary", place, after=("displace_atoms all move 6 5 6.5 units box",)),
        Job("both", both),
        Job("second_excluded", both, after=("group g id 4:6", "neigh_modify exclude group g all")),
        Job("second_deleted", both, after=("group g id 4:6", "delete_atoms group g")),
        Job("drift", Setup(tall(cluster(), 12), plain), before=HALVES, after=DRIFT),
        Job("others", Setup(tall(ours, 9) + oxygen, plain), before=HALVES, after=hybrid),
        Job("taken_over", mixed, after=tuple(line.replace("NULL", "O") for line in hybrid)),
        Job("null", mixed, after=hybrid),
        Job("group_only", mixed, after=group),
        Job("flung", mixed, after=FLING),
        Job("verify", Setup(mixed_cell(), plain, "verify yes")),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def one(model, folder):
    return run_jobs(jobs(model), 1, folder)


@pytest.fixture(scope="module")
def two(model, folder):
    return run_jobs(jobs(model), 2, folder)


@pytest.mark.parametrize("name", SAME)
def test_every_number_is_that_of_one_rank(one, two, name):
    """R34, R60, R77, R78, R87."""
    assert gap(two[name], one[name]) < 1e-9


def test_a_molecule_across_a_boundary(two):
    """R34."""
    assert gap(two["boundary"], two["middle"], ["energy", "forces"]) < 1e-9


def test_a_molecule_that_another_rank_owns_is_excluded(model, two):
    """R77, R78: as if it were deleted."""
    single = mace_torch(model("plain"), water(2.0)).energy
    assert min(two["both"]["n_local"]) == 3
    assert abs(two["both"]["energy"] - 2 * single) < 1e-9
    assert abs(two["second_excluded"]["energy"] - single) < 1e-9
    assert abs(two["second_deleted"]["energy"] - single) < 1e-9


def test_lists_of_a_group(model, one, two):
    """Forces of other atoms are not cleared by LAMMPS, and so not compared."""
    right = mace_torch(model("plain"), mixed_cell()[:7]).energy
    assert gap(two["group_only"], one["group_only"], ["energy", "pressure"]) < 1e-9
    assert abs(two["group_only"]["energy"] - right) < 1e-8


def test_types_whose_pairs_are_all_taken_over_are_as_null(one, two):
    """R87, R88: hybrid gives every pair of a type to another style."""
    for found in (one, two):
        assert gap(found["taken_over"], found["null"]) < 1e-9


def test_the_cases_have_what_they_are_for(two):
    """R60, R87: a rank without atoms in the end, and one without atoms of the model."""
    assert 0 in two["drift"]["n_local"]
    assert min(two["others"]["n_local"]) == 3


def test_an_atom_at_no_place_stops_all_ranks(two):
    for text in two["flung"]["errors"]:
        assert "failed at step 2: atom 7 is at (" in text
        assert "of 2)" in text


def test_what_works_on_one_rank_only_is_refused_on_two(one, two):
    """R58."""
    assert one["verify"]["errors"] == [None]
    for text in two["verify"]["errors"]:
        assert "verify yes works on one MPI rank" in text
