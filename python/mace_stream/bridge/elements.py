"""LAMMPS atom types -> the model's elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ase.data import atomic_masses, atomic_numbers, chemical_symbols

NULL = "NULL"


def map_types(elements: Sequence[int], symbols: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Map the symbol of each atom type into the model's table of elements.

    Args:
        elements: Atomic numbers that the model knows, in its order.
        symbols: One chemical symbol per atom type; repeats are allowed.

    Returns:
        Species of each type (int32 [n_types], -1 for ``NULL``) and standard masses in g/mol
        (float64 [n_types], 0 for ``NULL``).

    Raises:
        ValueError: A symbol is none, or the model does not know the element.
    """
    numbers = [0 if symbol == NULL else _number(symbol, elements) for symbol in symbols]
    if not any(numbers):
        raise ValueError(
            "pair_coeff names no element, only NULL; name the element of at least one type"
        )
    index = {number: species for species, number in enumerate(elements)}
    species = [index[number] if number else -1 for number in numbers]
    masses = [atomic_masses[number] if number else 0.0 for number in numbers]
    return np.array(species, dtype=np.int32), np.array(masses, dtype=np.float64)


def _number(symbol: str, elements: Sequence[int]) -> int:
    number = atomic_numbers.get(symbol, 0)
    known = " ".join(chemical_symbols[z] for z in elements)
    if number == 0:
        raise ValueError(f"{symbol} is no chemical symbol; the model knows: {known}")
    if number not in elements:
        raise ValueError(f"the model does not know {symbol}; it knows: {known}")
    return number
