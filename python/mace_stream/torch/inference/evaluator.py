"""Positions in, energy, forces and virial out, by the inference path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch

from mace_stream.couplings import ConvPlan
from mace_stream.evaluation import Evaluation, TooCloseError
from mace_stream.folded import grown
from mace_stream.halo import Halo
from mace_stream.spec import ModelSpec
from mace_stream.torch.inference.arrangement import Arrangement, Topology
from mace_stream.torch.inference.buffers import ListBuffers, address
from mace_stream.torch.inference.device_list import Atoms, cell_list, find_topology
from mace_stream.torch.inference.exchange import FeatureExchange
from mace_stream.torch.inference.images import with_one_receiver
from mace_stream.torch.inference.memory import ListSize, MemoryBudget
from mace_stream.torch.inference.model import prepare
from mace_stream.torch.inference.ordered import OrderedPasses
from mace_stream.torch.inference.pipeline import Pipeline
from mace_stream.torch.inference.runs import GraphedRun, PlainRun
from mace_stream.torch.placement import Placement
from mace_stream.torch.ranks import RankRows

SLACK = 1.05
"""Arrays that have to grow get this much more than they need."""


class InferenceEvaluator:
    """A model on a device, with the current neighbor list. See :class:`TorchEvaluator`.

    Args:
        spec: Architecture.
        tensors: Parameters, as stored in the file.
        head: Name of the head.
        placement: Device and precision.
        species: Elements that may occur, as indices into the model's.
        graphs: Whether to replay a step as one CUDA graph.
        tile: Nodes that are worked on together; None leaves it to us.
        deterministic: Whether results must repeat bit for bit; on a CPU only.

    Raises:
        NotImplementedError: The inference path cannot run this model.
        ValueError: Its radial tables cannot be made fine enough.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, np.ndarray],
        *,
        head: str,
        placement: Placement,
        species: Sequence[int],
        graphs: bool,
        tile: int | None = None,
        deterministic: bool = False,
        inputs: Mapping[str, float] | None = None,
    ) -> None:
        self.placement = placement
        self.device = device = placement.device
        with placement.claimed():
            self.model = prepare(
                *(spec, tensors),
                head=head,
                inputs=inputs,
                species=species,
                dtype=placement.dtype,
                device=device,
            )
        self.deterministic = deterministic
        if deterministic and placement.threads > 1:
            self.model = replace(self.model, passes=OrderedPasses(self.model.passes))
        self._species_of = torch.full((len(spec.elements),), -1, device=device)
        self._species_of[list(species)] = torch.arange(len(species), device=device)
        self._buffers: ListBuffers | None = None
        self._capacity: list[int] = []
        self._new_list: Topology | Atoms | None = None
        self._budget = MemoryBudget(self.model, placement, tile)
        self.finds_pairs = device.type == "cuda"
        if self.finds_pairs:
            with placement.claimed():
                self._cell_list = cell_list(device)
        self._ranks: RankRows | None = None
        self._run = GraphedRun(device) if graphs and device.type == "cuda" else PlainRun()
        self._pinned = device.type == "cuda"
        self._statistics = _no_statistics()

    def describe(self) -> list[tuple[str, str]]:
        """Return what the log says about the layers."""
        plans = enumerate(self.model.setup.plans)
        layers = [(f"layer {t}", _layer_text(plan)) for t, plan in plans]
        return [
            *layers,
            ("radial part", f"spline: {self.model.radial.text}"),
            ("CUDA graphs", self._run.text),
            *[("deterministic", "yes: shared sums on one thread")] * self.deterministic,
            *self._budget.describe(),
        ]

    def take_statistics(self) -> dict[str, float]:
        """Return seconds, edges and peak memory of the device in bytes since the last call."""
        taken = self._statistics
        self._statistics = _no_statistics()
        taken["device_peak_bytes"] = self.placement.peak_bytes()
        steps = taken.pop("evaluations")
        if self._buffers is not None:
            taken["edges"] = int(self._buffers.count.sum()) * steps
        taken["captures"] = self._run.n_captures
        return taken

    def set_halo(self, halo: Halo) -> None:
        """Take over the nodes that ranks share; before each new list."""
        self._ranks = RankRows(halo, self.device)

    def set_topology(
        self,
        indptr: np.ndarray,
        sender: np.ndarray,
        receiver_atom: np.ndarray,
        sender_atom: np.ndarray,
        species: np.ndarray,
    ) -> None:
        """Copy a neighbor list to the device; shapes as in :class:`mace_stream.bridge.Session`."""

        def upload(array: np.ndarray) -> torch.Tensor:
            return torch.tensor(array, device=self.device)

        self._take_species(species, len(indptr) - 1)
        arrays = map(upload, (indptr, sender, receiver_atom, sender_atom))
        self._new_list = Topology(*arrays, self._species)

    def set_atoms(self, n_local: int, node: np.ndarray, species: np.ndarray, cutoff: float) -> None:
        """Take over atoms instead of a list; see :meth:`mace_stream.bridge.Session.set_atoms`."""
        n_remote = self._ranks.n_received if self._ranks else 0
        self._take_species(species, len(species) - n_remote)
        on_device = torch.tensor(node, device=self.device)
        self._new_list = Atoms(n_local, on_device, self._species, cutoff)

    def _take_species(self, species: np.ndarray, n_nodes: int) -> None:
        of_model = torch.tensor(species, dtype=torch.int64, device=self.device)
        self._species, self._n_nodes = self._species_of[of_model], n_nodes
        counts = torch.bincount(self._species[:n_nodes], minlength=len(self.model.constants))
        self._n_species = counts.cpu().numpy()

    def pairs(self, positions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return a list not yet taken over as :meth:`set_topology` takes it."""
        topology = self._new_list
        if isinstance(topology, Atoms):
            x = torch.from_numpy(positions).to(self.device)
            topology = find_topology(topology, x, self._cell_list)
        present = torch.argsort(self._species_of, stable=True)[-len(self.model.constants) :]
        arrays = topology.indptr, topology.sender, topology.receiver_atom, topology.sender_atom
        return tuple(array.cpu().numpy() for array in (*arrays, present[topology.species]))

    def take_list(self, positions: np.ndarray) -> int:
        """Take over a new list, if there is one, before its first evaluation at ``positions``.

        Returns:
            Number of pairs in the list, each counted from both sides.
        """
        with self.placement.claimed(), self._budget.explained():
            if self._new_list is not None:
                self._take_list(positions)
        return self._budget.size.n_slots

    def evaluate(self, positions: np.ndarray, node_energy: bool, node_virial: bool) -> Evaluation:
        """Evaluate at ``positions`` [n_atoms, 3]. Synchronizes with the device once.

        Raises:
            TooCloseError: Two atoms are closer than the radial tables reach.
        """
        with self.placement.claimed(), self._budget.explained():
            start = perf_counter()
            if self._new_list is not None:
                self._take_list(positions)
            listed = perf_counter()
            self._upload_positions(positions)
            self._run(self._pipeline.stages())
            result = self._results(node_energy, node_virial)
            self._statistics["arrange_s"] += listed - start
            self._statistics["model_s"] += perf_counter() - listed
            self._statistics["evaluations"] += 1
        return result

    def _take_list(self, positions: np.ndarray) -> None:
        """Bring a new list into the passes' order, and grow the arrays if it does not fit."""
        topology, x = self._new_topology(torch.from_numpy(positions).to(self.device))
        self._new_list = None
        n_classes = 1 if self._ranks is None else 2
        group = topology.groups(None if self._ranks is None else self._ranks.sent)
        counts = torch.bincount(group, minlength=n_classes * len(self.model.constants))
        self._capacity = grown(self._capacity, counts.tolist())
        n_senders, n_slots = len(topology.species), len(topology.sender)
        tile = self._budget.choose_tile(ListSize(self._n_nodes, n_senders, n_slots, len(x)))
        arrangement = Arrangement(topology, x, group, self._capacity, n_classes, tile)
        if not self._fits(arrangement, len(x)):
            slack = 1.0 if self._buffers is None else SLACK
            self._buffers = self._pipeline = None
            self._run.forget()
            n_remote = arrangement.n_senders - arrangement.n_nodes
            self._buffers = ListBuffers(
                arrangement.n_nodes,
                arrangement.n_nodes + int(slack * n_remote),
                int(slack * arrangement.n_slots),
                int(slack * len(x)),
                self.placement.dtype,
                self.device,
            )
            self._pipeline = Pipeline(
                *(self.model.setup, self.model.layers, self.model.tables, self.model.passes),
                *(self._buffers, arrangement.tiles),
            )
            self._host_x = torch.zeros(self._buffers.x.shape, dtype=torch.float64)
            self._host_forces = torch.zeros(self._buffers.forces.shape, dtype=torch.float64)
            self._host_totals = torch.zeros(11, dtype=torch.float64)
            if self._pinned:
                self._host_x = self._host_x.pin_memory()
                self._host_forces = self._host_forces.pin_memory()
                self._host_totals = self._host_totals.pin_memory()
        self._buffers.take(arrangement)
        self._connect(arrangement)

    def _fits(self, arrangement: Arrangement, n_atoms: int) -> bool:
        """Whether a new list fits the arrays, and what was captured of them."""
        return (
            self._buffers is not None
            and self._buffers.holds(arrangement, n_atoms)
            and self._pipeline.tiles == arrangement.tiles
        )

    def _connect(self, arrangement: Arrangement) -> None:
        """Let the layers' features travel, on several ranks."""
        pipeline, n_nodes = self._pipeline, arrangement.n_nodes
        if self._ranks is not None:
            pipeline.exchanges = [
                FeatureExchange(self._ranks, up, up_bar, arrangement.place, n_nodes)
                for up, up_bar in zip(pipeline.up, pipeline.up_bar, strict=True)
            ]

    def _new_topology(self, x: torch.Tensor) -> tuple[Topology, torch.Tensor]:
        """The new list, and the positions that it refers to."""
        if isinstance(self._new_list, Atoms):
            self._moved = None
            return find_topology(self._new_list, x, self._cell_list), x
        topology, self._moved = with_one_receiver(self._new_list, len(x))
        return topology, x if self._moved is None else torch.cat([x, self._moved.positions(x)])

    def _upload_positions(self, positions: np.ndarray) -> None:
        self._host_x[: len(positions)].numpy()[:] = positions
        x = self._buffers.x
        x.copy_(self._host_x, non_blocking=True)
        if self._moved is not None:
            n_atoms = len(positions)
            x[n_atoms : n_atoms + len(self._moved)] = self._moved.positions(x)

    def _results(self, node_energy: bool, node_virial: bool) -> Evaluation:
        buffers, n = self._buffers, self._n_nodes
        self._host_totals.copy_(buffers.totals, non_blocking=True)
        self._host_forces.copy_(buffers.forces, non_blocking=True)
        if self._pinned:
            torch.cuda.current_stream(self.device).synchronize()
        energy, *virial, closest = self._host_totals.tolist()
        if closest < self.model.setup.r_0:
            raise TooCloseError(closest, self._closest_nodes(), self.model.setup.r_0)
        per_node = {}
        if node_energy:
            constants = torch.from_numpy(self.model.constants).to(self.device)
            energies = buffers.node_energy[buffers.place[:n]] + constants[self._species[:n]]
            per_node["node_energy"] = energies.cpu().numpy()
        if node_virial:
            per_node |= self._node_virials()
        constant = float(self._n_species @ self.model.constants)
        return Evaluation(
            energy + constant,
            self._host_forces[: len(self._species)].numpy(),
            np.array(virial).reshape(3, 3),
            **per_node,
        )

    def _node_virials(self) -> dict[str, np.ndarray]:
        """Sum over the edges once more, node by node."""
        buffers, n = self._buffers, self._n_nodes
        receiver, sender = (
            torch.zeros(rows, 9, dtype=torch.float64, device=self.device)
            for rows in (buffers.n_nodes, buffers.n_senders)
        )
        forces, virial = torch.zeros_like(buffers.forces), torch.zeros_like(buffers.totals)
        arrays = map(address, (forces, virial, receiver, sender))
        self.model.passes.forces(buffers.nodes(), buffers.edges(), *arrays)
        place = buffers.place[: len(self._species)]
        return {
            "receiver_virial": receiver[place[:n]].view(-1, 3, 3).cpu().numpy(),
            "sender_virial": sender[place].view(-1, 3, 3).cpu().numpy(),
        }

    def _closest_nodes(self) -> tuple[int, int]:
        """The nodes of the shortest edge, in the order of the list handed over."""
        buffers = self._buffers
        lengths = buffers.first.diff()
        row = torch.repeat_interleave(torch.arange(buffers.n_nodes, device=self.device), lengths)
        receiver = buffers.x[buffers.node_atom[row].long()]
        distance = (receiver - buffers.x[buffers.slot_atom[: len(row)].long()]).norm(dim=1)
        slot = int(distance.nan_to_num(nan=torch.inf).argmin())
        ends = (int(row[slot]), int(buffers.slot_node[slot]))
        place = buffers.place.tolist()
        return place.index(ends[0]), place.index(ends[1])


def _layer_text(plan: ConvPlan | None) -> str:
    if plan is None:
        return "convolution streaming: fused; sender features depend on the element alone"
    return f"convolution streaming: fused with the radial table, {plan.n_paths} paths"


def _no_statistics() -> dict[str, float]:
    return {"arrange_s": 0.0, "model_s": 0.0, "evaluations": 0, "edges": 0, "device_peak_bytes": 0}
