"""Fixtures that several files of this folder use."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mace_stream import lammps_plugin

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch's tests need the GPU, too


CSRC = Path(__file__).parents[2] / "csrc"
LIBRARY = "libmace_stream_core.so"
FLAGS = ["-std=c++17", "-O3", "-fopenmp", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
INSTRUCTION_SETS = {"best": 2, "avx2": 1, "baseline": 0}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def jax_device(request):
    """Run a test on this kind of device, with float64 in JAX for as long as it lasts."""
    jax = pytest.importorskip("jax", reason="needs JAX: pip install 'mace-stream[jax]'")
    try:
        first = jax.devices(request.param)[0]
    except RuntimeError:
        pytest.skip(f"JAX sees no {request.param} device")
    with jax.enable_x64(True), jax.default_device(first):
        yield request.param


# ---- the core library ----


def _installed_library() -> Path | None:
    try:
        path = Path(lammps_plugin.plugin_directory()) / LIBRARY
    except FileNotFoundError:
        return None
    return path if path.exists() else None


@pytest.fixture(scope="session")
def objects(tmp_path_factory):
    """Every file but the choice of the instruction set, compiled."""
    assert shutil.which("g++"), "no C++ compiler found; install g++"
    folder = tmp_path_factory.mktemp("core")
    sources = [
        path
        for path in sorted(CSRC.rglob("*.cpp"))
        if path.stem != "dispatch" and not path.stem.startswith("jax_")
    ]
    targets = [folder / f"{path.stem}.o" for path in sources]
    running = [
        subprocess.Popen(["g++", *FLAGS, f"-I{CSRC / 'include'}", "-c", source, "-o", target])
        for source, target in zip(sources, targets, strict=True)
    ]
    assert [process.wait() for process in running] == [0] * len(sources)
    return targets


@pytest.fixture(scope="session", params=INSTRUCTION_SETS)
def core(request, tmp_path_factory):
    """The library, once for every set of kernels."""
    from conv_cpu_support import load

    path = _installed_library()
    if request.param != "best" or path is None:
        path = tmp_path_factory.mktemp("core") / LIBRARY
        limit = f"-DMACE_STREAM_MAX_INSTRUCTION_SET={INSTRUCTION_SETS[request.param]}"
        objects = request.getfixturevalue("objects")
        source = CSRC / "cpu" / "dispatch.cpp"
        command = [
            "g++",
            *FLAGS,
            limit,
            "-shared",
            f"-I{CSRC / 'include'}",
            source,
            *objects,
            "-ldl",
        ]
        subprocess.run([*command, "-o", path], check=True)
    return load(path)
