"""Positions in, energy, forces and virial out, by the inference path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.couplings import ConvPlan
from mace_stream.evaluation import Evaluation, TooCloseError, explained_memory
from mace_stream.folded import TILE_SIZE, grown, padded
from mace_stream.halo import Halo
from mace_stream.jax.folding import Tree
from mace_stream.jax.inference.calls import Nodes
from mace_stream.jax.inference.device_list import Atoms, FoundList, PairFinder
from mace_stream.jax.inference.exchange import RowsOfNodes
from mace_stream.jax.inference.host import HostArrays
from mace_stream.jax.inference.lists import (
    Arrangement,
    HostList,
    Moved,
    Rows,
    Sizes,
    at_least_one,
    sort_edges,
)
from mace_stream.jax.inference.model import prepare
from mace_stream.jax.inference.pipeline import Pipeline
from mace_stream.jax.placement import Placement
from mace_stream.jax.ranks import RankRows
from mace_stream.spec import ModelSpec


class DeviceList(NamedTuple):
    """A neighbor list on the device."""

    nodes: Nodes
    place: Array
    """Row of every node of the pair style, int32 [n_senders]."""
    mask: Array
    """1 for nodes and 0 for padding, float64 [n_nodes]."""
    moved: Moved
    sent: Array
    """Rows that go to other ranks, int32; beyond all rows where there is none."""


class Step(NamedTuple):
    """What a program returns."""

    packed: Array
    """Number of edges, energy, virial [9], closest distance, forces [n_senders, 3]; float64."""
    node_energy: Array
    node_virials: list[Array]
    """Empty, or [n_nodes, 9] of receivers and [n_senders, 9] of senders."""


N_TOTALS = 12


class InferenceEvaluator:
    """A model on a device, with the current neighbor list. See :class:`JaxEvaluator`.

    Args:
        spec: Architecture.
        tensors: Parameters, as stored in the file.
        head: Name of the head.
        placement: Device and precision.
        species: Elements that may occur, as indices into the model's.
        tile: Nodes that are worked on together; None leaves it to us.
        deterministic: Whether results must repeat bit for bit; said in the log.
        inputs: Charge and spin, for models that take them.

    Raises:
        NotImplementedError: The inference path cannot run this model.
        TableError: Its radial tables cannot be made fine enough.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, np.ndarray],
        *,
        head: str,
        placement: Placement,
        species: Sequence[int],
        tile: int | None = None,
        deterministic: bool = False,
        inputs: Mapping[str, float] | None = None,
    ) -> None:
        self.placement, self.deterministic = placement, deterministic
        with placement.claimed():
            self.model = prepare(
                *(spec, tensors),
                head=head,
                inputs=inputs,
                species=species,
                placement=placement,
            )
        self._species_of = np.full(len(spec.elements), -1)
        self._species_of[list(species)] = np.arange(len(species))
        self._tile = padded(tile) if tile else TILE_SIZE["cuda" if placement.on_gpu else "cpu"]
        self._capacity: list[int] = []
        self._sizes = Sizes()
        self._new_list: HostList | Atoms | None = None
        self.finds_pairs = placement.on_gpu
        if self.finds_pairs:
            self._find_pairs = PairFinder(placement.device)
        self._host: HostArrays | None = None
        self._ranks: RankRows | None = None
        self._programs: dict[str, tuple[tuple, Callable]] = {}
        self._n_compilations, self._compile_s = 0, 0.0
        self._statistics = _no_statistics()

    def describe(self) -> list[tuple[str, str]]:
        """Return what the log says about the layers."""
        plans = enumerate(self.model.setup.plans)
        layers = [(f"layer {t}", _layer_text(plan)) for t, plan in plans]
        return [
            *layers,
            ("radial part", f"spline: {self.model.radial.text}"),
            ("program", "one for a step, compiled by XLA; again when arrays grow"),
            *[("deterministic", "yes: all sums in one order")] * self.deterministic,
        ]

    def take_statistics(self) -> dict[str, float]:
        """Return seconds, edges, memory of the device in bytes and compilations.

        Seconds and edges are since the last call, the others since the start.
        """
        taken = self._statistics
        self._statistics = _no_statistics()
        taken["device_peak_bytes"] = self.placement.peak_bytes()
        return taken | {"compilations": self._n_compilations, "compile_s": self._compile_s}

    def set_halo(self, halo: Halo) -> None:
        """Take over the nodes that ranks share; before each new list."""
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
        """Copy a neighbor list; shapes as in :class:`mace_stream.bridge.Session`."""
        self._take_species(species, max(0, len(indptr) - 1))
        arrays = map(np.array, (indptr, sender, receiver_atom, sender_atom))
        self._new_list = HostList(*arrays, self._species)

    def set_atoms(self, n_local: int, node: np.ndarray, species: np.ndarray, cutoff: float) -> None:
        """Take over atoms instead of a list; see :meth:`mace_stream.bridge.Session.set_atoms`."""
        n_remote = 0 if self._ranks is None else self._ranks.halo.n_received
        self._take_species(species, len(species) - n_remote)
        self._new_list = Atoms(n_local, np.array(node), self._species, cutoff)

    def _take_species(self, species: np.ndarray, n_own: int) -> None:
        self._of_model = np.array(species)
        self._species = self._species_of[self._of_model]
        self._counts = np.bincount(self._species[:n_own], minlength=len(self.model.constants))

    def pairs(self, positions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the list as :meth:`set_topology` takes it."""
        given = (self._list if self._new_list is None else self._found(positions)).as_list()
        arrays = given.indptr, given.sender, given.receiver_atom, given.sender_atom
        return (*arrays, self._of_model)

    def _found(self, positions: np.ndarray) -> HostList | FoundList:
        """The new list, found here where atoms were handed over in place of one."""
        given = self._new_list
        return self._find_pairs(given, positions) if isinstance(given, Atoms) else given

    def take_list(self, positions: np.ndarray) -> int:
        """Take over a new list, if there is one, before its first evaluation at ``positions``.

        Returns:
            Number of pairs in the list, each counted from both sides.
        """
        with self.placement.claimed(), self._explained():
            if self._new_list is not None:
                self._take_list(positions)
        return self._list.n_pairs

    def evaluate(self, positions: np.ndarray, node_energy: bool, node_virial: bool) -> Evaluation:
        """Evaluate at ``positions`` [n_atoms, 3]. Synchronizes with the device once.

        Raises:
            TooCloseError: Two atoms are closer than the radial tables reach.
        """
        with self.placement.claimed(), self._explained():
            start, compiled = perf_counter(), self._compile_s
            if self._new_list is not None:
                self._take_list(positions)
            arguments = self.model.tree, self._device_list, self._given(positions)
            step = self._with_virials if node_virial else self._without_virials
            program = self._program(step, *arguments)
            ready = perf_counter()
            found = self._run(program, arguments)
            result = self._result(found, positions, node_energy)
            self._statistics["arrange_s"] += ready - start - (self._compile_s - compiled)
            self._statistics["model_s"] += perf_counter() - ready
        return result

    def _explained(self) -> AbstractContextManager[None]:
        return explained_memory(self.placement.device_name, self._tile)

    # ---- a new list ----

    def _take_list(self, positions: np.ndarray) -> None:
        """Bring a new list into the passes' order, and grow the arrays if it does not fit."""
        self._list = given = self._found(positions)
        self._new_list = None
        by_rows = given.rows(len(positions))
        self._make_room(given, by_rows)
        found = Arrangement(by_rows, given.species, self._capacity, self._sizes, self._tile)
        self._arrangement = found
        self._device_list = self._in_order(found, positions)
        if self.placement.on_gpu:
            sizes = self._sizes.atoms, N_TOTALS + 3 * len(self._device_list.place)
            if self._host is None or self._host.sizes != sizes:
                self._host = HostArrays.of(sizes, self.placement.device.local_hardware_id)

    def _make_room(self, given: HostList | FoundList, by_rows: Rows) -> None:
        self._capacity = at_least_one(grown(self._capacity, self._counts.tolist()))
        self._sizes = self._sizes.fitting(
            atoms=len(by_rows.node),
            slots=given.n_pairs,
            remote=len(given.species) - given.n_own,
            moved=len(by_rows.moved),
        )
        if self._ranks is not None:  # no rank's program lacks an exchange
            self._sizes = self._sizes.fitting(remote=1, sent=max(1, len(self._sent)))

    def _in_order(self, found: Arrangement, positions: np.ndarray) -> DeviceList:
        """Sort the edges on the device."""
        device, sent = self.placement.device, [] if self._ranks is None else self._sent
        rows = np.full(self._sizes.sent, found.n_nodes, np.int32)
        rows[: len(sent)] = found.place[sent]
        x = self._upload(positions)
        slots, species, moved = jax.device_put((found.slots, found.species, found.moved), device)
        program = self._program(sort_edges, x, slots, species, moved)
        in_order = program(x, slots, species, moved)
        nodes = Nodes(found.first, found.node_atom, *in_order, species)
        rest = found.long_place(), found.mask, moved, rows
        return jax.device_put(DeviceList(nodes, *rest), device)

    def _given(self, positions: np.ndarray) -> Array | None:
        """Positions as the program takes them; on a GPU it fetches them from the host."""
        if self._host is None:
            return self._upload(positions)
        self._host.give(positions)
        return None

    def _upload(self, positions: np.ndarray) -> Array:
        x = np.zeros((self._sizes.atoms, 3))
        x[: len(positions)] = positions
        return jax.device_put(x, self.placement.device)

    # ---- programs ----

    def _program(self, function: Callable, *arguments: object) -> Callable:
        """Return ``function`` compiled for the present sizes."""
        name = function.__name__
        key = self._sizes, self._arrangement.tiles
        if function is not sort_edges:
            key += (None if self._host is None else self._host.addresses,)
        if name not in self._programs or self._programs[name][0] != key:
            start = perf_counter()
            self._programs[name] = key, self.placement.compiled(function, *arguments)
            self._n_compilations += function is not sort_edges
            self._compile_s += perf_counter() - start
        return self._programs[name][1]

    def _run(self, program: Callable, arguments: tuple) -> tuple[np.ndarray, Step]:
        """Run a program and bring what every step needs to the host."""

        def run() -> tuple[np.ndarray, Step]:
            with self.placement.claimed():
                found = program(*arguments)
                if self._host is None:
                    return np.asarray(found.packed), found
                if self._ranks is None:
                    self._host.wait(found.packed)
                else:  # leave the processor to the exchange
                    found.packed.block_until_ready()
                return self._host.results, found

        return run() if self._ranks is None else self._ranks.run(run)

    def _without_virials(self, *arguments: object) -> Step:
        return self._step(*arguments, per_node=False)

    def _with_virials(self, *arguments: object) -> Step:
        return self._step(*arguments, per_node=True)

    def _step(self, tree: Tree, given: DeviceList, x: Array | None, *, per_node: bool) -> Step:
        """One evaluation, of arrays as long as the sizes say."""
        model, n_nodes = self.model, self._arrangement.n_nodes
        if x is None:
            x = model.calls.from_host(self._host.positions)
        exchange = None
        if self._ranks is not None:
            exchange = RowsOfNodes(self._ranks, given.sent, n_nodes, self._sizes.remote)
        parts = model.setup, model.layers, model.calls, self._arrangement.tiles
        pipeline = Pipeline(*parts, n_nodes, exchange, per_node=per_node)
        with jax.default_matmul_precision("highest"):  # the default on GPUs has three digits
            found = pipeline(tree, given.nodes, given.moved.appended(x))
        energy = jnp.sum(found.node_energy * given.mask)
        n_edges = jnp.sum(found.edges.count).astype(jnp.float64)
        forces = found.forces[given.place]
        totals = n_edges[None], energy[None], found.virial, found.closest, forces.reshape(-1)
        places = given.place[:n_nodes], given.place
        virials = [v[place] for v, place in zip(found.node_virials, places, strict=False)]
        energies = found.node_energy[given.place[:n_nodes]]
        packed = jnp.concatenate(totals)
        if self._host is not None:
            packed = model.calls.to_host(packed, self._host.results, self._host.arrived)
        return Step(packed, energies, virials)

    # ---- results ----

    def _result(
        self, found: tuple[np.ndarray, Step], positions: np.ndarray, node_energy: bool
    ) -> Evaluation:
        packed, step = found
        n_edges, energy, *virial, closest = packed[:N_TOTALS].tolist()
        self._statistics["edges"] += int(n_edges)
        if closest < self.model.setup.r_0:
            nodes = self._closest_nodes(positions)
            raise TooCloseError(closest, nodes, self.model.setup.r_0)
        n, n_senders, per_node = self._list.n_own, len(self._list.species), {}
        if node_energy:
            constants = self.model.constants[self._list.species[:n]]
            per_node["node_energy"] = np.asarray(step.node_energy)[:n] + constants
        if step.node_virials:
            received, sent = (np.asarray(array).reshape(-1, 3, 3) for array in step.node_virials)
            per_node["receiver_virial"] = received[:n].copy()
            per_node["sender_virial"] = sent[:n_senders].copy()
        return Evaluation(
            energy + float(self._counts @ self.model.constants),
            packed[N_TOTALS:].reshape(-1, 3)[:n_senders].copy(),
            np.array(virial).reshape(3, 3),
            **per_node,
        )

    def _closest_nodes(self, positions: np.ndarray) -> tuple[int, int]:
        """The nodes of the shortest edge, in the order of the list handed over."""
        given = self._list.as_list()
        vec = positions[given.receiver_atom] - positions[given.sender_atom]
        slot = int(np.argmin(np.nan_to_num(np.linalg.norm(vec, axis=1), nan=np.inf)))
        receiver = np.searchsorted(given.indptr, slot, side="right") - 1
        return int(receiver), int(given.sender[slot])


def _layer_text(plan: ConvPlan | None) -> str:
    if plan is None:
        return "convolution streaming: fused; sender features depend on the element alone"
    return f"convolution streaming: fused with the radial table, {plan.n_paths} paths"


def _no_statistics() -> dict[str, float]:
    return {"arrange_s": 0.0, "model_s": 0.0, "edges": 0}
