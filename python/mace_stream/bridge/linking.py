"""Keeps the libraries of torch and of LAMMPS apart inside one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_symbols_first() -> Iterator[None]:
    """Let libraries loaded meanwhile prefer their own functions to those the process has already.

    LAMMPS exports a plain BLAS (``dgemm_``) and brings an OpenMP runtime. Both come first in the
    ``lmp`` program, and torch's double precision matrix products then run ten times slower.
    """
    before = sys.getdlopenflags()
    sys.setdlopenflags(before | getattr(os, "RTLD_DEEPBIND", 0))
    try:
        yield
    finally:
        sys.setdlopenflags(before)
