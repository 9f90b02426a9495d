"""Where the compiled part of the package lies."""

from __future__ import annotations

import importlib.metadata
from functools import cache
from pathlib import Path

MARK = "build_info.json"


@cache
def compiled_directory() -> Path:
    """Return the folder of the plugin, the core library and the CUDA files.

    Raises:
        FileNotFoundError: The package is installed without its compiled part.
    """
    candidates = _candidates()
    for folder in candidates:
        if (folder / MARK).is_file():
            return folder
    raise FileNotFoundError(
        f"mace_stream: no compiled part in any of {[str(folder) for folder in candidates]}; "
        "type, in the source folder of mace-stream: pip install ."
    )


def _candidates() -> list[Path]:
    """Return where it may be: beside this file, or, if editable, in site-packages."""
    folders = [Path(__file__).parent / "plugin"]
    try:
        distribution = importlib.metadata.distribution("mace-stream")
    except importlib.metadata.PackageNotFoundError:
        return folders
    return [*folders, Path(str(distribution.locate_file("mace_stream/plugin")))]
