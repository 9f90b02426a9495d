"""Tiny twins, and the second derivatives that mace-torch has for them."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from ase import Atoms
from model_support import ELEMENTS, read_model, truth

from mace_stream.testing.twins import tiny
from mace_stream.torch import MACE

FAR = 1e-9
"""Largest difference of two second derivatives, relative to the largest of them all."""


@cache
def twin(name: str, **override) -> torch.nn.Module:
    """mace-torch's model, built once."""
    return tiny(name, r_max=3.6, elements=ELEMENTS, **override)


@cache
def ours(source: torch.nn.Module, head: str | None = None, **settings) -> MACE:
    """Our model with the same numbers."""
    return MACE.from_spec(*read_model(source), head=head, **settings)


def autograd_hessian(source: torch.nn.Module, atoms: Atoms, head: str | None = None) -> np.ndarray:
    """What mace-torch's calculator returns, [n, 3, n, 3]; it reads ``atoms.info``."""
    from mace.calculators import MACECalculator

    settings = {} if head is None else {"head": head}
    calculator = MACECalculator(models=[source], device="cpu", default_dtype="float64", **settings)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # its ZBL takes the power of an integer in it
    try:
        return calculator.get_hessian(atoms).reshape(len(atoms), 3, len(atoms), 3)
    finally:
        torch.set_default_dtype(before)


def numerical_product(
    source: torch.nn.Module, atoms: Atoms, vector: np.ndarray, step: float = 3e-4
) -> np.ndarray:
    """Five-point difference of mace-torch's forces along ``vector`` [n, 3]; error ~ step^4."""

    def gradient(shift: float) -> np.ndarray:
        moved = atoms.copy()
        moved.positions += shift * step * vector
        return -truth(source, moved).forces

    near, far = (gradient(k) - gradient(-k) for k in (1, 2))
    return (8 * near - far) / (12 * step)


def gap(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference relative to the largest expected value."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())
