"""MACE as a torch module: site energies from edge vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mace_stream.embedding import embedding_energy, input_values, node_embedding
from mace_stream.spec import ModelSpec
from mace_stream.torch.conv import resolve_mode
from mace_stream.torch.folding import Parameters
from mace_stream.torch.geometry import Graph, lengths_and_harmonics, make_graph
from mace_stream.torch.interaction import Edges, FirstInteraction, Interaction
from mace_stream.torch.linear import SpeciesGroups
from mace_stream.torch.product import Product
from mace_stream.torch.radial import EdgeFeatures, RadialEmbedding, ZBLRepulsion
from mace_stream.torch.readout import Readout

ARCHITECTURES = ("MACE", "ScaleShiftMACE")


class GhostExchange(Protocol):
    """Brings features of ghost nodes from the ranks that own them."""

    def forward(self, features: Tensor) -> Tensor:
        """Return features of owned and ghost nodes; its gradient returns them to their owners."""


class MACE(nn.Module):
    """A MACE potential for one head, ready for inference.

    Constants of the file are folded in float64 and then cast to ``dtype``. Energies are summed in
    float64 and the isolated-atom energies are added at the end.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, np.ndarray],
        *,
        head: str | None = None,
        dtype: torch.dtype = torch.float64,
        device: str | torch.device = "cpu",
        conv_mode: str = "auto",
        inputs: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.r_max = spec.r_max
        self.elements = spec.elements
        self.dtype = dtype
        self.conv_mode = conv_mode
        self.head = _choose_head(spec, head)
        _check_supported(spec)
        params = Parameters(tensors, dtype)
        index = spec.heads.index(self.head)
        self.inputs = input_values(spec, inputs)
        embedding = node_embedding(spec, tensors, self.inputs)
        self._build_layers(params, torch.as_tensor(embedding))
        self.readouts = nn.ModuleList(Readout(spec, r, index, params) for r in spec.readouts)
        energies = params.array("atomic_energies")[index]
        energies = energies + embedding_energy(spec, tensors, embedding, index)
        self.register_buffer("atomic_energies", torch.from_numpy(energies))
        self.shift = float(params.array("shift")[index])
        self.scale = float(params.array("scale")[index])
        self.to(device)

    def _build_layers(self, params: Parameters, embedding: Tensor) -> None:
        spec = self.spec
        exact = Parameters(params.tensors, torch.float64)
        self.radial = RadialEmbedding(spec, exact)
        self.pair_repulsion = ZBLRepulsion(spec, exact) if spec.pair_repulsion == "zbl" else None
        self.interactions, self.products = nn.ModuleList(), nn.ModuleList()
        for t, layer in enumerate(spec.layers):
            layer_params = params.under(f"layers.{t}")
            if t == 0:
                first = FirstInteraction(spec, layer, layer_params, self.conv_mode, embedding)
                self.interactions.append(first)
            else:
                self.interactions.append(Interaction(spec, layer, layer_params, self.conv_mode))
            self.products.append(Product(layer, layer_params))

    @classmethod
    def from_spec(
        cls,
        spec: ModelSpec,
        tensors: Mapping[str, np.ndarray],
        head: str | None = None,
        dtype: torch.dtype = torch.float64,
        device: str | torch.device = "cpu",
        elements: Sequence[int] | None = None,
        conv_mode: str = "auto",
        inputs: Mapping[str, float] | None = None,
    ) -> MACE:
        """Build a model from what a ``.mace`` file holds.

        Args:
            spec: The architecture.
            tensors: The numbers, named and shaped as in :mod:`mace_stream.spec`. Tensors of torch
                on a CPU may stand among the arrays: energies can be differentiated by those that
                :func:`mace_stream.tensors.trainable_names` lists.
            head: Which head; may be left out where there is one.
            dtype: Precision of everything but the sums of energies.
            device: Where the model lives.
            elements: Atomic numbers expected. Their tables are folded now, others at first use.
            conv_mode: Mode of the convolutions, see :func:`mace_stream.torch.conv`.
            inputs: Numbers of the whole system by name, such as ``total_charge``, for models that
                take them; :data:`mace_stream.spec.INPUT_DEFAULTS` where left out.

        Raises:
            ValueError: The model needs something this version does not support, a tensor is
                missing, or the head, an element or an input is unknown.
        """
        model = cls(
            *(spec, tensors),
            head=head,
            dtype=dtype,
            device=device,
            conv_mode=conv_mode,
            inputs=inputs,
        )
        for number in elements or ():
            if number not in spec.elements:
                raise ValueError(f"elements: the model knows {spec.elements}, not {number}")
            for product in model.products:
                product.contraction.fold(spec.elements.index(number))
        return model

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        head: str | None = None,
        dtype: torch.dtype = torch.float64,
        device: str | torch.device = "cpu",
        elements: Sequence[int] | None = None,
        inputs: Mapping[str, float] | None = None,
    ) -> MACE:
        """Build a model from a ``.mace`` file. Arguments and errors as :meth:`from_spec`.

        Raises:
            ModelFileError: The file is missing or is not what it should be.
        """
        from mace_stream import io

        spec, tensors = io.load(path)
        return cls.from_spec(spec, tensors, head, dtype, device, elements, inputs=inputs)

    def make_deterministic(self) -> None:
        """Let :func:`mace_stream.torch.conv` give the same bits every time."""
        for interaction in self.interactions:
            interaction.deterministic = True

    def conv_modes(self) -> list[tuple[int, str, str]]:
        """Layer, mode and reason of every convolution, for the log."""
        plans = [interaction.plan for interaction in self.interactions]
        return [(t, *resolve_mode(self.conv_mode, plan)) for t, plan in enumerate(plans)]

    def forward(
        self,
        edge_vec: Tensor,
        indptr: Tensor,
        sender: Tensor,
        species: Tensor,
        halo: GhostExchange | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Evaluate one structure. No edges and no nodes are valid.

        Edges of length ``r_max`` or more contribute exactly nothing. The result does not depend on
        the order of edges within a row, up to rounding.

        Args:
            edge_vec: ``x[receiver] - x[sender]`` in Å, image applied, [n_edges, 3] float64.
            indptr: Edges of receiver i are ``indptr[i]:indptr[i + 1]``, [n_receivers + 1] int64.
            sender: Node of every edge's sender, [n_edges] int64.
            species: Index into ``elements`` of every node, ghosts after receivers, [n_nodes] int64.
            halo: Exchange of ghost features, or None where every sender is a receiver too.

        Returns:
            The interaction energy (without isolated-atom energies), a float64 scalar in eV, and
            the energy of every receiver, isolated-atom energy included, [n_receivers] float64.

        Raises:
            ValueError: An argument has the wrong shape or dtype.
        """
        _check_graph(edge_vec, indptr, sender, species)
        graph = make_graph(edge_vec, indptr, sender, species)
        local_species = species[: graph.n_receivers]
        groups = SpeciesGroups.build(local_species, len(self.elements))
        edges, pair_energy = self._edges(graph)
        energy = edge_vec.new_full((graph.n_receivers,), self.shift) + 0 * edge_vec.sum()
        if pair_energy is not None:
            energy = energy.index_add(0, graph.receiver, self.scale * pair_energy)
        feats, per_layer = None, []
        for interaction, product in zip(self.interactions, self.products, strict=True):
            message, skip = interaction(feats, edges, groups, halo)
            feats = product(message, skip, groups)
            per_layer.append(feats)
        for readout in self.readouts:
            energy = energy + readout(per_layer[readout.layer])
        return energy.sum(), energy + self.atomic_energies[local_species]

    def _edges(self, graph: Graph) -> tuple[Edges, Tensor | None]:
        """Angles and radial features in the model's precision, and the pair repulsion.

        Functions of the distance are evaluated in float64: they are steep, and few.
        """
        length, attrs = lengths_and_harmonics(graph.edge_vec, self.spec.l_max, self.dtype)
        ends = graph.species[graph.sender], graph.species[graph.receiver]
        basis, cutoff = self.radial(length, *ends)
        cutoff = None if cutoff is None else cutoff.to(self.dtype)
        feats = EdgeFeatures(basis.to(self.dtype), cutoff, *ends)
        pair = None if self.pair_repulsion is None else self.pair_repulsion(length, *ends)
        return Edges(graph, attrs, feats), pair


def _choose_head(spec: ModelSpec, head: str | None) -> str:
    if head is None and len(spec.heads) == 1:
        return spec.heads[0]
    if head not in spec.heads:
        got = "none was chosen" if head is None else f"got {head!r}"
        raise ValueError(f"head: the model has {', '.join(spec.heads)}; {got}; name one of them")
    return head


def _check_supported(spec: ModelSpec) -> None:
    if spec.architecture not in ARCHITECTURES:
        raise ValueError(
            f"architecture: expected one of {', '.join(ARCHITECTURES)}, got {spec.architecture!r};"
            " this version does not support it"
        )
    if spec.pair_repulsion not in ("none", "zbl"):
        raise ValueError(f"pair repulsion: expected none or zbl, got {spec.pair_repulsion!r}")


def _check_graph(edge_vec: Tensor, indptr: Tensor, sender: Tensor, species: Tensor) -> None:
    n_edges = len(sender)
    expected = {
        "edge_vec": (edge_vec, (n_edges, 3), torch.float64),
        "indptr": (indptr, (max(1, len(indptr)),), torch.int64),
        "sender": (sender, (n_edges,), torch.int64),
        "species": (species, (len(species),), torch.int64),
    }
    for name, (tensor, shape, dtype) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
        if tensor.dtype != dtype:
            raise ValueError(f"{name}: expected {dtype}, got {tensor.dtype}")
    if len(species) < len(indptr) - 1:
        raise ValueError(
            f"species: expected one per receiver ({len(indptr) - 1}), got {len(species)}"
        )
