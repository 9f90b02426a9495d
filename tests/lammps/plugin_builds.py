"""The plugin alone, as other builds would give it."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from lammps_support import binary

REPOSITORY = Path(__file__).parents[2]


def build_plugin(folder: Path, number: int, version: str, mpi: str) -> Path:
    """Build it for a version of LAMMPS and a family of MPI; returns its folder."""
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "no C++ compiler found; install g++"
    mpi_header = next(f.locate() for f in metadata.files("mpich") if f.name == "mpi.h")
    texts = {
        "MACE_STREAM_VERSION": "0",
        "MACE_STREAM_LAMMPS_VERSION": version,
        "MACE_STREAM_MPI_FAMILY": mpi,
        "MACE_STREAM_LIBPYTHON_PATH": "",
        "MACE_STREAM_LIBPYTHON_NAME": "",
    }
    command = [
        *[compiler, "-std=c++17", "-shared", "-fPIC", "-DLAMMPS_SMALLBIG"],
        *[f"-DMACE_STREAM_LAMMPS_NUM={number}", "-DMACE_STREAM_TAGINT_BYTES=4"],
        *(f'-D{name}="{text}"' for name, text in texts.items()),
        f"-I{Path(binary()).parent / 'include' / 'lammps'}",
        f"-I{Path(mpi_header).resolve().parent}",
        str(REPOSITORY / "pair_mace_stream" / "plugin.cpp"),
        *["-o", str(folder / "mace_streamplugin.so"), "-ldl"],
    ]
    subprocess.run(command, check=True)
    return folder
