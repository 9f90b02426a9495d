"""The passes of the inference path, spelled out in float64: the truth for CPU and CUDA kernels.

Methods have the names, arguments and array layouts of :class:`mace_stream.kernels.inference.Passes`
but take NumPy arrays and return what the passes write. Derivatives with respect to an edge vector
are those at an imaginary step of that edge alone, see :mod:`mace_stream.reference.model`; a
backward pass needs neither the norm nor ``dot`` of the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mace_stream.couplings import ConvPlan, spherical_harmonics
from mace_stream.kernels.inference import Repulsion, Setup
from mace_stream.reference.radial import cutoff

_STEP = 1e-100

Tile = tuple[int, int]


@dataclass(frozen=True)
class Neighbors:
    """The arrays of :class:`mace_stream.kernels.inference.EdgeList`."""

    first: np.ndarray
    node_atom: np.ndarray
    slot_atom: np.ndarray
    slot_node: np.ndarray
    species: np.ndarray

    @property
    def n_nodes(self) -> int:
        """Receivers, padded ones included."""
        return len(self.node_atom)

    @property
    def n_senders(self) -> int:
        """All nodes: receivers, then those that only send."""
        return len(self.species)

    @property
    def n_slots(self) -> int:
        """Candidates for edges."""
        return len(self.slot_node)


@dataclass(frozen=True)
class Edges:
    """The arrays of :class:`mace_stream.kernels.inference.EdgeArrays`, reals in float64.

    Slots that hold no edge have a NaN place and the sender and row -1.
    """

    count: np.ndarray
    sender: np.ndarray
    row: np.ndarray
    t: np.ndarray
    dir: np.ndarray
    grad: np.ndarray

    def slots(self, nodes: Neighbors, tile: Tile | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Slots that hold an edge of the tile's receivers, and their receivers, counted from 0."""
        receivers = np.arange(*(tile or (0, nodes.n_nodes)))
        receiver = np.repeat(receivers, self.count[receivers])
        rank = np.arange(len(receiver)) - np.searchsorted(receiver, receiver)
        return nodes.first[receiver] + rank, receiver


@dataclass(frozen=True)
class _Radial:
    """Where functions of the distance and of the direction are evaluated, real or complex."""

    row: np.ndarray
    t: np.ndarray
    unit: np.ndarray

    def polynomials(self, table: np.ndarray) -> np.ndarray:
        """Evaluate a table [rows, n_coef, ...]."""
        powers = self.t[:, None] ** np.arange(table.shape[1])
        return np.einsum("ek,ek...->e...", powers, table[self.row])

    def harmonics(self, l_max: int) -> np.ndarray:
        """Spherical harmonics [n_edges, (l_max + 1)**2]."""
        return np.stack(spherical_harmonics(*self.unit.T, l_max), axis=1)


class ReferencePasses:
    """All passes for one setup."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def edges(self, nodes: Neighbors, x: np.ndarray) -> tuple[Edges, np.ndarray, float]:
        """Return the edges within r_max, the node energies, and the smallest distance.

        That distance is infinite where none is below r_0.
        """
        setup = self.setup
        n = nodes.n_slots
        edges = Edges(
            count=np.zeros(nodes.n_nodes, np.int32),
            sender=np.full(n, -1, np.int32),
            row=np.full(n, -1, np.int32),
            t=np.full(n, np.nan),
            dir=np.full((n, 4), np.nan),
            grad=np.full((n, 3), np.nan),
        )
        energy, closest = np.zeros(nodes.n_nodes), np.inf
        for i in range(nodes.n_nodes):
            for slot in range(nodes.first[i], nodes.first[i + 1]):
                vec = x[nodes.node_atom[i]] - x[nodes.slot_atom[slot]]
                r = np.sqrt(vec @ vec)
                if r >= setup.r_max:
                    continue
                if r < setup.r_0:
                    closest = min(closest, r)
                place, sender = nodes.first[i] + edges.count[i], nodes.slot_node[slot]
                pair = nodes.species[i], nodes.species[sender]
                knot, edges.t[place] = self._knot(r)
                edges.row[place] = (pair[0] * setup.n_species + pair[1]) * setup.n_knots + knot
                edges.sender[place] = sender
                edges.dir[place] = [*(vec / r), 1 / r]
                value, slope = _repulsion(setup.repulsion, *pair, r)
                energy[i] += value
                edges.grad[place] = slope * vec / r
                edges.count[i] += 1
        return edges, energy, closest

    def _knot(self, r: float) -> tuple[int, float]:
        """Interval of the grid and place within it."""
        place = (r - self.setup.r_0) * self.setup.inverse_step
        knot = min(max(int(np.floor(place)), 0), self.setup.n_knots - 1)
        return knot, place - knot

    def scatter(
        self, nodes: Neighbors, edges: Edges, table: np.ndarray, density: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return A [(l_max + 1)**2, n_nodes, S, H], normalised, and norm [n_nodes]."""
        slots, receiver = edges.slots(nodes)
        at = _real(edges, slots)
        norm = 1 / (1 + _sum_density(at, density, receiver, nodes.n_nodes))
        shape = (nodes.n_nodes, self.setup.n_species, (self.setup.l_max + 1) ** 2, table.shape[2])
        total = np.zeros(shape)
        species = nodes.species[edges.sender[slots]]
        np.add.at(total, (receiver, species), self._features(at, table))
        return (norm[:, None, None, None] * total).transpose(2, 0, 1, 3), norm

    def _features(self, at: _Radial, table: np.ndarray) -> np.ndarray:
        """Radial features times harmonics of every edge, [n_edges, (l_max + 1)**2, H]."""
        return at.harmonics(self.setup.l_max)[:, :, None] * at.polynomials(table)[:, None]

    def scatter_backward(
        self,
        nodes: Neighbors,
        edges: Edges,
        table: np.ndarray,
        density: np.ndarray | None,
        out_bar: np.ndarray,
    ) -> np.ndarray:
        """Return what is added to grad, [n_slots, 3], zero where no edge is."""
        slots, receiver = edges.slots(nodes)
        species = nodes.species[edges.sender[slots]]
        bar = out_bar.transpose(1, 2, 0, 3)[receiver, species]

        def along(at: _Radial) -> np.ndarray:
            return (self._features(at, table) * bar).sum(axis=(1, 2))

        return self._edge_gradient(nodes, edges, (0, nodes.n_nodes), density, along)

    def conv(
        self,
        layer: int,
        tile: Tile,
        nodes: Neighbors,
        edges: Edges,
        up: np.ndarray,
        table: np.ndarray,
        density: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the messages, flat in blocks as in memory, and norm [n] of the tile."""
        plan = self.setup.plans[layer]
        slots, receiver = edges.slots(nodes, tile)
        at = _real(edges, slots)
        n, local = tile[1] - tile[0], receiver - tile[0]
        norm = 1 / (1 + _sum_density(at, density, local, n))
        total = np.zeros((n, plan.dim_out, up.shape[2]))
        np.add.at(total, local, self._messages(plan, at, up[:, edges.sender[slots]], table))
        return join_blocks(plan, norm[:, None, None] * total), norm

    def _messages(
        self, plan: ConvPlan, at: _Radial, sent: np.ndarray, table: np.ndarray
    ) -> np.ndarray:
        """Message of every edge, [n_edges, dim_out, C]; ``sent`` [dim_in, n_edges, C]."""
        weights, attrs = at.polynomials(table.transpose(0, 2, 1, 3)), at.harmonics(self.setup.l_max)
        out = np.zeros((len(at.t), plan.dim_out, sent.shape[2]), weights.dtype)
        for (m_in, m_edge, path, m_out), value in zip(plan.terms, plan.values, strict=True):
            out[:, m_out] += value * weights[:, path] * sent[m_in] * attrs[:, m_edge, None]
        return out

    def conv_backward(
        self,
        layer: int,
        tile: Tile,
        nodes: Neighbors,
        edges: Edges,
        up: np.ndarray,
        table: np.ndarray,
        density: np.ndarray | None,
        out_bar: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what is added to grad, [n_slots, 3], and to up_bar, [dim_in, n_senders, C]."""
        plan = self.setup.plans[layer]
        slots, receiver = edges.slots(nodes, tile)
        at, sender, local = _real(edges, slots), edges.sender[slots], receiver - tile[0]
        rows = split_blocks(plan, out_bar, tile[1] - tile[0])
        bar = rows[local]

        def along(at: _Radial) -> np.ndarray:
            return (self._messages(plan, at, up[:, sender], table) * bar).sum(axis=(1, 2))

        norm = 1 / (1 + _sum_density(at, density, local, len(rows)))[local]
        weights, attrs = at.polynomials(table.transpose(0, 2, 1, 3)), at.harmonics(self.setup.l_max)
        up_bar = np.zeros(up.shape)
        for (m_in, m_edge, path, m_out), value in zip(plan.terms, plan.values, strict=True):
            part = value * weights[:, path] * (norm * attrs[:, m_edge])[:, None] * bar[:, m_out]
            np.add.at(up_bar[m_in], sender, part)
        return self._edge_gradient(nodes, edges, tile, density, along), up_bar

    def _edge_gradient(self, nodes, edges, tile, density, along) -> np.ndarray:  # noqa: ANN001
        """Derivative of ``sum_i norm_i sum_e along(e)``, one edge and component at a time.

        ``along`` maps places to the contraction of each edge's message with its cotangent.
        """
        slots, receiver = edges.slots(nodes, tile)
        at = _real(edges, slots)
        total = np.zeros(nodes.n_nodes)
        np.add.at(total, receiver, along(at))
        rho = _sum_density(at, density, receiver, nodes.n_nodes)
        gradient = np.zeros((nodes.n_slots, 3))
        for axis in range(3):
            moved = self._step(edges, slots, axis)
            edge = 1j * along(moved).imag
            own = 0 if density is None else 1j * moved.polynomials(density).imag
            energy = (total[receiver] + edge) / (1 + rho[receiver] + own)
            gradient[slots, axis] = energy.imag / _STEP
        return gradient

    def _step(self, edges: Edges, slots: np.ndarray, axis: int) -> _Radial:
        """Where edges are after an imaginary step of their vector along an axis."""
        unit, inverse_length = edges.dir[slots, :3], edges.dir[slots, 3]
        towards = unit[:, axis]
        turn = (np.eye(3)[axis] - unit * towards[:, None]) * inverse_length[:, None]
        t = edges.t[slots] + 1j * _STEP * towards * self.setup.inverse_step
        return _Radial(edges.row[slots], t, unit + 1j * _STEP * turn)

    def contract(
        self, layer: int, tile: Tile, species: np.ndarray, coefs: np.ndarray, msg: np.ndarray
    ) -> np.ndarray:
        """Return B [dim_out, n, C] of messages [dim, n, C], real or complex."""
        contraction = self.setup.contractions[layer]
        out = np.zeros((contraction.dim_out, *msg.shape[1:]), msg.dtype)
        mine = coefs[species[tile[0] : tile[1]]]
        for k, (row, *factors) in enumerate(contraction.terms):
            present = [factor for factor in factors if factor >= 0]
            out[row] += mine[:, k] * np.prod(msg[present], axis=0)
        return out

    def contract_backward(
        self,
        layer: int,
        tile: Tile,
        species: np.ndarray,
        coefs: np.ndarray,
        msg: np.ndarray,
        out_bar: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the cotangent of the messages, and its product with them per node, [n]."""
        bar = np.zeros(msg.shape)
        for m in range(len(msg)):
            moved = msg.astype(np.complex128)
            moved[m] += 1j * _STEP
            out = self.contract(layer, tile, species, coefs, moved)
            bar[m] = (out.imag * out_bar).sum(axis=0) / _STEP
        return bar, (msg * bar).sum(axis=(0, 2))

    def forces(
        self, nodes: Neighbors, edges: Edges
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return forces [n_senders, 3], virial [9], and the virials of receivers and senders.

        Those are [n_nodes, 9] and [n_senders, 9]; every edge is counted whole in each.
        """
        slots, receiver = edges.slots(nodes)
        grad, sender = edges.grad[slots], edges.sender[slots]
        vec = edges.dir[slots, :3] / edges.dir[slots, 3:]
        forces = np.zeros((nodes.n_senders, 3))
        np.add.at(forces, receiver, -grad)
        np.add.at(forces, sender, grad)
        per_edge = -(vec[:, :, None] * grad[:, None, :]).reshape(-1, 9)
        of_receivers, of_senders = np.zeros((nodes.n_nodes, 9)), np.zeros((nodes.n_senders, 9))
        np.add.at(of_receivers, receiver, per_edge)
        np.add.at(of_senders, sender, per_edge)
        return forces, per_edge.sum(axis=0), of_receivers, of_senders


def join_blocks(plan: ConvPlan, rows: np.ndarray) -> np.ndarray:
    """Bring [n, dim_out, C] into the order of memory: block after block [2l+1, n, paths, C]."""
    n, _, channels = rows.shape
    blocks = [
        rows[:, block.rows].reshape(n, block.irrep.dim, block.n_paths, channels)
        for block in plan.outputs
    ]
    return np.concatenate([block.transpose(1, 0, 2, 3).reshape(-1) for block in blocks])


def split_blocks(plan: ConvPlan, flat: np.ndarray, n: int) -> np.ndarray:
    """Undo :func:`join_blocks`."""
    parts, channels = [], flat.size // (n * plan.dim_out) if n else plan.channels
    for block in plan.outputs:
        mine = flat[block.rows.start * n * channels : block.rows.stop * n * channels]
        mine = mine.reshape(block.irrep.dim, n, block.n_paths, channels)
        rows = block.rows.stop - block.rows.start
        parts.append(mine.transpose(1, 0, 2, 3).reshape(n, rows, channels))
    return np.concatenate(parts, axis=1)


def _real(edges: Edges, slots: np.ndarray) -> _Radial:
    return _Radial(edges.row[slots], edges.t[slots], edges.dir[slots, :3])


def _sum_density(
    at: _Radial, density: np.ndarray | None, receiver: np.ndarray, n: int
) -> np.ndarray:
    """Sum of the densities of every receiver's edges, [n]; zero without a density."""
    total = np.zeros(n)
    if density is not None:
        np.add.at(total, receiver, at.polynomials(density))
    return total


def _repulsion(repulsion: Repulsion | None, i: int, j: int, r: float) -> tuple[float, float]:
    """Energy of one directed edge from a node of species j to one of species i, and its slope."""
    if repulsion is None:
        return 0.0, 0.0
    length = np.array([r + 1j * _STEP])
    s = repulsion.inverse_length[i, j] * length
    terms = zip(repulsion.coefficients, repulsion.decays, strict=True)
    screening = sum(c * np.exp(-decay * s) for c, decay in terms)
    envelope = cutoff(length / repulsion.bond[i, j], repulsion.p)
    energy = (repulsion.charge[i, j] / length * screening * envelope)[0]
    return energy.real, energy.imag / _STEP
