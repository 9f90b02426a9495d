"""Tables that the inference path is made of: radial polynomials, contraction terms, harmonics.

NumPy only; the numbers come from a model file or from functions that a framework evaluates.
"""

from mace_stream.tables.contraction import contraction_terms
from mace_stream.tables.grid import (
    RadialGrid,
    Refinement,
    TableError,
    Tabulated,
    hermite_coefficients,
    refine,
)
from mace_stream.tables.harmonics import harmonic_gradients, harmonic_polynomials
from mace_stream.tables.radial import RadialTables

__all__ = [
    "RadialGrid",
    "RadialTables",
    "Refinement",
    "TableError",
    "Tabulated",
    "contraction_terms",
    "harmonic_gradients",
    "harmonic_polynomials",
    "hermite_coefficients",
    "refine",
]
