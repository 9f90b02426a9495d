"""Linear layers over irreps as lists of matrices, float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mace_stream.couplings import FeatureLayout
from mace_stream.parameters import Parameters


@dataclass(frozen=True)
class Block:
    """Rows ``source`` times ``weight`` [K, C] give rows ``target``."""

    source: slice
    target: slice
    weight: np.ndarray


def irrep_linear(
    layout_in: FeatureLayout, layout_out: FeatureLayout, params: Parameters
) -> list[Block]:
    """Blocks of a layer that mixes channels within each irrep.

    An irrep without weights is not among them. A weight several times as wide as the layout's
    channels gives that many rows per component, as the scalars and gates of block NL.
    """
    blocks, row, known = [], 0, params.names()
    for irrep in layout_out.irreps:
        if str(irrep) not in known:
            row += irrep.dim
            continue
        rows = layout_in.rows(irrep)
        for part in parts_of(params.linear(str(irrep)), layout_out.channels):
            blocks.append(Block(rows, slice(row, row + irrep.dim), part))
            row += irrep.dim
    return blocks


def element_linear(
    layout_in: FeatureLayout, layout_out: FeatureLayout, params: Parameters, element: int
) -> list[Block]:
    """Blocks of one element of a layer with weights ``[C_in, Z, C_out]``, or ``[C_in, C_out]``."""
    known = params.names()
    return [
        Block(layout_in.rows(irrep), layout_out.rows(irrep), element_weight(params, irrep, element))
        for irrep in layout_out.irreps
        if str(irrep) in known
    ]


def element_weight(params: Parameters, irrep: object, element: int) -> np.ndarray:
    """Matrix [C_in, C_out] of one element, or the one that serves all."""
    weight = params.linear(str(irrep))
    return weight if weight.ndim == 2 else weight[:, element]


def parts_of(weight: np.ndarray, channels: int) -> list[np.ndarray]:
    """Cut a wide weight into matrices as wide as the channels."""
    return np.split(weight, weight.shape[1] // channels, axis=1)


def apply(blocks: Sequence[Block], x: np.ndarray, dim_out: int, channels: int) -> np.ndarray:
    """Map [n, dim_in, C_in] to [n, dim_out, C_out]; rows that no block writes are zero."""
    out = np.zeros((len(x), dim_out, channels))
    for block in blocks:
        out[:, block.target] = x[:, block.source] @ block.weight
    return out
