"""The benchmark of molecular dynamics: what it runs, what it calls wrong, what it writes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mace_stream.bench import md, md_lammps, md_plot, md_reference
from mace_stream.bench.md_measurement import checked_atoms
from mace_stream.bench.md_models import ModelFiles
from mace_stream.bench.md_system import CELL, make_system, nearest_shape
from mace_stream.cli import app
from mace_stream.convert import convert
from mace_stream.testing.twins import tiny

README = Path(__file__).parents[2] / "docs" / "benchmarks" / "README.md"
lammps = pytest.mark.lammps


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two small models that differ in their weights."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        source = folder / f"twin_{seed}.model"
        torch.save(tiny("OMAT-0 medium", elements=(22,), seed=seed), source)
        convert(source, source.with_suffix(".mace"))
    return folder


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Nothing that another run has kept is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def settings(models):
    files = ModelFiles("twin", models / "twin_0.mace", models / "twin_0.model")
    return md.Settings(models=files, threads=1, steps=3)


@pytest.fixture(scope="module")
def command(models, tmp_path_factory):
    """One run of the command, ours and a peer."""
    folder = tmp_path_factory.mktemp("run")
    result = invoke(
        *("--sizes", "384", "--steps", "3", "--device", "cpu", "--threads", "1"),
        *("--precision", "double,single", "--with", "mace:384", "--model", models / "twin_0.model"),
        *("--json", "--csv", folder / "md.csv"),
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), folder / "md.csv"


def invoke(*words):
    return CliRunner().invoke(app, ["bench", "md", *map(str, words)])


# ---- LAMMPS' account ----


@pytest.mark.parametrize(("ranks", "threads"), [(1, "no"), (1, "2"), (2, "1"), (4, "3")])
def test_threads_are_no_ranks(ranks, threads):
    """LAMMPS' "procs" are ranks times threads."""
    procs = ranks * (1 if threads == "no" else int(threads))
    text = (
        f"Loop time of 0.5 on {procs} procs for 10 steps with 432 atoms\n"
        f"99.0% CPU use with {ranks} MPI tasks x {threads} OpenMP threads\n"
    )
    assert md_lammps.loop_time(text) == {"ms_per_step": 50.0, "ranks": ranks}


# ---- the system ----


@pytest.mark.parametrize("n_atoms", [16, 432, 1024, 5488, 16000, 128000, 1_000_000])
def test_common_sizes_are_met_exactly_by_compact_boxes(n_atoms):
    sides = nearest_shape(n_atoms) * np.array(CELL)
    assert 4 * np.prod(nearest_shape(n_atoms)) == n_atoms
    assert sides.max() < 2 * sides.min()


def test_other_sizes_are_met_nearly():
    assert make_system(250).n_atoms == 252
    assert make_system(5000).n_atoms == 4992


def test_too_few_atoms_are_refused():
    with pytest.raises(ValueError, match="at least 4 atoms, got 3"):
        make_system(3)


def test_atoms_are_where_hexagonal_titanium_has_them():
    system = make_system(432)
    assert len(system.pattern) == 72
    assert system.positions().shape == (432, 3)
    assert 54 < system.edges_per_atom(6.0) < 56
    assert system.edges_per_atom(3.5) == pytest.approx(12, abs=0.1)


def test_checked_atoms_come_from_everywhere():
    atoms, pattern = checked_atoms(1_000_000), len(make_system(1_000_000).pattern)
    assert 400 < len(atoms) < 600
    assert atoms[-1] > 998_000
    assert set(atoms % pattern) == set(range(pattern))
    assert list(checked_atoms(16)) == list(range(16))


# ---- the command ----


@lammps
def test_every_result_is_checked_and_right(command):
    """In single precision the yardstick is mace-torch in float32."""
    results = {(r["row"]["impl"], r["row"]["precision"]): r for r in command[0]}
    impls, precisions = ("mace_stream", "mace_torch_e3nn"), ("double", "single")
    assert list(results) == [(impl, precision) for precision in precisions for impl in impls]
    for result in results.values():
        assert result["status"] == "ok"
        assert "mace-torch" in result["reference"]
        assert result["row"]["n_atoms"] == 384  # eight copies of a pattern
        assert all(result["row"][name] > 0 for name in ("ms_per_step", "first_step_s"))
        assert result["row"]["peak_mib"] > 50
    for error, exact in (("energy_error", 1e-9), ("force_error", 1e-8)):
        yardstick = results["mace_torch_e3nn", "single"][error]
        assert results["mace_stream", "double"][error] < exact
        assert 0 < results["mace_stream", "single"][error] <= yardstick


@lammps
@pytest.mark.slow
def test_lammps_and_the_profiler_tell_where_the_time_went(settings):
    more = replace(settings, rebuilds=True, profile=True)
    (result,) = md.run([16], {}, ["double"], more)
    parts = result.measurement.parts
    tasks = sum(parts[task] for task in md_lammps.TASKS)
    assert tasks == pytest.approx(result.row.ms_per_step, rel=0.05)
    assert parts["step with new list"] > parts["list by LAMMPS"] > 0
    assert "µs per atom and step" in result.measurement.report
    assert "µs/step" in result.measurement.profile


@lammps
def test_the_table_has_the_documented_columns(command):
    rows = list(csv.DictReader(command[1].open()))
    assert len(rows) == 4
    assert list(rows[0]) == md.columns()
    assert all(f"`{column}`" in README.read_text() for column in rows[0])
    for row in rows:
        per_atom = 1e3 * float(row["ms_per_step"]) / int(row["n_atoms"])
        assert float(row["us_per_atom_step"]) == pytest.approx(per_atom, rel=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--with", "nobody"], "--with nobody: expected one of mace, cueq, xl"),
        (["--with", "cueq", "--device", "cpu"], "needs a GPU; leave cueq out"),
        (["--with", "mace:many"], "expected whole numbers"),
        (["--sizes", "16,few"], "--sizes: expected whole numbers"),
        (["--precision", "half"], "--precision: expected double or single, got half"),
        (["--device", "tpu"], "--device: expected auto, cpu or cuda"),
        (["--model", "absent.model"], "absent.model: no such file"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(words, message):
    device = [] if "--device" in words else ["--device", "cpu"]
    result = invoke(*words, *device)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_peer_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = invoke("--with", "xl", "--device", "cpu")
    assert result.exit_code == 2
    assert "pip install symmetrix-xl" in result.stderr


def test_peers_want_the_file_of_mace_torch(models, tmp_path):
    ours = tmp_path / "alone.mace"
    ours.write_bytes((models / "twin_0.mace").read_bytes())
    result = invoke("--model", ours, "--with", "mace", "--device", "cpu")
    assert result.exit_code == 2
    assert "give that: --model FILE.model" in result.stderr


# ---- what is called wrong, and what fails ----


@lammps
def test_a_planted_wrong_model_is_called_wrong(settings, models):
    """The reference has other weights than the file that LAMMPS runs."""
    files = replace(settings.models, ours=models / "twin_1.mace")
    (result,) = md.run([16], {}, ["double"], replace(settings, models=files))
    assert result.status == "wrong_result"
    assert result.row.ms_per_step is None
    assert not result.belongs_in_table


def test_a_kept_reference_is_that_of_this_model_and_pattern(models, own_cache):
    first, other = make_system(16), make_system(16, temperature=600)
    names = ("mace-torch 1, float64", "mace-torch 2, float64")
    files = [models / f"twin_{seed}.mace" for seed in (0, 1)]
    places = {
        md_reference.place_of(name, file, head, system)
        for name in names
        for file in files
        for head in ("", "b")
        for system in (first, other)
    }
    assert len(places) == 16
    place = md_reference.place_of(names[0], files[0], "", first)
    assert not place.exists()
    md_reference.keep(place, md_reference.Reference(names[0], -5.0, np.ones((16, 3))))
    assert md_reference.read(place, names[0]).energy == -5.0


def test_that_a_system_does_not_fit_is_a_row(settings, tmp_path):
    failed = md.Measurement("x", "single", 16).failed("LAMMPS ended: out of memory (GPU)")
    row = md.make_row(failed, settings, 55.0)
    assert md.judge(failed, row, md.Reference("exact", 0.0, np.zeros((8, 3)))).belongs_in_table
    md.append_csv(tmp_path / "md.csv", row)
    (written,) = csv.DictReader((tmp_path / "md.csv").open())
    assert written["n_atoms"] == "16"
    assert written["us_per_atom_step"] == ""


@pytest.mark.parametrize("error", [2e-3, float("nan")])
def test_a_small_planted_error_is_called_wrong(settings, error):
    forces = np.random.default_rng(0).normal(size=(8, 3))
    reference = md.Reference("exact", -5.0, forces)
    measured = md.Measurement("x", "single", 16, ms_per_step=1.0, energy=-5.0)
    row = md.make_row(measured, settings, 55.0)
    repeated = np.concatenate([forces, forces])
    for factor, status in ((1.0, "ok"), (1 + error, "wrong_result")):
        one = replace(measured, forces=factor * repeated)
        assert md.judge(one, row, reference).status == status
    shifted = replace(measured, forces=repeated, energy=-5.0 + error)
    assert md.judge(shifted, row, reference).status == "wrong_result"


@lammps
@pytest.mark.mpi
@pytest.mark.slow
def test_ranks_are_counted_and_give_the_same(settings):
    (result,) = md.run([384], {}, ["double"], replace(settings, ranks=2))
    assert result.status == "ok"
    assert result.row.ranks == 2


@pytest.mark.parametrize(
    ("options", "impl"),
    [
        ("", "mace_stream"),
        ("radial exact backend jax", "mace_stream_jax"),
        ("backend torch head jax", "mace_stream"),
    ],
)
def test_the_row_names_the_backend(settings, options, impl):
    run = md_lammps.Run(make_system(16), settings.models.ours, "cpu", "double", 1, options)
    assert run.impl == impl


@lammps
@pytest.mark.slow
def test_jax_is_measured_too(settings):
    pytest.importorskip("mace_stream.jax", exc_type=ImportError)
    (result,) = md.run([384], {}, ["double"], replace(settings, options="backend jax"))
    assert (result.row.impl, result.status) == ("mace_stream_jax", "ok")
    assert result.force_error_max < 1e-7


@lammps
@pytest.mark.slow
def test_without_mace_torch_the_exact_path_is_the_reference(settings):
    alone = replace(settings, models=replace(settings.models, source=None))
    ours, theirs = (md.exact_results([16], each)[16] for each in (alone, settings))
    assert "exact" in ours.name
    assert "mace-torch" in theirs.name
    assert ours.energy == pytest.approx(theirs.energy, abs=1e-9)
    assert np.abs(ours.forces - theirs.forces).max() < 1e-8


@lammps
def test_a_failure_is_a_row_with_lammps_own_words(settings):
    (result,) = md.run([16], {}, ["double"], replace(settings, options="radial wrongly"))
    assert "keyword radial: expected" in result.status
    assert not result.belongs_in_table


def test_a_peer_that_dies_is_a_row_with_its_last_words(settings, models, tmp_path):
    broken = tmp_path / "broken.model"
    broken.write_bytes((models / "twin_0.model").read_bytes()[:5000])
    job = md.Job("mace", broken, "cpu", "double", (16, 64), 300.0, threads=1)
    measured = list(md.md_peer_process.measure(job, tmp_path))
    assert [one.n_atoms for one in measured] == [16, 64]
    assert all("ended with status 1: " in one.status for one in measured)


def test_forces_of_other_atoms_are_noticed(tmp_path):
    system = make_system(384)
    number = np.arange(1, 385)
    table = np.column_stack([number, system.positions(), np.ones((384, 3))])
    for swapped in (False, True):
        table[:2, 0] = [2, 1] if swapped else [1, 2]
        np.savetxt(tmp_path / "dump", table, header="\n" * 8, comments="")
        if swapped:
            with pytest.raises(RuntimeError, match="2 of 384 atoms are not where"):
                md_lammps.read_forces(tmp_path / "dump", system)
        else:
            assert md_lammps.read_forces(tmp_path / "dump", system).shape == (384, 3)


# ---- pictures ----


def test_pictures_show_the_latest_rows(tmp_path):
    table = tmp_path / "md.csv"
    blank = dict.fromkeys(md.columns(), "x")
    for impl, n_atoms, time in (
        ("a", 16, 9),
        ("a", 16, 3),
        ("a", 64, 2),
        ("b", 16, 7),
        ("b", 64, ""),
    ):
        numbers = {"n_atoms": n_atoms, "us_per_atom_step": time, "peak_mib": 100}
        write_row(table, {**blank, **numbers, "impl": impl})
    rows = list(csv.DictReader(table.open()))
    drawn = md_plot.curves([row for row in rows if row["us_per_atom_step"]], "us_per_atom_step")
    assert drawn == {"a": {16: 3.0, 64: 2.0}, "b": {16: 7.0}}
    result = CliRunner().invoke(app, ["bench", "plot", "--csv", str(table)])
    assert result.exit_code == 0, result.output
    assert all((tmp_path / name).stat().st_size > 1000 for name in md_plot.PICTURES)


def test_an_empty_table_is_refused(tmp_path):
    table = tmp_path / "md.csv"
    write_row(table, dict.fromkeys(md.columns(), ""))
    result = CliRunner().invoke(app, ["bench", "plot", "--csv", str(table)])
    assert result.exit_code == 2
    assert "no measurements" in result.stderr


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("devce=cpu", "no such column; there are commit"),
        ("device", "expected COLUMN=VALUE"),
        ("device=abacus", "no measurements where {'device': 'abacus'}"),
    ],
)
def test_pictures_of_chosen_rows(tmp_path, where, message):
    table = tmp_path / "md.csv"
    numbers = {"n_atoms": 16, "us_per_atom_step": 2, "peak_mib": 100}
    for device in ("cpu", "cuda"):
        write_row(table, {**dict.fromkeys(md.columns(), "x"), **numbers, "device": device})
    command = ["bench", "plot", "--csv", str(table), "--where"]
    assert CliRunner().invoke(app, [*command, "device=cpu"]).exit_code == 0
    result = CliRunner().invoke(app, [*command, where])
    assert result.exit_code == 2
    assert message in result.stderr


def write_row(table, row):
    new = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, md.columns())
        if new:
            writer.writeheader()
        writer.writerow(row)
