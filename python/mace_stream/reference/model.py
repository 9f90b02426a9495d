"""The whole model from (spec, tensors), node by node where that is clearer than fast.

Every step is analytic in the edge vectors, so the derivative along a direction is the imaginary
part at a tiny imaginary step: exact to rounding, with nothing cancelled, and it owes nothing to
automatic differentiation. Squire and Trapp, SIAM Rev. 40, 110 (1998).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from mace_stream.couplings import ConvPlan, FeatureLayout, Irrep, spherical_harmonics
from mace_stream.reference import radial
from mace_stream.reference.conv import conv
from mace_stream.spec import LayerSpec, ModelSpec, ReadoutSpec

Tensors = Mapping[str, np.ndarray]
_STEP = 1e-100


def node_energy(
    spec: ModelSpec,
    tensors: Tensors,
    edge_vec: np.ndarray,
    indptr: np.ndarray,
    sender: np.ndarray,
    species: np.ndarray,
    head: str | None = None,
    inputs: Mapping[str, float] | None = None,
) -> np.ndarray:
    """Energy of every receiver in eV, isolated-atom energy included, ``[n_receivers]``.

    Args:
        spec: The architecture.
        tensors: The numbers of a ``.mace`` file, any float dtype.
        edge_vec: ``x[receiver] - x[sender]`` in Å, ``[n_edges, 3]``, real or complex.
        indptr: Edges of receiver i are ``indptr[i]:indptr[i + 1]``.
        sender: Node of every edge's sender.
        species: Index into ``spec.elements`` of every node.
        head: Which head; the first one if left out.
        inputs: Value of every input that the model takes.
    """
    tensors = {name: _exact(array) for name, array in tensors.items()}
    h = spec.heads.index(head) if head is not None else 0
    receiver = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    numbers = np.array(spec.elements)[species]
    r = np.sqrt((edge_vec**2).sum(axis=1))
    unit = edge_vec / r[:, None]
    attrs = np.stack(spherical_harmonics(*unit.T, spec.l_max), axis=1)
    basis, cutoff = radial.features(spec, tensors, r, numbers[sender], numbers[receiver])
    feats = (basis * cutoff, np.ones_like(cutoff)) if spec.apply_cutoff else (basis, cutoff)

    energy = np.zeros(len(indptr) - 1, edge_vec.dtype)
    if spec.pair_repulsion == "zbl":
        pair = radial.zbl(spec, tensors, r, numbers[sender], numbers[receiver])
        np.add.at(energy, receiver, pair)

    embedding = _embedding(spec, tensors, inputs or {})
    nodes = embedding[species][:, None, :]
    per_layer = []
    for t, layer in enumerate(spec.layers):
        mine = _under(tensors, f"layers.{t}.")
        nodes = _layer(spec, layer, mine, nodes, attrs, feats, (indptr, sender, receiver, species))
        per_layer.append(nodes)
    for index, readout in enumerate(spec.readouts):
        mine = _under(tensors, f"readouts.{index}.")
        energy = energy + _readout(spec, readout, mine, per_layer[readout.layer], h)
    energy = tensors["scale"][h] * energy + tensors["shift"][h]
    isolated = tensors["atomic_energies"][h]
    if spec.embedding_readout:
        isolated = isolated + embedding @ tensors["embedding.readout"][:, h] / sqrt(
            embedding.shape[1]
        )
    return energy + isolated[species[: len(energy)]]


def directional_derivative(
    spec: ModelSpec,
    tensors: Tensors,
    edge_vec: np.ndarray,
    indptr: np.ndarray,
    sender: np.ndarray,
    species: np.ndarray,
    direction: np.ndarray,
    head: str | None = None,
    inputs: Mapping[str, float] | None = None,
) -> float:
    """Derivative of the total energy along ``direction`` [n_edges, 3], in eV/Å."""
    stepped = edge_vec + 1j * _STEP * direction
    energy = node_energy(spec, tensors, stepped, indptr, sender, species, head, inputs)
    return float(energy.sum().imag / _STEP)


def edge_gradient(
    spec: ModelSpec,
    tensors: Tensors,
    edge_vec: np.ndarray,
    indptr: np.ndarray,
    sender: np.ndarray,
    species: np.ndarray,
    head: str | None = None,
    inputs: Mapping[str, float] | None = None,
) -> np.ndarray:
    """dE/d(edge_vec) in eV/Å, ``[n_edges, 3]``; one evaluation per component."""
    gradient = np.empty(edge_vec.shape)
    for index in np.ndindex(*edge_vec.shape):
        direction = np.zeros(edge_vec.shape)
        direction[index] = 1.0
        gradient[index] = directional_derivative(
            spec, tensors, edge_vec, indptr, sender, species, direction, head, inputs
        )
    return gradient


def _exact(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)


def _under(tensors: Tensors, prefix: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_ACTIVATIONS = {"silu": _silu, "tanh": np.tanh, "sigmoid": _sigmoid, "none": lambda x: x}


def _embedding(spec: ModelSpec, tensors: Tensors, inputs: Mapping[str, float]) -> np.ndarray:
    """Node features of every element before the first layer, [Z, C]."""
    table = tensors["node_embedding.weight"] / sqrt(len(spec.elements))
    if not spec.inputs:
        return table
    rows = []
    for item in spec.inputs:
        mine = _under(tensors, f"embedding.{item.name}.")
        value = inputs[item.name]
        if item.kind == "categorical":
            rows.append(mine["table"][round(value) + item.offset])
        else:
            hidden = _silu(value * mine["0"][0] + mine.get("0.bias", 0.0))
            rows.append(hidden @ mine["1"] + mine.get("1.bias", 0.0))
    return table + _silu(np.concatenate(rows) @ tensors["embedding.project"])


def _layer(spec, layer, tensors, nodes, attrs, feats, graph):  # noqa: ANN001, ANN202
    """Node features [n_nodes, dim, C] of the next layer. The blocks differ in a few places."""
    indptr, sender, _, species = graph
    layout_in, layout_up, layout_message, layout_out = (
        FeatureLayout.parse(text)
        for text in (layer.irreps_in, layer.irreps_up, layer.irreps_message, layer.irreps_out)
    )
    up = _linear(layout_in, layout_up, _under(tensors, "linear_up."), nodes)
    plan = _plan(spec, layer, tensors)
    weights, density = _radial_part(layer, tensors, feats, graph)
    weights = weights.reshape(len(attrs), plan.n_paths, -1)
    convolved = conv(up, attrs, weights, indptr, sender, plan)

    skip = _under(tensors, "skip.")
    if layer.block == "NL":
        blocks = _mix_paths(plan, tensors, "linear_1.", convolved)
        norm = tensors["alpha"] + tensors["beta"] * density
        blocks = {ir: block / norm[:, None, None] for ir, block in blocks.items()}
        message = _gated(layer, layout_message, layout_up, tensors, blocks, up)
    else:
        message = _joined(layout_message, _mix_paths(plan, tensors, "linear.", convolved))
        norm = 1 + density if layer.block in ("D", "DR") else tensors["avg_num_neighbors"]
        message = message / np.reshape(norm, (-1, 1, 1))
    if layer.block in ("R", "D"):
        message = _element_linear(layout_message, layout_message, skip, message, species)
    basis = np.stack(
        [
            _contract(layer, layout_out, tensors, node, species[index])
            for index, node in enumerate(message)
        ]
    )
    out = _linear(layout_out, layout_out, _under(tensors, "product.linear."), basis)
    if layer.block == "NL" and layer.use_sc:
        out = out + _linear(layout_in, layout_out, skip, nodes[: len(out)])
    elif layer.block in ("RR", "DR") and layer.use_sc:
        out = out + _element_linear(layout_in, layout_out, skip, nodes, species)
    return out


def _radial_part(layer, tensors, feats, graph):  # noqa: ANN001, ANN202
    """Path weights of every edge and the density of every receiver."""
    _, sender, receiver, species = graph
    basis, cutoff = feats
    if layer.block == "NL":
        tables = (tensors[f"{end}_embedding"] for end in ("source", "target"))
        source, target = (table / sqrt(len(table)) for table in tables)
        x = np.concatenate([basis, source[species[sender]], target[species[receiver]]], axis=1)
        weights = radial.normalized_network(tensors, "radial", x)
        g = radial.normalized_network(tensors, "density", x)
    else:
        weights = _radial_network(layer, tensors, basis)
        g = basis @ tensors["density"] / sqrt(basis.shape[1]) if "density" in tensors else None
    density = np.zeros(len(graph[0]) - 1, basis.dtype)
    if g is not None:
        np.add.at(density, receiver, (np.tanh(g**2) * cutoff)[:, 0])
    return weights * cutoff, density


def _gated(layer, layout, layout_up, tensors, blocks, up):  # noqa: ANN001, ANN202
    """The residual connection, the gate, and the linear layer behind it."""
    for ir, weight in _under(tensors, "residual.").items():
        rows = layout_up.rows(Irrep.parse(ir))
        blocks[ir] = blocks[ir] + up[: len(blocks[ir]), rows] @ weight / sqrt(len(weight))
    first, *others = [str(irrep) for irrep in layout.irreps]
    scalars, *gates = np.split(blocks[first], len(layout.irreps), axis=2)
    gate = layer.gate
    out = {first: gate.activation_scale * _ACTIVATIONS[gate.activation](scalars)}
    for ir, inner in zip(others, gates, strict=True):
        factors = gate.gate_activation_scale * _ACTIVATIONS[gate.gate_activation](inner)
        out[ir] = blocks[ir] * factors
    return _linear(layout, layout, _under(tensors, "linear_2."), _joined(layout, out))


def _plan(spec: ModelSpec, layer: LayerSpec, tensors: Tensors) -> ConvPlan:
    w3j = {
        (path.ir_in, path.l_edge, path.ir_out): tensors[
            f"w3j.{path.ir_in}.{path.l_edge}.{path.ir_out}"
        ]
        for path in layer.paths
    }
    return ConvPlan.build(layer.irreps_up, spec.l_max, layer.paths, w3j)


def _radial_network(layer: LayerSpec, tensors: Tensors, x: np.ndarray) -> np.ndarray:
    n_layers = len(layer.radial_widths) - 1
    for k in range(n_layers):
        x = x @ tensors[f"radial.{k}"] / sqrt(x.shape[1])
        if k < n_layers - 1:
            x = layer.radial_activation_scale * _ACTIVATIONS[layer.radial_activation](x)
    return x


def _linear(
    layout_in: FeatureLayout, layout_out: FeatureLayout, weights: Tensors, x: np.ndarray
) -> np.ndarray:
    out = np.zeros((len(x), layout_out.dim, layout_out.channels), x.dtype)
    for name, weight in weights.items():
        irrep = Irrep.parse(name)
        out[:, layout_out.rows(irrep)] = x[:, layout_in.rows(irrep)] @ weight / sqrt(len(weight))
    return out


def _element_linear(layout_in, layout_out, weights, x, species):  # noqa: ANN001, ANN202
    out = np.zeros((len(x), layout_out.dim, layout_out.channels), x.dtype)
    for name, weight in weights.items():
        irrep = Irrep.parse(name)
        scale = sqrt(weight.shape[0] * weight.shape[1])
        for node in range(len(x)):
            rows = x[node, layout_in.rows(irrep)]
            out[node, layout_out.rows(irrep)] = rows @ weight[:, species[node]] / scale
    return out


def _mix_paths(
    plan: ConvPlan, tensors: Tensors, name: str, message: np.ndarray
) -> dict[str, np.ndarray]:
    """Linear layer after the convolution; its weight stacks the channels of path after path."""
    out = {}
    channels = message.shape[2]
    for block in plan.outputs:
        weight = tensors[f"{name}{block.irrep}"]
        ending_here = [p for p in plan.paths if p.rows_out.stop == block.rows.stop]
        out[str(block.irrep)] = sum(
            message[:, path.rows_out] @ weight[k * channels : (k + 1) * channels]
            for k, path in enumerate(ending_here)
        ) / sqrt(len(weight))
    return out


def _joined(layout: FeatureLayout, blocks: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([blocks[str(irrep)] for irrep in layout.irreps], axis=1)


def _contract(layer, layout_out, tensors, node, species):  # noqa: ANN001, ANN202
    """Symmetric contraction of one node's message [dim, C], coupling by coupling."""
    out = np.zeros((layout_out.dim, layout_out.channels), node.dtype)
    for irrep in layout_out.irreps:
        rows = out[layout_out.rows(irrep)]
        for nu in range(1, layer.correlation + 1):
            prefix = f"product.{irrep}."
            indices, values = tensors[f"{prefix}U.{nu}.indices"], tensors[f"{prefix}U.{nu}.values"]
            weight = tensors[f"{prefix}weight.{nu}"]
            weight = weight[species if len(weight) > 1 else 0]
            for entry, value in zip(indices, values, strict=True):
                rows[entry[0]] += value * weight[entry[-1]] * np.prod(node[entry[1:-1]], axis=0)
    return out


def _readout(
    spec: ModelSpec, readout: ReadoutSpec, tensors: Tensors, nodes: np.ndarray, head: int
) -> np.ndarray:
    layout = FeatureLayout.parse(spec.layers[readout.layer].irreps_out)
    scalars = nodes[:, layout.rows(Irrep(0, 1)).start]
    if readout.kind == "linear":
        return scalars @ tensors["linear"][:, head] / sqrt(layout.channels)
    hidden = scalars @ tensors["linear_1"] / sqrt(layout.channels)
    hidden = readout.activation_scale * _ACTIVATIONS[readout.activation](hidden)
    kept = np.zeros_like(hidden)
    mine = slice(head * readout.hidden, (head + 1) * readout.hidden)
    kept[:, mine] = hidden[:, mine]
    fan_in = spec.n_heads_source * readout.hidden
    return kept @ tensors["linear_2"][:, head] / sqrt(fan_in)
