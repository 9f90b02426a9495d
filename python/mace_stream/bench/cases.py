"""The convolutions of real models, and graphs to run them on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mace_stream.couplings import ConvPlan, Irrep, wigner_3j
from mace_stream.spec import Path

L_MAX = 3
SENDER_SPREAD = 200
"""Senders lie within this many rows of their receiver, as in a sorted list of atoms."""
DEGREE = 56
GRAPHS = ("uniform", "hcp_ti")


@dataclass(frozen=True)
class Case:
    """Channels and degrees of the node features of one convolution."""

    channels: int
    degrees: tuple[int, ...]


CASES = {
    "first": Case(128, (0,)),
    "medium": Case(128, (0, 1)),
    "large": Case(128, (0, 1, 2)),
    "wide": Case(512, (0, 1)),
}


@dataclass(frozen=True)
class Problem:
    """A convolution with random numbers on a device; layouts as in :mod:`mace_stream.torch`."""

    plan: ConvPlan
    paths: tuple[Path, ...]
    case: Case
    graph: str
    node_feats: Tensor
    edge_attrs: Tensor
    path_weights: Tensor
    indptr: Tensor
    sender: Tensor
    receiver: Tensor

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three arrays that the convolution is linear in."""
        return self.node_feats, self.edge_attrs, self.path_weights


def irrep_name(degree: int) -> str:
    """Return ``0e``, ``1o``, ``2e``, ...: the parity of spherical harmonics."""
    return f"{degree}{'eo'[degree % 2]}"


def case_paths(case: Case) -> tuple[Path, ...]:
    """Return all couplings with harmonics and outputs up to ``L_MAX``, sorted by output."""
    triples = [
        (l_in, l_edge, l_out)
        for l_in in case.degrees
        for l_edge in range(L_MAX + 1)
        for l_out in range(abs(l_in - l_edge), min(l_in + l_edge, L_MAX) + 1)
        if (l_in + l_edge + l_out) % 2 == 0
    ]
    ordered = sorted(triples, key=lambda triple: triple[2])
    return tuple(Path(irrep_name(a), b, irrep_name(c)) for a, b, c in ordered)


def case_plan(case: Case) -> ConvPlan:
    """Build the tables of a case."""
    paths = case_paths(case)
    irreps = "+".join(f"{case.channels}x{irrep_name(degree)}" for degree in case.degrees)
    symbols = {
        (path.ir_in, path.l_edge, path.ir_out): wigner_3j(
            Irrep.parse(path.ir_in).l, path.l_edge, Irrep.parse(path.ir_out).l
        )
        for path in paths
    }
    return ConvPlan.build(irreps, L_MAX, paths, symbols)


def uniform_graph(
    n_nodes: int, degree: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Receivers and senders of nodes with equally many neighbours nearby; symmetric.

    Each of ``degree / 2`` permutations, which shuffle runs of rows, joins every node to one other
    both ways. Pairs may repeat, and a node may be its own neighbour.
    """
    nodes = np.arange(n_nodes)
    ends = []
    for _ in range(degree // 2):
        order = np.roll(nodes, rng.integers(n_nodes))
        starts = range(0, n_nodes, SENDER_SPREAD)
        partner = [rng.permutation(order[start : start + SENDER_SPREAD]) for start in starts]
        ends.append((order, np.concatenate(partner)))
    one, other = (np.concatenate(side) for side in zip(*ends, strict=True))
    return np.concatenate([one, other]), np.concatenate([other, one])


def titanium_graph(n_nodes: int, r_max: float = 6.0) -> tuple[np.ndarray, np.ndarray]:
    """Receivers and senders of hexagonal titanium, periodic, about ``n_nodes`` atoms, over 500."""
    from ase.build import bulk
    from ase.neighborlist import primitive_neighbor_list

    cells = max(5, round((n_nodes / 4) ** (1 / 3)))
    atoms = bulk("Ti", "hcp", a=2.934, c=4.676, orthorhombic=True).repeat(cells)
    return primitive_neighbor_list("ij", atoms.pbc, atoms.cell, atoms.positions, r_max)


def row_pointers(receiver: np.ndarray, sender: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort edges by receiver, then by sender, which some peers need; return pointers, senders."""
    order = np.lexsort((sender, receiver))
    n_nodes = receiver.max(initial=-1) + 1
    return np.searchsorted(receiver[order], np.arange(n_nodes + 1)), sender[order]


def make_problem(
    name: str, device: str, dtype: torch.dtype, graph: str, n_nodes: int, seed: int = 0
) -> Problem:
    """Make a case's problem.

    Args:
        name: Key of :data:`CASES`.
        device: ``cpu`` or ``cuda``.
        dtype: float32 or float64.
        graph: One of :data:`GRAPHS`.
        n_nodes: Number of nodes, about.
        seed: Of all random numbers.
    """
    case, rng = CASES[name], np.random.default_rng(seed)
    edges = uniform_graph(n_nodes, DEGREE, rng) if graph == "uniform" else titanium_graph(n_nodes)
    indptr, sender = row_pointers(*edges)
    plan = case_plan(case)
    generator = torch.Generator(device).manual_seed(seed)
    n_edges, count = len(sender), len(indptr) - 1

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    rows = torch.as_tensor(indptr, dtype=torch.int64, device=device)
    return Problem(
        plan=plan,
        paths=case_paths(case),
        case=case,
        graph=graph,
        node_feats=normal(count, plan.dim_in, case.channels),
        edge_attrs=normal(n_edges, plan.dim_edge),
        path_weights=normal(n_edges, plan.n_paths, case.channels),
        indptr=rows,
        sender=torch.as_tensor(sender, dtype=torch.int64, device=device),
        receiver=torch.repeat_interleave(torch.arange(count, device=device), rows.diff()),
    )
