"""Random problems for the passes of the inference path, with all that is awkward in them.

Example:
    setup = random_setup(n_species=2, channels=32)
    problem = random_problem(setup, seed=1)
    expected, norm = ReferencePasses(setup).scatter(
        problem.nodes, problem.edges, problem.hidden, problem.density
    )
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from mace_stream.couplings import ConvPlan, Irrep, wigner_3j
from mace_stream.kernels.inference import Contraction, Repulsion, Setup
from mace_stream.reference.inference import Edges, Neighbors, ReferencePasses
from mace_stream.spec import Path


@dataclass(frozen=True)
class Problem:
    """Arguments of every pass, float64, for all layers of a setup. Layouts as in the passes."""

    nodes: Neighbors
    x: np.ndarray
    edges: Edges
    """Of the positions ``x``, by the reference."""
    hidden: np.ndarray
    density: np.ndarray
    """Positive; pass None instead for blocks without density."""
    scatter_bar: np.ndarray
    convs: Sequence[np.ndarray | None]
    ups: Sequence[np.ndarray | None]
    conv_bars: Sequence[np.ndarray | None]
    """Flat, of all receivers as one tile; :meth:`conv_bar` cuts a tile out."""
    coefs: Sequence[np.ndarray]
    messages: Sequence[np.ndarray]
    """[dim, n_nodes, C]"""
    basis_bars: Sequence[np.ndarray]
    """[dim_out, n_nodes, C]"""


def random_setup(
    *,
    dtype: str = "float64",
    n_species: int = 2,
    l_max: int = 3,
    channels: int = 4,
    n_hidden: int = 8,
    n_knots: int = 5,
    n_coef: int = 6,
    irreps_up: Sequence[Sequence[str]] = (("0e", "1o"),),
    dims_out: Sequence[int] = (4, 1),
    correlation: int = 3,
    share_of_terms: float = 0.3,
    repulsion: bool = True,
    seed: int = 0,
) -> Setup:
    """A model's passes without the model.

    Args:
        dtype: Precision of the kernels.
        n_species: Elements.
        l_max: Highest degree of the harmonics and of the messages.
        channels: Of every feature.
        n_hidden: Width of the first layer's radial features.
        n_knots: Intervals of the grid.
        n_coef: 4 or 6.
        irreps_up: What every convolution after the first layer reads.
        dims_out: Rows of the product basis of every layer.
        correlation: Highest degree of the contraction.
        share_of_terms: How many of the possible monomials occur.
        repulsion: Whether there is ZBL.
        seed: Of the monomials.
    """
    rng = np.random.default_rng(seed)
    plans = [_plan(irreps, l_max, channels) for irreps in irreps_up]
    dim = (l_max + 1) ** 2
    return Setup(
        dtype=dtype,
        n_species=n_species,
        l_max=l_max,
        channels=channels,
        r_0=0.5,
        r_max=4.0,
        n_knots=n_knots,
        n_coef=n_coef,
        n_hidden=n_hidden,
        plans=(None, *plans),
        contractions=tuple(
            _contraction(dim, dim_out, correlation, share_of_terms, rng) for dim_out in dims_out
        ),
        repulsion=_repulsion(n_species, rng) if repulsion else None,
    )


def _plan(irreps: Sequence[str], l_max: int, channels: int) -> ConvPlan:
    """All paths to messages of natural parity up to ``l_max``."""
    paths, w3j = [], {}
    for l_out in range(l_max + 1):
        for name in irreps:
            for l_edge in range(l_max + 1):
                ir_in = Irrep.parse(name)
                triangle = abs(ir_in.l - l_edge) <= l_out <= ir_in.l + l_edge
                if triangle and ir_in.parity * (-1) ** l_edge == (-1) ** l_out:
                    path = Path(name, l_edge, str(Irrep(l_out, (-1) ** l_out)))
                    paths.append(path)
                    w3j[name, l_edge, path.ir_out] = wigner_3j(ir_in.l, l_edge, l_out)
    text = "+".join(f"{channels}x{name}" for name in irreps)
    return ConvPlan.build(text, l_max, paths, w3j)


def _contraction(
    dim: int, dim_out: int, correlation: int, share: float, rng: np.random.Generator
) -> Contraction:
    """Some monomials for every row, the lowest in any case, ordered as those of a model."""
    terms = [
        (row, *factors, *[-1] * (correlation - len(factors)))
        for row in range(dim_out)
        for nu in range(1, correlation + 1)
        for factors in combinations_with_replacement(range(dim), nu)
        if factors == (0,) or rng.random() < share
    ]
    return Contraction(np.array(sorted(terms), dtype=np.int32), dim, dim_out)


def _repulsion(n_species: int, rng: np.random.Generator) -> Repulsion:
    """Bonds within the range of the edges, so that both sides of the envelope's end are met."""
    shape = (n_species, n_species)
    return Repulsion(
        charge=rng.uniform(5, 20, shape),
        inverse_length=rng.uniform(1, 2, shape),
        bond=rng.uniform(2, 3, shape),
        coefficients=(0.1818, 0.5099, 0.2802, 0.02817),
        decays=(3.2, 0.9423, 0.4028, 0.2016),
        p=6,
    )


def random_problem(
    setup: Setup, n_nodes: int = 14, n_ghosts: int = 3, mean_slots: float = 9, seed: int = 0
) -> Problem:
    """Rows without slots, padded nodes, slots beyond r_max, senders that receive nothing.

    Args:
        setup: Of a model, or :func:`random_setup`.
        n_nodes: Receivers, padded ones included.
        n_ghosts: Nodes that only send.
        mean_slots: Candidates for edges per receiver; one in four is beyond r_max.
        seed: Of everything.
    """
    rng = np.random.default_rng(seed)
    nodes, x = _random_neighbors(setup, n_nodes, n_ghosts, mean_slots, rng)
    edges, _, _ = ReferencePasses(setup).edges(nodes, x)
    rows = setup.n_species**2 * setup.n_knots
    channels, dim = setup.channels, (setup.l_max + 1) ** 2
    plans = setup.plans

    def per_layer(shape) -> list[np.ndarray | None]:  # noqa: ANN001  from a plan to a shape
        return [None if plan is None else rng.normal(size=shape(plan)) for plan in plans]

    return Problem(
        nodes=nodes,
        x=x,
        edges=edges,
        hidden=rng.normal(size=(rows, setup.n_coef, setup.n_hidden)),
        density=rng.uniform(0, 0.3, (rows, setup.n_coef)),
        scatter_bar=rng.normal(size=(dim, n_nodes, setup.n_species, setup.n_hidden)),
        convs=per_layer(lambda plan: (rows, plan.n_paths, setup.n_coef, channels)),
        ups=per_layer(lambda plan: (plan.dim_in, n_nodes + n_ghosts, channels)),
        conv_bars=per_layer(lambda plan: plan.dim_out * n_nodes * channels),
        coefs=[
            rng.normal(size=(setup.n_species, len(c.terms), channels)) for c in setup.contractions
        ],
        messages=[rng.normal(size=(c.dim, n_nodes, channels)) for c in setup.contractions],
        basis_bars=[rng.normal(size=(c.dim_out, n_nodes, channels)) for c in setup.contractions],
    )


def _random_neighbors(
    setup: Setup, n_nodes: int, n_ghosts: int, mean_slots: float, rng: np.random.Generator
) -> tuple[Neighbors, np.ndarray]:
    """Every slot has an atom of its own, as if all senders were images."""
    received = np.sort(rng.integers(setup.n_species, size=n_nodes))
    species = np.append(received, rng.integers(setup.n_species, size=n_ghosts))
    counts = rng.poisson(mean_slots, n_nodes)
    counts[np.append(np.diff(received) > 0, True)] = 0  # padded
    counts[rng.integers(n_nodes)] = 0
    n_slots = counts.sum()
    receiver = np.repeat(np.arange(n_nodes), counts)
    sender = rng.integers(n_nodes + n_ghosts, size=n_slots)
    sender = sender[np.lexsort((species[sender], receiver))]
    unit = rng.normal(size=(n_slots, 3))
    unit /= np.linalg.norm(unit, axis=1)[:, None]
    share = rng.uniform(0, 4 / 3, (n_slots, 1))
    vec = unit * (setup.r_0 + share * (setup.r_max - setup.r_0))
    atoms = rng.permutation(n_nodes + n_slots)
    x = np.empty((n_nodes + n_slots, 3))
    x[atoms[:n_nodes]] = rng.uniform(-50, 50, (n_nodes, 3))
    x[atoms[n_nodes:]] = x[atoms[receiver]] - vec
    nodes = Neighbors(
        first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        node_atom=atoms[:n_nodes].astype(np.int32),
        slot_atom=atoms[n_nodes:].astype(np.int32),
        slot_node=sender.astype(np.int32),
        species=species.astype(np.int32),
    )
    return nodes, x
