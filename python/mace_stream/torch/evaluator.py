"""Positions in, energy, forces and virial out: the torch side of a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from mace_stream.evaluation import Evaluation
from mace_stream.spec import ModelSpec
from mace_stream.torch.model import MACE

DTYPES = {"double": torch.float64, "single": torch.float32}


class TorchEvaluator:
    """A model on a device, with the topology of the current neighbor list.

    Args:
        spec: Architecture.
        tensors: Parameters, as stored in the file.
        head: Name of the head.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; ``auto`` is CUDA where torch sees one.
        precision: ``auto``, ``double`` or ``single``; ``auto`` is double on CPU, single on CUDA.
        conv: Mode of the convolutions.
        threads: Number of threads on CPU.

    Raises:
        ValueError: The device is not there.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, np.ndarray],
        *,
        head: str,
        device: str,
        precision: str,
        conv: str,
        threads: int,
    ) -> None:
        self.device = choose_device(device)
        self.threads = threads
        on_gpu = self.device.type == "cuda"
        self.precision_reason = (
            "asked for" if precision != "auto" else f"default on {self.device.type}"
        )
        self.precision = precision if precision != "auto" else ("single" if on_gpu else "double")
        self.device_name = torch.cuda.get_device_name(self.device) if on_gpu else "cpu"
        self.backend_version = f"torch {torch.__version__}"
        self.r_max_squared = spec.r_max**2
        self.model = MACE.from_spec(
            spec,
            tensors,
            head=head,
            dtype=DTYPES[self.precision],
            device=self.device,
            conv_mode=conv,
        )
        self._statistics = _no_statistics()

    def conv_modes(self) -> list[tuple[int, str, str]]:
        """Return layer, mode and reason for every convolution."""
        return self.model.conv_modes()

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

    def evaluate(self, positions: np.ndarray, node_energy: bool, node_virial: bool) -> Evaluation:
        """Evaluate at ``positions`` [n_atoms, 3]. Synchronizes with the device at the end."""
        with borrowed_threads(self.threads):
            start = perf_counter()
            edges, edge_grad, energies, forward_s = self._differentiate(positions)
            result = reduce_edges(edges, edge_grad, energies, node_energy, node_virial)
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
        interaction, energies = self.model(edges.vec, edges.indptr, edges.sender, self.species)
        self._synchronize()
        forward_s = perf_counter() - start
        (edge_grad,) = torch.autograd.grad(interaction, edges.vec)
        return edges, edge_grad, energies.detach(), forward_s

    def take_statistics(self) -> dict[str, float]:
        """Return seconds, edges and peak memory of the device in bytes since the last call."""
        taken = self._statistics
        self._statistics = _no_statistics()
        if self.device.type == "cuda":
            taken["device_peak_bytes"] = torch.cuda.max_memory_allocated(self.device)
        return taken

    def _edges(self, x: torch.Tensor) -> Edges:
        """Edge vectors in float64; edges at or beyond r_max are dropped, the order is kept."""
        vec = x.index_select(0, self.receiver_atom) - x.index_select(0, self.sender_atom)
        inside = vec.square().sum(dim=1) < self.r_max_squared
        kept = torch.nonzero(inside).squeeze(1)
        seen = torch.cumsum(inside, 0)
        indptr = torch.cat([seen.new_zeros(1), seen])[self.indptr]
        return Edges(vec[kept], indptr, self.sender[kept])

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

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
    forces = edge_grad.new_zeros(n_nodes, 3)
    forces.index_add_(0, receiver, edge_grad, alpha=-1).index_add_(0, sender, edge_grad)
    per_node = {}
    if node_energy:
        per_node["node_energy"] = energies.cpu().numpy()
    if node_virial:
        products = -vec.unsqueeze(2) * edge_grad.unsqueeze(1)
        zeros = products.new_zeros(n_nodes, 3, 3)
        per_node["receiver_virial"] = zeros.index_add(0, receiver, products).cpu().numpy()
        per_node["sender_virial"] = zeros.index_add(0, sender, products).cpu().numpy()
    virial = -(vec.T @ edge_grad)
    return Evaluation(
        float(energies.sum()), forces.cpu().numpy(), virial.contiguous().cpu().numpy(), **per_node
    )


def choose_device(name: str) -> torch.device:
    """Return the device for a value of the keyword ``device``.

    Raises:
        ValueError: A CUDA device is asked for that torch does not see.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(
            f"device {name}: torch {torch.__version__} sees {count} CUDA devices; use device cpu, "
            "or check the driver and that torch is a CUDA build: mace-stream doctor"
        )
    return device


@contextmanager
def borrowed_threads(count: int) -> Iterator[None]:
    """Set torch's number of threads, which a host program shares, and put the old one back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _no_statistics() -> dict[str, float]:
    return {"forward_s": 0.0, "vjp_s": 0.0, "edges": 0, "device_peak_bytes": 0}
