"""`mace-stream doctor`: every fault is named, with what to type."""

import importlib
import importlib.metadata
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

# The package's attribute of this name is the command, not its module.
doctor = importlib.import_module("mace_stream.cli.doctor")


def only(monkeypatch, *checks):
    """Let ``doctor`` find these checks and nothing else."""
    monkeypatch.setattr(doctor, "examine", lambda: list(checks))
    app = typer.Typer()
    app.command()(doctor.doctor)
    return CliRunner().invoke(app, [], env={"COLUMNS": "200"})


def test_all_well_is_status_zero(monkeypatch):
    result = only(monkeypatch, doctor.Check("a", "ok", "fine"), doctor.Check("b", "note", "odd"))
    assert result.exit_code == 0
    assert "Ready" in result.output


def test_a_fault_is_status_one(monkeypatch):
    result = only(monkeypatch, doctor.Check("MPI", "fault", "none", "pip install 'x[y]'"))
    assert result.exit_code == 1
    assert "Not ready: MPI" in result.output
    assert "pip install 'x[y]'" in result.output  # brackets are not markup


@pytest.mark.lammps
def test_this_installation_is_sound():
    faults = [check for check in doctor.examine({}) if check.status == "fault"]
    assert not faults


@pytest.mark.parametrize("name", ["PYTHONHOME", "PYTHONPATH"])
def test_variables_that_redirect_python_are_noted(name):
    check = doctor.check_environment({name: "/odd"})
    assert (check.status, f"unset {name}" in check.remedy) == ("note", True)
    assert doctor.check_environment({}).status == "ok"


def lose(monkeypatch, package):
    """Let ``package`` look as if it were not installed."""
    real = importlib.metadata.version

    def version(name):
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize(
    ("package", "check"),
    [
        ("lammps", doctor.check_lammps),
        ("mpich", doctor.check_mpi),
        ("mace-stream", doctor.check_python),
    ],
)
def test_a_missing_package_is_a_fault(monkeypatch, package, check):
    lose(monkeypatch, package)
    found = check()
    assert found.status == "fault"
    assert "pip install" in found.remedy


def test_mace_torch_is_optional(monkeypatch):
    lose(monkeypatch, "mace-torch")
    assert doctor.check_mace_torch().status == "ok"


def test_a_plugin_for_another_lammps_is_a_fault(monkeypatch):
    monkeypatch.setattr(doctor, "build_info", lambda: {"lammps_num_ver": 20240829})
    check = doctor.check_lammps()
    assert check.status == "fault"
    assert "20240829" in check.found
    assert doctor.wheel_number("2025.7.22.4.0") == 20250722


def test_a_missing_plugin_is_a_fault(monkeypatch):
    def nothing():
        raise FileNotFoundError("no entry point in the group lammps.plugins")

    monkeypatch.setattr(doctor, "plugin_folder", nothing)
    check = doctor.check_plugin()
    assert (check.status, check.remedy) == ("fault", doctor.REINSTALL)


def test_a_plugin_of_another_python_is_a_fault(monkeypatch, tmp_path):
    info = {"lammps_version": "22 Jul 2025", "mpi": "MPICH", "python": "3.9.1"}
    monkeypatch.setattr(doctor, "plugin_folder", lambda: tmp_path)
    monkeypatch.setattr(doctor, "build_info", lambda: info)
    assert doctor.check_plugin().status == "fault"


def test_a_plugin_of_another_mpi_is_a_fault(monkeypatch):
    monkeypatch.setattr(doctor, "build_info", lambda: {"mpi": "Open MPI"})
    assert doctor.check_mpi().status == "fault"


def test_another_lmp_on_the_path_is_noted(monkeypatch, tmp_path):
    ours, other = tmp_path / "our venv" / "lmp", tmp_path / "lmp"
    for script in (ours, other):
        script.parent.mkdir(exist_ok=True)
        script.touch()
    monkeypatch.setattr(doctor, "lmp_script", lambda: ours)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: str(other))
    check = doctor.check_lmp_on_path()
    assert (check.status, f"'{ours}'" in check.remedy) == ("note", True)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: str(ours))
    assert doctor.check_lmp_on_path().status == "ok"


@pytest.mark.parametrize(
    ("output", "status", "remedy"),
    [
        ("ERROR: Pair style mace/stream: mace-stream-doctor.mace: no such file. Check", "ok", ""),
        ("ERROR: Unrecognized pair style 'mace/stream'", "fault", "did not load the plugin"),
        ("ERROR: Pair style mace/stream: No module named 'numpy'", "fault", "MACE_STREAM_PYTHON"),
        ("", "fault", "MACE_STREAM_PYTHON"),
    ],
)
def test_the_style_is_judged_by_what_lammps_says(output, status, remedy):
    check = doctor.judge_style(1, output)
    assert check.status == status
    assert remedy in check.remedy


@pytest.mark.parametrize(
    ("devices", "built", "gpu", "status", "remedy"),
    [
        ([], None, False, "ok", ""),
        (["H200"], "13.0", True, "ok", ""),
        ([], None, True, "note", "the CUDA build"),
        ([], "13.0", True, "note", "update its driver"),
    ],
)
def test_the_gpu_is_judged(devices, built, gpu, status, remedy):
    info = {"version": "2.13.0", "threads": 2, "built": built, "devices": devices}
    check = doctor.judge_torch(info, gpu=gpu)
    assert check.status == status
    assert remedy in check.remedy


def test_two_openmp_makers_are_noted():
    assert doctor.judge_openmp(["libgomp.so.1", "libgomp-e985bcbb.so.1.0.0"]).status == "ok"
    assert doctor.judge_openmp(["libgomp.so.1", "libiomp5.so"]).status == "note"


def test_a_command_that_does_not_exist_is_a_status():
    assert doctor.run(["/no/such/program"])[0] == 127
    assert doctor.run([sys.executable, "-c", "print(1)"], str(Path.cwd())) == (0, "1\n")
