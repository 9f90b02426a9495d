"""The result of one evaluation, and the checks at the border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Evaluation:
    """Energies in eV, forces in eV/Å, virials in eV; all float64 and C-contiguous.

    The virial is ``W[a, b] = -sum over edges of edge_vec[a] * dE/d(edge_vec)[b]``.
    """

    energy: float
    forces: np.ndarray
    """[n_nodes, 3], summed over all images of an atom."""
    virial: np.ndarray
    """[3, 3]"""
    node_energy: np.ndarray | None = None
    """[n_nodes], isolated-atom energies included."""
    receiver_virial: np.ndarray | None = None
    """[n_nodes, 3, 3]: sum over the edges whose receiver is the node."""
    sender_virial: np.ndarray | None = None
    """[n_nodes, 3, 3]: sum over the edges whose sender is the node."""


def check_array(name: str, array: np.ndarray, shape: tuple[int, ...], dtype: str) -> None:
    """Raise ``ValueError`` unless ``array`` has this shape and dtype."""
    if array.dtype != dtype:
        raise ValueError(f"{name}: expected dtype {dtype}, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")


class TooCloseError(ValueError):
    """Two nodes are closer than the radial tables reach; distances in Å."""

    def __init__(self, distance: float, nodes: tuple[int, int], reach: float) -> None:
        super().__init__(f"nodes {nodes} are {distance:.4f} Å apart; the tables start at {reach} Å")
        self.distance, self.nodes, self.reach = distance, nodes, reach


NAMED = 6
"""No more atoms than this are named in a message."""


def check_finite(result: Evaluation, name: Callable[[int], str]) -> None:
    """Raise ``ValueError`` if energy, forces or virial hold a value that is not finite.

    Args:
        result: As evaluated.
        name: Tells the id and place of the atom of a node.
    """
    bad = np.flatnonzero(~np.isfinite(result.forces).all(axis=1))
    if bad.size:
        named = ", ".join(map(name, bad[:NAMED])) + ", ..." * (bad.size > NAMED)
        raise ValueError(
            f"forces on {bad.size} of {len(result.forces)} atoms are not finite: {named}; "
            "atoms are on top of each other or far outside what the model knows: look at the last "
            "positions, and use a smaller timestep"
        )
    if not (np.isfinite(result.energy) and np.isfinite(result.virial).all()):
        raise ValueError(
            f"energy {result.energy} eV or virial is not finite, although the forces are"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation has failed; torch and CUDA's driver say so in several ways."""
    text = str(error).lower().replace("_", " ")
    return isinstance(error, MemoryError) or (
        "out of memory" in text or "can't allocate memory" in text
    )
