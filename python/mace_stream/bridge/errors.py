"""Turns Python exceptions into the text of a LAMMPS error, and compares versions."""

from __future__ import annotations

import traceback

import mace_stream
from mace_stream.evaluation import is_out_of_memory

EXPECTED = (ValueError, FileNotFoundError, NotImplementedError)
"""Raised here with a complete message; anything else is our mistake and shows its origin."""


def check_build(version: str) -> None:
    """Compare the version that the compiled part was built for with that of the Python package.

    Raises:
        ValueError: They differ; what one side calls the other may not have.
    """
    if version != mace_stream.__version__:
        raise ValueError(
            f"the compiled part is that of mace-stream {version}, the Python package that of "
            f"{mace_stream.__version__}; install mace-stream again, so that both are of one version"
        )


def describe_error(error: BaseException) -> str:
    """Return what a LAMMPS user should read for an exception."""
    if isinstance(error, EXPECTED):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted from the keyboard"
    if isinstance(error, ImportError):
        return f"{error}; check the installation with: mace-stream doctor"
    if is_out_of_memory(error):
        return f"out of memory ({error}); use fewer atoms, precision single, or a larger machine"
    origin = "".join(traceback.format_exception(error))
    return f"unexpected {type(error).__name__}: {error}; please report this\n{origin}"
