"""Positions in, energy, forces and virial out: the torch side of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from mace_stream.evaluation import Evaluation
from mace_stream.halo import Halo
from mace_stream.spec import ModelSpec
from mace_stream.torch.model import MACE
from mace_stream.torch.placement import Placement, one_order
from mace_stream.torch.ranks import GhostFeatures, RankRows


class TorchEvaluator:
    """A model on a device, with the topology of the current neighbor list.

    Args:
        spec: Architecture.
        tensors: Parameters, as stored in the file.
        head: Name of the head.
        placement: Device and precision.
        conv: Mode of the convolutions.
        reason: Why the radial network is evaluated for every edge.
        deterministic: Whether results must repeat bit for bit.
        inputs: Charge and spin, for models that take them.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, np.ndarray],
        *,
        head: str,
        placement: Placement,
        conv: str,
        reason: str = "asked for",
        deterministic: bool = False,
        inputs: Mapping[str, float] | None = None,
    ) -> None:
        self.placement = placement
        self.device = placement.device
        self.reason = reason
        self.r_max_squared = spec.r_max**2
        self.model = MACE.from_spec(
            spec,
            tensors,
            head=head,
            dtype=placement.dtype,
            device=self.device,
            conv_mode=conv,
            inputs=inputs,
        )
        self.deterministic = deterministic
        if deterministic:
            self.model.make_deterministic()
        self._ranks: RankRows | None = None
        self._ghosts: GhostFeatures | None = None
        self._statistics = _no_statistics()

    finds_pairs = False

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
        self._ranks = RankRows(halo, self.device)
        self._ghosts = GhostFeatures(self._ranks)

    def set_topology(
        self,
        indptr: np.ndarray,
        sender: np.ndarray,
        receiver_atom: np.ndarray,
        sender_atom: np.ndarray,
        species: np.ndarray,
    ) -> None:
        """Copy a neighbor list to the device; shapes as in :class:`mace_stream.bridge.Session`."""
        self.indptr = self._upload(indptr)
        self.sender = self._upload(sender)
        self.receiver_atom = self._upload(receiver_atom)
        self.sender_atom = self._upload(sender_atom)
        self.species = self._upload(species)

    def pairs(self, positions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the list as :meth:`set_topology` takes it."""
        arrays = self.indptr, self.sender, self.receiver_atom, self.sender_atom, self.species
        return tuple(array.cpu().numpy() for array in arrays)

    def take_list(self, positions: np.ndarray) -> int:
        """Return the number of pairs in the list, each counted from both sides."""
        return len(self.sender)

    def evaluate(self, positions: np.ndarray, node_energy: bool, node_virial: bool) -> Evaluation:
        """Evaluate at ``positions`` [n_atoms, 3]. Synchronizes with the device at the end."""
        with self.placement.claimed(), one_order(self.deterministic):
            start = perf_counter()
            edges, edge_grad, energies, forward_s = self._differentiate(positions)
            n_senders = len(self.species)
            result = reduce_edges(edges, edge_grad, energies, n_senders, node_energy, node_virial)
            self._statistics["forward_s"] += forward_s
            self._statistics["vjp_s"] += perf_counter() - start - forward_s
            self._statistics["edges"] += len(edges.sender)
        return result

    def _differentiate(
        self, positions: np.ndarray
    ) -> tuple[Edges, torch.Tensor, torch.Tensor, float]:
        """Edges, dE/d(edge_vec), node energies, and the seconds of the forward part."""
        start = perf_counter()
        edges = self._edges(torch.from_numpy(positions).to(self.device))
        edges.vec.requires_grad_()
        interaction, energies = self.model(
            *(edges.vec, edges.indptr, edges.sender, self.species), self._ghosts
        )
        self.placement.synchronize()
        forward_s = perf_counter() - start
        with torch.autograd.set_multithreading_enabled(self._ranks is None):  # MPI in this thread
            (edge_grad,) = torch.autograd.grad(interaction, edges.vec)
        return edges, edge_grad, energies.detach(), forward_s

    def take_statistics(self) -> dict[str, float]:
        """Return seconds, edges and peak memory of the device in bytes since the last call."""
        taken = self._statistics
        self._statistics = _no_statistics()
        taken["device_peak_bytes"] = self.placement.peak_bytes()
        return taken

    def _edges(self, x: torch.Tensor) -> Edges:
        """Edge vectors in float64; edges at or beyond r_max are dropped, the order is kept."""
        vec = x.index_select(0, self.receiver_atom) - x.index_select(0, self.sender_atom)
        inside = vec.square().sum(dim=1) < self.r_max_squared
        kept = torch.nonzero(inside).squeeze(1)
        seen = torch.cumsum(inside, 0)
        indptr = torch.cat([seen.new_zeros(1), seen])[self.indptr]
        return Edges(vec[kept], indptr, self.sender[kept])

    def _upload(self, array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array, dtype=torch.int64, device=self.device)


@dataclass
class Edges:
    """Edges within r_max: vectors [n_edges, 3] in Å, row pointers and senders."""

    vec: torch.Tensor
    indptr: torch.Tensor
    sender: torch.Tensor


def reduce_edges(
    edges: Edges,
    edge_grad: torch.Tensor,
    energies: torch.Tensor,
    n_senders: int,
    node_energy: bool,
    node_virial: bool,
) -> Evaluation:
    """Sum dE/d(edge_vec) into forces and virials, and bring all to the host.

    With ``edge_vec = x[receiver] - x[sender]`` one gradient pushes its two atoms in opposite
    directions.
    """
    n_nodes = len(energies)
    vec, sender = edges.vec.detach(), edges.sender
    receiver = torch.repeat_interleave(
        torch.arange(n_nodes, device=vec.device), edges.indptr.diff()
    )
    forces = edge_grad.new_zeros(n_senders, 3)
    forces.index_add_(0, receiver, edge_grad, alpha=-1).index_add_(0, sender, edge_grad)
    per_node = {}
    if node_energy:
        per_node["node_energy"] = energies.cpu().numpy()
    if node_virial:
        products = -vec.unsqueeze(2) * edge_grad.unsqueeze(1)
        zeros = products.new_zeros(n_senders, 3, 3)
        received = zeros[:n_nodes].index_add(0, receiver, products)
        per_node["receiver_virial"] = received.cpu().numpy()
        per_node["sender_virial"] = zeros.index_add(0, sender, products).cpu().numpy()
    virial = -(vec.T @ edge_grad)
    return Evaluation(
        float(energies.sum()), forces.cpu().numpy(), virial.contiguous().cpu().numpy(), **per_node
    )


def _no_statistics() -> dict[str, float]:
    return {"forward_s": 0.0, "vjp_s": 0.0, "edges": 0, "device_peak_bytes": 0}
