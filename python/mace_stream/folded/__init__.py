"""A model made ready for the inference path, as far as no framework is needed.

Matrices folded in float64, and how nodes are arranged; torch and JAX build on these.
"""

from mace_stream.folded.arrangement import TILE_SIZE, Tile, grown, make_tiles, padded
from mace_stream.folded.blocks import Block
from mace_stream.folded.layers import (
    Activation,
    FoldedGate,
    FoldedLayer,
    FoldedReadout,
    UnsupportedModelError,
    fold_layers,
    site_constants,
)

__all__ = [
    "TILE_SIZE",
    "Activation",
    "Block",
    "FoldedGate",
    "FoldedLayer",
    "FoldedReadout",
    "Tile",
    "UnsupportedModelError",
    "fold_layers",
    "grown",
    "make_tiles",
    "padded",
    "site_constants",
]
