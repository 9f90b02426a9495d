"""Positions in, energy, forces and virial out: the JAX side of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil
from time import perf_counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.evaluation import Evaluation
from mace_stream.halo import Halo
from mace_stream.jax.edges import List, edges_within, inside, padded_list
from mace_stream.jax.folding import Tree
from mace_stream.jax.model import MACE
from mace_stream.jax.placement import Placement
from mace_stream.jax.ranks import GhostFeatures, RankRows
from mace_stream.spec import ModelSpec

SLACK = {"receivers": 0.0}
"""Arrays are made longer than they need to be, so that a little more still fits: by this part, and
by :data:`USUAL_SLACK` where none is named."""
USUAL_SLACK = 0.05
ROOM = 64
"""Lengths are multiples of this. No array is empty: every rank's program has all exchanges."""


@dataclass(frozen=True)
class Capacities:
    """Lengths of the arrays of compiled programs."""

    atoms: int = ROOM
    """Rows of the positions, images included."""
    listed: int = ROOM
    """Entries of the neighbor list, skin included."""
    edges: int = ROOM
    """Those within r_max."""
    receivers: int = ROOM
    ghosts: int = ROOM
    """Nodes of other ranks."""
    sent: int = ROOM
    """Rows that go to other ranks."""

    def fitting(self, **needed: int) -> Capacities:
        """Return these, or larger ones where they are too small; they never shrink."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        grown = {name: _room(name, n) for name, n in needed.items() if n > kept[name]}
        return Capacities(**kept | grown) if grown else self


def _room(name: str, count: int) -> int:
    with_slack = count * (1 + SLACK.get(name, USUAL_SLACK))
    return ceil(with_slack / ROOM) * ROOM


class Step(NamedTuple):
    """What a program returns; per-node arrays are as long as the capacities say."""

    energy: Array
    forces: Array
    virial: Array
    node_energy: Array
    receiver_virial: Array | None
    sender_virial: Array | None


class JaxEvaluator:
    """A model on a device, with the topology of the current neighbor list.

    Programs are compiled ahead of their first run for arrays of some lengths, and again only when
    something does not fit any more.

    Args:
        spec: Architecture.
        tensors: Parameters, as stored in the file.
        head: Name of the head.
        placement: Device and precision.
        conv: Mode of the convolutions.
        elements: Atomic numbers that may occur.
        reason: Why the radial network is evaluated for every edge.
        deterministic: Whether results must repeat bit for bit.
        inputs: Charge and spin, for models that take them.
    """

    finds_pairs = False

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, np.ndarray],
        *,
        head: str,
        placement: Placement,
        conv: str,
        elements: Sequence[int] | None = None,
        reason: str = "asked for",
        deterministic: bool = False,
        inputs: Mapping[str, float] | None = None,
    ) -> None:
        self.placement = placement
        self.reason = reason
        self.r_max = spec.r_max
        self.deterministic = deterministic
        with placement.claimed():
            self.model = MACE.from_spec(
                *(spec, tensors),
                head=head,
                dtype=placement.dtype,
                elements=elements,
                conv_mode=conv,
                inputs=inputs,
                platform=placement.device.platform,
            )
            self._parameters = jax.jit(self.model.fold)(self.model.parameters)
        if deterministic:
            self.model.make_deterministic()
        self._ranks: RankRows | None = None
        self._capacities = Capacities()
        self._programs: dict[str, tuple[tuple, Callable]] = {}
        self._n_compilations, self._compile_s = 0, 0.0
        self._statistics = _no_statistics()

    def describe(self) -> list[tuple[str, str]]:
        """Return what the log says about the layers."""
        layers = [
            (f"layer {layer}", f"convolution {mode}: {reason}")
            for layer, mode, reason in self.model.conv_modes()
        ]
        exact = f"exact: the radial network is evaluated for every edge ({self.reason})"
        repeats = [("deterministic", "yes: all sums in one order")] * self.deterministic
        return [*layers, ("radial part", exact), *repeats]

    def set_halo(self, halo: Halo) -> None:
        """Take over the nodes that ranks share."""
        self._ranks = self._ranks or RankRows()
        self._ranks.halo = halo
        self._sent = halo.sent.copy()

    def set_topology(
        self,
        indptr: np.ndarray,
        sender: np.ndarray,
        receiver_atom: np.ndarray,
        sender_atom: np.ndarray,
        species: np.ndarray,
    ) -> None:
        """Copy a neighbor list to the device; shapes as in :class:`mace_stream.bridge.Session`."""
        n_own = max(0, len(indptr) - 1)
        self._n_own, self._n_ghosts = n_own, len(species) - n_own
        self._topology = tuple(
            np.array(a) for a in (indptr, sender, receiver_atom, sender_atom, species)
        )
        needed = {"listed": len(sender), "receivers": n_own}
        if self._ranks is not None:
            needed |= {"ghosts": self._n_ghosts, "sent": len(self._sent)}
        self._capacities = room = self._capacities.fitting(**needed)
        kinds = np.full(room.receivers + room.ghosts, -1, np.int32)
        kinds[:n_own] = species[:n_own]
        kinds[room.receivers : room.receivers + self._n_ghosts] = species[n_own:]
        moved = np.where(sender >= n_own, sender + room.receivers - n_own, sender)
        pairs = padded_list(indptr, moved, receiver_atom, sender_atom, room.listed)
        sent = np.full(room.sent, room.receivers, np.int32)
        if self._ranks is not None:
            sent[: len(self._sent)] = self._sent
        with self.placement.claimed():
            self._list = jax.device_put((pairs, kinds, sent), self.placement.device)

    def pairs(self, positions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the list as :meth:`set_topology` takes it."""
        return self._topology

    def take_list(self, positions: np.ndarray) -> int:
        """Return the number of pairs in the list, each counted from both sides."""
        return len(self._topology[1])

    def evaluate(self, positions: np.ndarray, node_energy: bool, node_virial: bool) -> Evaluation:
        """Evaluate at ``positions`` [n_atoms, 3]. Synchronizes with the device at the end."""
        with self.placement.claimed():
            start, compiled = perf_counter(), self._compile_s
            self._capacities = self._capacities.fitting(atoms=len(positions))
            x = self._upload(positions)
            count = self._program(self._count, x, self._list[0])
            n_edges = int(count(x, self._list[0]))
            self._capacities = self._capacities.fitting(edges=n_edges)
            arguments = (self._parameters, x, *self._list)
            step = self._with_virials if node_virial else self._without_virials
            program = self._program(step, *arguments)
            ready = perf_counter()
            found = self._run(program, arguments)
            self._statistics["arrange_s"] += ready - start - (self._compile_s - compiled)
            self._statistics["model_s"] += perf_counter() - ready
            self._statistics["edges"] += n_edges
        return self._result(found, node_energy)

    def take_statistics(self) -> dict[str, float]:
        """Return seconds, edges, memory of the device in bytes and compilations.

        Seconds and edges are since the last call, the others since the start.
        """
        taken = self._statistics
        self._statistics = _no_statistics()
        taken["device_peak_bytes"] = self.placement.peak_bytes()
        return taken | {"compilations": self._n_compilations, "compile_s": self._compile_s}

    def _run(self, program: Callable, arguments: tuple) -> Step:
        """Run a program and bring its results to the host."""

        def run() -> Step:
            with self.placement.claimed():
                return jax.device_get(program(*arguments))

        return run() if self._ranks is None else self._ranks.run(run)

    def _upload(self, positions: np.ndarray) -> Array:
        x = np.zeros((self._capacities.atoms, 3))
        x[: len(positions)] = positions
        return jax.device_put(x, self.placement.device)

    # ---- programs ----

    def _program(self, function: Callable, *arguments: object) -> Callable:
        """Return ``function`` compiled for the present capacities."""
        shapes = [a.shape for a in jax.tree.leaves(arguments)]
        key = (shapes, self._ranks is None, self._capacities if function != self._count else None)
        name = function.__name__
        if name not in self._programs or self._programs[name][0] != key:
            start = perf_counter()
            self._programs[name] = key, self.placement.compiled(function, *arguments)
            self._n_compilations += function != self._count
            self._compile_s += perf_counter() - start
        return self._programs[name][1]

    def _count(self, x: Array, pairs: List) -> Array:
        return jnp.sum(inside(x, pairs, self.r_max)[1])

    def _without_virials(self, *arguments: object) -> Step:
        return self._step(*arguments, node_virial=False)

    def _with_virials(self, *arguments: object) -> Step:
        return self._step(*arguments, node_virial=True)

    def _step(
        self,
        parameters: Tree,
        x: Array,
        pairs: List,
        species: Array,
        sent: Array,
        *,
        node_virial: bool,
    ) -> Step:
        """One evaluation, of arrays as long as the capacities say."""
        room = self._capacities
        edges = edges_within(x, pairs, self.r_max, room.receivers, room.edges)
        halo = None if self._ranks is None else GhostFeatures(self._ranks, sent, room.ghosts)

        def energy(vec: Array) -> tuple[Array, Array]:
            return self.model(parameters, vec, edges.indptr, edges.sender, species, halo)

        (_, node_energy), grad = jax.value_and_grad(energy, has_aux=True)(edges.vec)
        zeros = jnp.zeros((room.receivers + room.ghosts, 3))
        forces = zeros.at[edges.receiver].add(-grad).at[edges.sender].add(grad)
        virial = -jnp.sum(edges.vec[:, :, None] * grad[:, None], axis=0)
        received = sent_virial = None
        if node_virial:
            products = -edges.vec[:, :, None] * grad[:, None]
            zeros = jnp.zeros((room.receivers + room.ghosts, 3, 3))
            received = zeros[: room.receivers].at[edges.receiver].add(products)
            sent_virial = zeros.at[edges.sender].add(products)
        return Step(jnp.sum(node_energy), forces, virial, node_energy, received, sent_virial)

    def _result(self, step: Step, node_energy: bool) -> Evaluation:
        """Leave out what only fills arrays up."""
        per_node = {}
        if node_energy:
            per_node["node_energy"] = np.array(step.node_energy[: self._n_own])
        if step.receiver_virial is not None:
            per_node["receiver_virial"] = np.array(step.receiver_virial[: self._n_own])
            per_node["sender_virial"] = self._senders(step.sender_virial)
        virial = np.array(step.virial)
        return Evaluation(float(step.energy), self._senders(step.forces), virial, **per_node)

    def _senders(self, rows: np.ndarray) -> np.ndarray:
        """Rows of own nodes and of those of other ranks."""
        first = self._capacities.receivers
        return np.concatenate([rows[: self._n_own], rows[first : first + self._n_ghosts]])


def _no_statistics() -> dict[str, float]:
    return {"arrange_s": 0.0, "model_s": 0.0, "edges": 0}
