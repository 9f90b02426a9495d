"""The radial tables of a model, from functions of the distance that a framework evaluates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mace_stream.kernels.inference import Repulsion
from mace_stream.tables.grid import RadialFunction, TableError, Tabulated, refine, tabulate
from mace_stream.tables.radial import RadialTables

MAX_BYTES = 8 * 2**30
"""Of all tables in float64: some ten elements in double precision."""

BATCH = 4
"""Pairs of elements that are evaluated together, as every evaluation takes its time."""

N_COEF = 6
BOUNDS = {"float32": 1e-6, "float64": 1e-10}
"""Largest relative error of the tables, by the precision that they are used in."""
R_0 = 0.5
"""Start of the grid in Å."""

Pair = tuple[int, int]
"""Receiver and sender, as indices into the model's elements."""


@dataclass(frozen=True)
class RadialKind:
    """One kind of table: ``hidden features``, ``path weights T`` or ``density T`` of layer T."""

    name: str
    function: Callable[[Sequence[Pair]], RadialFunction]
    """The function of some pairs, a family each."""
    weight: np.ndarray | None = None
    """Path weights [H, n_paths, C]: in what of the function the passes are linear."""


@dataclass(frozen=True)
class RadialModel:
    """What a model says about distances."""

    kinds: Sequence[RadialKind]
    elements: Sequence[int]
    """Atomic numbers, for messages."""
    n_layers: int
    r_max: float
    share: Callable[[int, int], Pair]
    """Maps a pair to one with the same functions."""


def build_tables(
    model: RadialModel, species: Sequence[int], n_coef: int, bound: float, r_0: float = R_0
) -> RadialTables:
    """Tabulate every function of the distance that the passes read.

    Args:
        model: Its functions in float64.
        species: Elements that are present, as indices into the model's.
        n_coef: Coefficients of the polynomials: 4 (cubic) or 6 (quintic).
        bound: Largest error of values and of derivatives, relative to the largest of each path of
            each layer and pair, of each pair's hidden features, and of each pair's density.
        r_0: Start of the grid in Å.

    Raises:
        TableError: No grid is fine enough, or the tables would be too large.
    """
    pairs = [model.share(i, j) for i in species for j in species]
    different = list(dict.fromkeys(pairs))
    batches = [different[k : k + BATCH] for k in range(0, len(different), BATCH)]
    items = {
        kind.name: [Tabulated(kind.function(batch), kind.weight) for batch in batches]
        for kind in model.kinds
    }
    functions = {
        f"{kind} of elements {_names(model, batch)}": item
        for kind, of_batches in items.items()
        for batch, item in zip(batches, of_batches, strict=True)
    }
    order = n_coef // 2 - 1
    fine = refine(functions, model.r_max, order, bound, r_0)
    _check_size(model, len(pairs) * fine.grid.n_knots * n_coef)

    def stack(kind: str) -> np.ndarray | None:
        """Tables of one kind, pair after pair, [rows, families, n_coef, width]."""
        if kind not in items:
            return None
        tables = {}
        for batch, item in zip(batches, items[kind], strict=True):
            coefficients = tabulate(item.function, fine.grid, order)
            tables |= {pair: (item, coefficients[:, :, k]) for k, pair in enumerate(batch)}
        return np.concatenate([_of_families(*tables[pair]) for pair in pairs])

    layers = range(model.n_layers)
    densities = [stack(f"density {t}") for t in layers]
    return RadialTables(
        grid=fine.grid,
        n_coef=n_coef,
        hidden=stack("hidden features")[:, 0],
        convs=[stack(f"path weights {t}") for t in layers],
        densities=[None if table is None else table[:, 0, :, 0] for table in densities],
        value_error=fine.value_error,
        slope_error=fine.slope_error,
    )


def _of_families(item: Tabulated, coefficients: np.ndarray) -> np.ndarray:
    """Polynomials of what is read, [n_knots, families, n_coef, width], of one pair's."""
    n_knots, n_coef, _ = coefficients.shape
    read = item.project(coefficients)
    return read.reshape(n_knots, n_coef, -1, read.shape[2]).transpose(0, 2, 1, 3)


def _names(model: RadialModel, pairs: Sequence[Pair]) -> str:
    return ", ".join(f"{model.elements[i]} and {model.elements[j]}" for i, j in pairs)


def _check_size(model: RadialModel, n_polynomials: int) -> None:
    """Raise ``TableError`` where the tables of all pairs would fill the memory of a machine."""
    weights = [kind.weight for kind in model.kinds if kind.weight is not None]
    n_bytes = 8 * n_polynomials * sum(weight[0].size for weight in weights)
    if n_bytes > MAX_BYTES:
        raise TableError(
            f"radial tables of so many pairs of elements would take {n_bytes / 2**30:.0f} GiB; "
            "name fewer elements in pair_coeff, use precision single, or use radial exact"
        )


def shared_pair(i: int, j: int, *, reads_elements: bool, is_transformed: bool) -> Pair:
    """A pair of species, receiver and sender, with the same functions.

    Transforms are symmetric, or are none at all; networks that read the elements tell all apart.
    """
    if reads_elements:
        return i, j
    return (min(i, j), max(i, j)) if is_transformed else (0, 0)


def build_repulsion(
    charge: np.ndarray,
    inverse_length: np.ndarray,
    radius: np.ndarray,
    *,
    coefficients: Sequence[float],
    decays: tuple[float, float, float, float],
    p: int,
    scale: float,
) -> Repulsion:
    """Pair repulsion of present species, from what each of them contributes, [S] each.

    Args:
        charge: A pair has the product.
        inverse_length: Of the screening; a pair has the sum.
        radius: A pair has the sum.
        coefficients: Of the screening function.
        decays: Of the screening function.
        p: Order of the envelope.
        scale: Of the head, folded in.
    """
    return Repulsion(
        charge=scale * np.multiply.outer(charge, charge),
        inverse_length=np.add.outer(inverse_length, inverse_length),
        bond=np.add.outer(radius, radius),
        coefficients=tuple(coefficients),
        decays=decays,
        p=p,
    )
