"""The result of one evaluation, and the checks at the border."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def _list_of(nodes: np.ndarray, name: Callable[[int], str]) -> str:
    return ", ".join(map(name, nodes[:NAMED])) + ", ..." * (nodes.size > NAMED)


def check_finite(
    result: Evaluation,
    name: Callable[[int], str],
    node_energies: Callable[[], np.ndarray | None] = lambda: None,
) -> None:
    """Raise ``ValueError`` if energy, forces or virial hold a value that is not finite.

    Args:
        result: As evaluated.
        name: Tells the id and place of the atom of a node.
        node_energies: Finds the energies of the nodes, or nothing; called where only the energy
            is not finite.
    """
    bad = np.flatnonzero(~np.isfinite(result.forces).all(axis=1))
    if bad.size:
        raise ValueError(
            f"forces on {bad.size} of {len(result.forces)} atoms are not finite: "
            f"{_list_of(bad, name)}; "
            "atoms are on top of each other or far outside what the model knows: look at the last "
            "positions, and use a smaller timestep"
        )
    if not (np.isfinite(result.energy) and np.isfinite(result.virial).all()):
        energies = node_energies()
        bad = np.flatnonzero(~np.isfinite(energies)) if energies is not None else bad
        of = f"; the energies of these atoms are not: {_list_of(bad, name)}" if bad.size else ""
        raise ValueError(
            f"energy {result.energy} eV or virial is not finite, although the forces are{of}"
        )


@contextmanager
def explained_memory(
    place: str, tile: int, needs: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Turn a failed allocation into an error that says what to type.

    Args:
        place: Name of the device.
        tile: Nodes that are worked on together.
        needs: What the memory goes to, if that is known.

    Raises:
        ValueError: Memory has run out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        told = needs()
        raise ValueError(
            f"out of memory on {place}{told and ': '}{told}; use fewer atoms, precision single, "
            f"or add the keyword: tile N, with N below {tile} ({error})"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation has failed; torch and CUDA's driver say so in several ways."""
    text = str(error).lower().replace("_", " ")
    return isinstance(error, MemoryError) or (
        "out of memory" in text or "can't allocate memory" in text
    )
