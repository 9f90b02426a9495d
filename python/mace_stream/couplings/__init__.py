"""Angular algebra shared by every backend. NumPy only."""

from mace_stream.couplings.harmonics import spherical_harmonics
from mace_stream.couplings.irreps import FeatureLayout, Irrep, parse_irreps
from mace_stream.couplings.plan import ConvPlan, OutputBlock, PathBlock
from mace_stream.couplings.wigner import wigner_3j

__all__ = [
    "ConvPlan",
    "FeatureLayout",
    "Irrep",
    "OutputBlock",
    "PathBlock",
    "parse_irreps",
    "spherical_harmonics",
    "wigner_3j",
]
