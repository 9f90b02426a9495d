"""MACE as pure functions of a parameter tree: site energies from edge vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from mace_stream.couplings import resolve_mode
from mace_stream.embedding import embedding_energy, input_values, node_embedding
from mace_stream.jax.folding import Parameters, Tree
from mace_stream.jax.geometry import Graph, lengths_and_harmonics, make_graph
from mace_stream.jax.interaction import Edges, FirstInteraction, GhostExchange, Interaction
from mace_stream.jax.linear import SpeciesGroups
from mace_stream.jax.precision import double_precision
from mace_stream.jax.product import Product
from mace_stream.jax.radial import EdgeFeatures, RadialEmbedding, ZBLRepulsion
from mace_stream.jax.readout import Readout
from mace_stream.spec import ModelSpec

ARCHITECTURES = ("MACE", "ScaleShiftMACE")
NODES_PER_BLOCK = {"cpu": 64}
"""Nodes of one element that the product basis works on together, so that monomials stay in cache;
:data:`NODES_PER_BLOCK_ON_GPU` on other platforms."""
NODES_PER_BLOCK_ON_GPU = 1024


class MACE:
    """A MACE potential for one head: a pure function of its parameters and of one structure.

    ``model(model.parameters, edge_vec, indptr, sender, species)`` may be jitted, differentiated
    with respect to parameters and edge vectors, and mapped over structures of equal sizes.
    Constants of the file are folded in float64 and then cast to ``dtype``. Energies are summed in
    float64 and the isolated-atom energies are added at the end.

    Attributes:
        parameters: Nested dicts of arrays.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, np.ndarray],
        *,
        head: str | None = None,
        dtype: str = "float64",
        elements: Sequence[int] | None = None,
        conv_mode: str = "auto",
        inputs: Mapping[str, float] | None = None,
        platform: str | None = None,
    ) -> None:
        self.spec = spec
        self.r_max = spec.r_max
        self.elements = spec.elements
        self.dtype = np.dtype(dtype)
        self.conv_mode = conv_mode
        self.head = _choose_head(spec, head)
        self.kept = _kept_species(spec, elements)
        self.block = NODES_PER_BLOCK.get(platform or jax.default_backend(), NODES_PER_BLOCK_ON_GPU)
        _check_supported(spec)
        self.inputs = input_values(spec, inputs)
        with double_precision():
            tree = self._build(tensors, spec.heads.index(self.head))
            self.parameters: Tree = jax.tree.map(jnp.asarray, tree)

    def _build(self, tensors: Mapping[str, np.ndarray], head: int) -> Tree:
        spec = self.spec
        params, exact = Parameters(tensors, self.dtype), Parameters(tensors, np.float64)
        embedding = node_embedding(spec, tensors, self.inputs)
        self.radial = RadialEmbedding(spec, exact)
        self.pair_repulsion = ZBLRepulsion(spec, exact) if spec.pair_repulsion == "zbl" else None
        self.interactions, self.products = [], []
        for t, layer in enumerate(spec.layers):
            layer_params = params.under(f"layers.{t}")
            args = (spec, layer, layer_params, self.conv_mode)
            first = t == 0
            self.interactions.append(
                FirstInteraction(*args, embedding) if first else Interaction(*args)
            )
            self.products.append(Product(layer, layer_params, self.kept))
        self.readouts = [Readout(spec, r, head, params) for r in spec.readouts]
        energies = exact.array("atomic_energies")[head]
        self.shift = float(exact.array("shift")[head])
        self.scale = float(exact.array("scale")[head])
        return {
            "interactions": [part.parameters for part in self.interactions],
            "products": [part.parameters for part in self.products],
            "readouts": [part.parameters for part in self.readouts],
            "atomic_energies": energies + embedding_energy(spec, tensors, embedding, head),
        }

    @classmethod
    def from_spec(
        cls,
        spec: ModelSpec,
        tensors: Mapping[str, np.ndarray],
        head: str | None = None,
        dtype: str = "float64",
        elements: Sequence[int] | None = None,
        conv_mode: str = "auto",
        inputs: Mapping[str, float] | None = None,
        platform: str | None = None,
    ) -> MACE:
        """Build a model from what a ``.mace`` file holds.

        Args:
            spec: The architecture.
            tensors: The numbers, named and shaped as in :mod:`mace_stream.spec`. Within a function
                that JAX differentiates or compiles, its own arguments may stand among them: those
                that :func:`mace_stream.tensors.trainable_names` lists.
            head: Which head; may be left out where there is one.
            dtype: ``float64`` or ``float32``: precision of everything but the sums of energies.
            elements: Atomic numbers that may occur; all of the model if left out. Memory and the
                padding of the product basis grow with their number. Where others occur, all is NaN.
            conv_mode: Mode of the convolutions, see :func:`mace_stream.jax.conv`.
            inputs: Numbers of the whole system by name, such as ``total_charge``, for models that
                take them; :data:`mace_stream.spec.INPUT_DEFAULTS` where left out.
            platform: Name in JAX of the platform that the model is made for; that of the default
                device if left out. It decides about sizes of blocks, not about places.

        Raises:
            ValueError: The model needs something this version does not support, a tensor is
                missing, or the head, an element or an input is unknown.
        """
        return cls(
            *(spec, tensors),
            head=head,
            dtype=dtype,
            elements=elements,
            conv_mode=conv_mode,
            inputs=inputs,
            platform=platform,
        )

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        head: str | None = None,
        dtype: str = "float64",
        elements: Sequence[int] | None = None,
        inputs: Mapping[str, float] | None = None,
    ) -> MACE:
        """Build a model from a ``.mace`` file. Arguments and errors as :meth:`from_spec`.

        Raises:
            ModelFileError: The file is missing or is not what it should be.
        """
        from mace_stream import io

        spec, tensors = io.load(path)
        return cls.from_spec(spec, tensors, head, dtype, elements, inputs=inputs)

    def make_deterministic(self) -> None:
        """Let :func:`mace_stream.jax.conv` give the same bits every time."""
        for interaction in self.interactions:
            interaction.deterministic = True

    def conv_modes(self) -> list[tuple[int, str, str]]:
        """Layer, mode and reason of every convolution, for the log."""
        plans = [interaction.plan for interaction in self.interactions]
        return [(t, *resolve_mode(self.conv_mode, plan)) for t, plan in enumerate(plans)]

    def fold(self, parameters: Tree) -> Tree:
        """Return parameters with the product basis' coefficients in place of its weights.

        They give the same numbers and save this work in every call; they are no place to start a
        training from.
        """
        pairs = zip(self.products, parameters["products"], strict=True)
        return {**parameters, "products": [product.fold(tree) for product, tree in pairs]}

    def __call__(
        self,
        parameters: Tree,
        edge_vec: ArrayLike,
        indptr: ArrayLike,
        sender: ArrayLike,
        species: ArrayLike,
        halo: GhostExchange | None = None,
    ) -> tuple[Array, Array]:
        """Evaluate one structure. No edges and no nodes are valid.

        Edges of length ``r_max`` or more contribute exactly nothing, and neither do nodes of
        species -1: both may fill arrays up, see :func:`mace_stream.jax.pad_graph`. The result does
        not depend on the order of edges within a row, up to rounding.

        Args:
            parameters: As :attr:`parameters`, or as :meth:`fold` returns them.
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
        arrays = [jnp.asarray(x) for x in (edge_vec, indptr, sender, species)]
        _check_graph(*arrays)
        with jax.default_matmul_precision("highest"):  # the default on GPUs has three digits
            return self._evaluate(parameters, make_graph(*arrays), halo)

    def _evaluate(
        self, parameters: Tree, graph: Graph, halo: GhostExchange | None
    ) -> tuple[Array, Array]:
        local_species = graph.species[: graph.n_receivers]
        groups = SpeciesGroups.build(local_species, self.kept, self.block)
        edges, pair_energy = self._edges(graph)
        energy = jnp.full(graph.n_receivers, self.shift, jnp.float64)
        if pair_energy is not None:
            energy = energy.at[graph.receiver].add(self.scale * pair_energy)
        per_layer = self._layers(parameters, edges, groups, halo)
        for readout, tree in zip(self.readouts, parameters["readouts"], strict=True):
            energy = energy + readout(tree, per_layer[readout.layer])
        energy = jnp.where(self._all_kept(graph), energy, jnp.nan)
        is_node = graph.is_node[: graph.n_receivers]
        energy = jnp.where(is_node, energy, 0.0)
        isolated = jnp.where(is_node, parameters["atomic_energies"][local_species], 0.0)
        return jnp.sum(energy), energy + isolated

    def _layers(
        self, parameters: Tree, edges: Edges, groups: SpeciesGroups, halo: GhostExchange | None
    ) -> list[Array]:
        """Node features [n_receivers, dim, C] after every layer."""
        feats, per_layer = None, []
        for t, (interaction, product) in enumerate(
            zip(self.interactions, self.products, strict=True)
        ):
            tree = parameters["interactions"][t]
            message, skip = interaction(tree, feats, edges, groups, halo)
            feats = product(parameters["products"][t], message, skip, groups)
            per_layer.append(feats)
        return per_layer

    def _all_kept(self, graph: Graph) -> Array:
        """Whether every node is of an element that may occur; others would spoil its neighbors."""
        is_kept = jnp.asarray(np.isin(np.arange(len(self.elements)), self.kept))
        return jnp.all(is_kept[graph.species] | ~graph.is_node)

    def _edges(self, graph: Graph) -> tuple[Edges, Array | None]:
        """Angles and radial features in the model's precision, and the pair repulsion.

        Functions of the distance are evaluated in float64: they are steep, and few.
        """
        spec = self.spec
        length, attrs = lengths_and_harmonics(graph.edge_vec, spec.r_max, spec.l_max, self.dtype)
        ends = graph.species[graph.sender], graph.species[graph.receiver]
        basis, cutoff = self.radial(length, *ends)
        cutoff = None if cutoff is None else cutoff.astype(self.dtype)
        feats = EdgeFeatures(basis.astype(self.dtype), cutoff, *ends)
        pair = None if self.pair_repulsion is None else self.pair_repulsion(length, *ends)
        return Edges(graph, attrs, feats), pair


def _choose_head(spec: ModelSpec, head: str | None) -> str:
    if head is None and len(spec.heads) == 1:
        return spec.heads[0]
    if head not in spec.heads:
        got = "none was chosen" if head is None else f"got {head!r}"
        raise ValueError(f"head: the model has {', '.join(spec.heads)}; {got}; name one of them")
    return head


def _kept_species(spec: ModelSpec, elements: Sequence[int] | None) -> tuple[int, ...]:
    """Indices of the elements that may occur, in the model's order."""
    for number in elements or ():
        if number not in spec.elements:
            raise ValueError(f"elements: the model knows {spec.elements}, not {number}")
    wanted = set(elements or spec.elements)
    return tuple(k for k, number in enumerate(spec.elements) if number in wanted)


def _check_supported(spec: ModelSpec) -> None:
    if spec.architecture not in ARCHITECTURES:
        raise ValueError(
            f"architecture: expected one of {', '.join(ARCHITECTURES)}, got {spec.architecture!r};"
            " this version does not support it"
        )
    if spec.pair_repulsion not in ("none", "zbl"):
        raise ValueError(f"pair repulsion: expected none or zbl, got {spec.pair_repulsion!r}")


def _check_graph(edge_vec: Array, indptr: Array, sender: Array, species: Array) -> None:
    shapes = {
        "edge_vec": (edge_vec, (sender.size, 3)),
        "indptr": (indptr, (max(1, indptr.size),)),
        "sender": (sender, (sender.size,)),
        "species": (species, (species.size,)),
    }
    for name, (array, shape) in shapes.items():
        if array.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
    if edge_vec.dtype != jnp.float64:
        raise ValueError(
            f"edge_vec: expected float64, got {edge_vec.dtype}; call, differentiate and compile "
            "models within: with mace_stream.jax.double_precision():"
        )
    for name, array in (("indptr", indptr), ("sender", sender), ("species", species)):
        if array.dtype.kind != "i":
            raise ValueError(f"{name}: expected integers, got {array.dtype}")
    if species.size < indptr.size - 1:
        raise ValueError(
            f"species: expected one per receiver ({indptr.size - 1}), got {species.size}"
        )
