"""MACE machine-learned potentials in stock LAMMPS: ``pair_style mace/stream``."""

from __future__ import annotations

import importlib

__version__ = "0.1.0"
__all__ = ["hessian", "hvp", "validate"]

# Loaded when first used, so that LAMMPS' look at the entry point stays quick.
_LAZY = {
    "hessian": "mace_stream.second_derivatives",
    "hvp": "mace_stream.second_derivatives",
    "validate": "mace_stream.validation",
}


def __getattr__(name: str) -> object:
    """Return a public function from the module that defines it."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
