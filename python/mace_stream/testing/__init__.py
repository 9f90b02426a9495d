"""What tests and users share: named structures, named tolerances, twins of foundation models."""

from mace_stream.testing.structures import STRUCTURES, structure
from mace_stream.testing.tolerances import BACKENDS, EXACT, Tolerance

__all__ = ["BACKENDS", "EXACT", "STRUCTURES", "Tolerance", "structure"]
