"""Float64 in JAX for as long as it is needed, without touching the program's configuration."""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax


def double_precision() -> AbstractContextManager:
    """Let JAX know float64 within a ``with`` block, in this thread.

    JAX makes float32 of every float64 otherwise. Models sum energies in float64 whatever their own
    precision, so that they are called, differentiated and compiled within this block. Arrays that
    were made inside keep their type outside; the global setting ``jax_enable_x64`` stays as it is.
    """
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # before JAX 0.8

    return enable_x64(True)
