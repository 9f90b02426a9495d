"""`verify yes`: the fast path against the exact one in float64, on the user's own structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mace_stream.evaluation import Evaluation, is_out_of_memory

RATTLE = 0.05
"""Å; standard deviation of the moves of the second structure, along each axis. A crystal's own
symmetry makes forces vanish and hides mistakes."""
SEED = 20220615


@dataclass(frozen=True)
class Bound:
    """Largest differences from the exact path that are taken for rounding.

    Rounding of forces grows with the forces; so their bound counts for structures whose RMS force
    is up to 1 eV/Å, and grows in proportion beyond.
    """

    energy: float
    """eV/atom."""
    force: float
    """eV/Å, of every component."""


BOUNDS = {
    # Tables err by 1e-10 of the largest path weight, and sums over some hundred edges and channels
    # round at 1e-13: results differ by about 1e-12 eV/atom and 1e-11 eV/Å.
    "double": Bound(energy=1e-9, force=1e-7),
    # float32 has seven digits, of which sums over edges and channels lose one or two: forces differ
    # by about 1e-5 eV/Å. A model's own error is a thousand times as large.
    "single": Bound(energy=1e-5, force=1e-4),
}


@dataclass(frozen=True)
class Comparison:
    """Differences of two evaluations of one structure."""

    energy: float
    """eV/atom."""
    force: float
    """Largest of all components in eV/Å."""
    force_rms: float
    """eV/Å."""
    scale: float
    """RMS force in eV/Å, or 1 where it is less."""

    @classmethod
    def of(cls, fast: Evaluation, exact: Evaluation) -> Comparison:
        """Compare."""
        if not len(exact.forces):
            return cls(abs(fast.energy - exact.energy), 0.0, 0.0, 1.0)
        error = fast.forces - exact.forces
        return cls(
            energy=abs(fast.energy - exact.energy) / len(exact.forces),
            force=float(np.abs(error).max()),
            force_rms=float(np.sqrt(np.mean(error**2))),
            scale=max(1.0, float(np.sqrt(np.mean(exact.forces**2)))),
        )

    def is_within(self, bound: Bound) -> bool:
        """Whether the difference is rounding; NaN is not."""
        return bool(self.energy <= bound.energy and self.force <= bound.force * self.scale)

    def __str__(self) -> str:
        return f"{self.energy:.1e} eV/atom, forces {self.force:.1e} (RMS {self.force_rms:.1e}) eV/Å"


Evaluate = Callable[[np.ndarray], Evaluation]


def verify(
    fast: Evaluate, exact: Evaluate, x: np.ndarray, node_of: np.ndarray, precision: str
) -> str:
    """Compare on the structure at hand and on a rattled copy, and return what the log tells.

    Args:
        fast: Evaluates at positions [n_atoms, 3] in Å, images included.
        exact: The same, by the exact path in float64.
        x: The positions.
        node_of: Node of every atom, so that images move with their owners; -1 if it has no edge.
        precision: Of the fast path, ``double`` or ``single``.

    Raises:
        ValueError: A difference is above the bound.
    """
    bound = BOUNDS[precision]
    moves = np.random.default_rng(SEED).normal(0.0, RATTLE, (node_of.max(initial=-1) + 2, 3))
    moves[-1] = 0.0  # of atoms without edges: node -1
    told = []
    for name, places in {"as given": x, f"rattled by {RATTLE} Å": x + moves[node_of]}.items():
        found = _compare(name, fast, exact, places)
        told.append(f"{name}: {found}")
        if not found.is_within(bound):
            raise ValueError(
                f"verify: the structure {name} differs from radial exact in double precision by "
                f"{found}, more than {bound.energy:g} eV/atom or {bound.force * found.scale:.1e} "
                f"eV/Å; {_remedy(precision)}"
            )
    limits = f"bounds {bound.energy:g} eV/atom, {bound.force:g} eV/Å"
    return f"  {'verify':<14} {'; '.join(told)}; {limits}\n"


def _compare(name: str, fast: Evaluate, exact: Evaluate, x: np.ndarray) -> Comparison:
    try:
        return Comparison.of(fast(x), exact(x))
    except ValueError as error:
        raise ValueError(f"verify: the structure {name}: {error}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(
            f"verify: out of memory for radial exact ({error}); verify a smaller structure of the "
            "same kind, and leave the keyword out here"
        ) from error


def _remedy(precision: str) -> str:
    if precision == "single":
        return "add the keyword: precision double; and if that does not help: radial exact"
    return "add the keyword: radial exact; and please report this with the input"


def nodes_of_atoms(
    n_atoms: int,
    indptr: np.ndarray,
    sender: np.ndarray,
    receiver_atom: np.ndarray,
    sender_atom: np.ndarray,
) -> np.ndarray:
    """Return the node of every atom that has an edge, else -1, int64 [n_atoms].

    Args:
        n_atoms: Images included.
        indptr: Rows of receivers.
        sender: Node of every edge's sender.
        receiver_atom: Atom of every edge's receiver.
        sender_atom: Atom of every edge's sender.
    """
    node_of = np.full(n_atoms, -1)
    node_of[receiver_atom] = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    node_of[sender_atom] = sender
    return node_of
