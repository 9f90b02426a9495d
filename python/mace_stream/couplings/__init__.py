"""Angular algebra shared by every backend. NumPy only."""

from mace_stream.couplings.harmonics import spherical_harmonics
from mace_stream.couplings.irreps import FeatureLayout, Irrep, parse_irreps
from mace_stream.couplings.modes import MODES, resolve_mode
from mace_stream.couplings.plan import ConvPlan, OutputBlock, PathBlock
from mace_stream.couplings.tensor_product import E3nnLayout
from mace_stream.couplings.wigner import wigner_3j

__all__ = [
    "MODES",
    "ConvPlan",
    "E3nnLayout",
    "FeatureLayout",
    "Irrep",
    "OutputBlock",
    "PathBlock",
    "parse_irreps",
    "resolve_mode",
    "spherical_harmonics",
    "wigner_3j",
]
