"""Who may import or include what: the walls between the rooms (docs/architecture.md).

Each room lists what it may not use; Python rooms that must stay light list what they may use.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "mace_stream"

# Modules that a room may not import: top-level or of this package. `mace` is mace-torch.
ENGINES = {"lammps", "mpi4py"}
FORBIDDEN = {
    "torch": {"jax", "mace", "e3nn", "mace_stream.bridge", "mace_stream.cli", "mace_stream.jax"}
    | ENGINES,
    "jax": {"torch", "mace", "e3nn", "mace_stream.bridge", "mace_stream.cli", "mace_stream.torch"}
    | ENGINES,
    "bridge": {"mace", "e3nn", "mace_stream.cli", "mace_stream.convert", "mace_stream.validation"}
    | ENGINES,
    "convert": {"mace_stream.bridge", "mace_stream.cli"} | ENGINES,
    "kernels": {"torch", "jax", "mace", "e3nn", "mace_stream.bridge", "mace_stream.cli"} | ENGINES,
    "bench": {"mace_stream.bridge", "mace_stream.cli"} | ENGINES,
    "testing": {"mace_stream.cli", "mace_stream.bridge"} | ENGINES,
    "validation": {"mace_stream.cli", "mace_stream.bridge", "mace_stream.torch", "mpi4py"},
    "second_derivatives.py": {"jax", "mace", "e3nn", "mace_stream.bridge", "mace_stream.cli"}
    | ENGINES,
    "cli": set(),
}
# A file named here has its own row.
PYTHON_OWN_ROW = {"bench/md_profile.py": {"mace_stream.bridge", "mace_stream.cli", "mpi4py"}}

# Rooms that anything may import: NumPy, the standard library, and each other.
LIGHT = {"numpy", "safetensors", "mace_stream"}
LIGHT_ROOMS = {
    "__init__.py",
    "spec.py",
    "io.py",
    "tensors.py",
    "flavour.py",
    "embedding.py",
    "folded",
    "parameters.py",
    "evaluation.py",
    "halo.py",
    "compiled.py",
    "lammps_plugin.py",
    "couplings",
    "reference",
    "tables",
}
LIGHT_FORBIDDEN = {
    f"mace_stream.{room}"
    for room in ("torch", "jax", "bridge", "cli", "convert", "validation", "second_derivatives")
}

# C++: headers that a file may not include, by folder; a file named here has its own row.
PYTHON_HEADERS = r"pybind11/|Python\.h"
FRAMEWORKS = r"torch/|ATen/|c10/|xla/|cuda\.h|cuda_|nvrtc"
TORCH_OR_XLA = r"torch/|ATen/|c10/|xla/"
LAMMPS_HEADERS = (
    r"(atom|pair|force|comm|error|update|neighbor|neigh_list|memory|domain|lammps|lmptype|utils)\.h"
)
CPP_FORBIDDEN = {
    "csrc": rf"{PYTHON_HEADERS}|{TORCH_OR_XLA}|{LAMMPS_HEADERS}|mpi\.h",
    "pair_mace_stream": rf"{PYTHON_HEADERS}|{FRAMEWORKS}|mace_stream/",
}
CPP_OWN_ROW = {
    "csrc/jax_passes.cpp": rf"{PYTHON_HEADERS}|torch/|ATen/|{LAMMPS_HEADERS}|mpi\.h",
    "csrc/jax_ffi.cpp": rf"{PYTHON_HEADERS}|torch/|ATen/|{LAMMPS_HEADERS}|mpi\.h",
    "pair_mace_stream/python_session.cpp": rf"{FRAMEWORKS}|{LAMMPS_HEADERS}|mpi\.h",
    "pair_mace_stream/python_interpreter.cpp": rf"{FRAMEWORKS}|{LAMMPS_HEADERS}|mpi\.h",
}


def imports(source: str, package: str) -> set[str]:
    """Every module that Python source imports, with relative names resolved in ``package``."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            module = ".".join([*base, node.module or ""]) if node.level else node.module
            names |= {module.strip(".")} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def within(name: str, modules: set[str]) -> bool:
    """Whether ``name`` is one of ``modules`` or lies inside one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def python_violations(
    room: str, source: str, package: str = "mace_stream", path: str = ""
) -> set[str]:
    """What ``source``, the file at ``path`` of ``room``, imports against the table."""
    used = imports(source, package)
    if room in LIGHT_ROOMS:
        foreign = {n for n in used if n.split(".")[0] not in LIGHT | set(sys.stdlib_module_names)}
        return foreign | {name for name in used if within(name, LIGHT_FORBIDDEN)}
    return {name for name in used if within(name, PYTHON_OWN_ROW.get(path, FORBIDDEN[room]))}


def cpp_violations(path: str, source: str) -> list[str]:
    """What ``source``, the file at ``path`` below the root, includes against the table."""
    pattern = CPP_OWN_ROW.get(path) or CPP_FORBIDDEN[path.split("/")[0]]
    included = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', source, re.MULTILINE)
    return [name for name in included if re.match(pattern, name)]


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def cpp_files() -> list[Path]:
    folders = (ROOT / "csrc", ROOT / "pair_mace_stream")
    kinds = {".h", ".hpp", ".cpp", ".cuh", ".cu"}
    return sorted(p for folder in folders for p in folder.rglob("*") if p.suffix in kinds)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


@pytest.mark.parametrize("path", python_files(), ids=names(python_files()))
def test_python_stays_in_its_room(path):
    room = room_of(path)
    if room not in LIGHT_ROOMS | set(FORBIDDEN):
        pytest.fail(f"{path.name}: room '{room}' is in no table; add it to tests/walls")
    package = ".".join(path.relative_to(PACKAGE.parent).parent.parts)
    inside = path.relative_to(PACKAGE).as_posix()
    assert not python_violations(room, path.read_text(encoding="utf-8"), package, inside)


@pytest.mark.parametrize("path", cpp_files(), ids=names(cpp_files()))
def test_cpp_stays_in_its_room(path):
    assert not cpp_violations(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


def test_only_cli_files_import_the_cli():
    for path in python_files():
        if room_of(path) != "cli":
            used = imports(path.read_text(encoding="utf-8"), "mace_stream")
            assert not any(within(name, {"mace_stream.cli"}) for name in used), path


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("spec.py", "import torch"),
        ("reference", "def f():\n    from jax import numpy"),
        ("io.py", "from mace_stream.torch import MACE"),
        ("couplings", "from mace_stream import bridge"),
        ("tables", "from mace_stream.torch import MACE"),
        ("torch", "import jax.numpy"),
        ("torch", "from mace_stream.bridge import Session"),
        ("bridge", "from lammps import lammps"),
        ("validation", "from mace_stream.torch import MACE"),
        ("convert", "from mace_stream import cli"),
        ("kernels", "import mace_stream.bridge.session"),
        ("bench", "from lammps import lammps"),
    ],
)
def test_a_planted_import_is_found(room, source):
    assert python_violations(room, source)


def test_a_planted_relative_import_is_found():
    assert python_violations("couplings", "from ..torch import conv", "mace_stream.couplings")
    assert not python_violations("couplings", "from . import irreps", "mace_stream.couplings")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("pair_mace_stream/pair_mace_stream.cpp", "#include <pybind11/pybind11.h>"),
        ("pair_mace_stream/python_session.cpp", '#include "atom.h"'),
        ("pair_mace_stream/edge_graph.cpp", "#include <torch/torch.h>"),
        ("pair_mace_stream/pair_mace_stream.cpp", '# include "mace_stream/conv.h"'),
        ("csrc/cpu/conv.cpp", '#include "pair.h"'),
        ("csrc/jax_ffi.cpp", "#include <torch/extension.h>"),
    ],
)
def test_a_planted_include_is_found(path, line):
    assert cpp_violations(path, f"#include <vector>\n{line}\n")


def test_python_and_cpp_files_are_seen():
    assert len(python_files()) > 5
    assert len(cpp_files()) > 5
