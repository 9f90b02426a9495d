"""Block NL of a source model: networks with biases, the gate, and the embedding of inputs."""

from __future__ import annotations

import numpy as np

from mace_stream.convert import classes
from mace_stream.convert.irreps import read_activation, read_linear, simplified
from mace_stream.convert.ledger import Node
from mace_stream.spec import INPUT_DEFAULTS, LAYER_NORM_EPS, GateSpec, InputSpec
from mace_stream.tensors import irreps_blocks

Tensors = dict[str, np.ndarray]

_SIGMOIDS = {
    "torch.nn.functional.sigmoid": "sigmoid",
    "torch._VariableFunctionsClass.sigmoid": "sigmoid",
    "torch.sigmoid": "sigmoid",
}


def read_gated(node: Node, block: str) -> tuple[dict, Tensors]:
    """What block NL has beside the convolution, as for the other blocks."""
    del block
    node.derived("avg_num_neighbors")  # the base class keeps it; this block does not use it
    widths, tensors = _read_mlp(node.child("conv_tp_weights", classes.RADIAL_MLP), "radial")
    density_widths, density = _read_mlp(node.child("density_fn", classes.RADIAL_MLP), "density")
    tensors |= density | {name: node.tensor(name) for name in ("alpha", "beta")}
    for end in ("source", "target"):
        (weight,) = read_linear(node.child(f"{end}_embedding", classes.LINEAR)).values()
        tensors[f"{end}_embedding"] = weight
    for name, theirs in (
        ("linear_1", "linear_1"),
        ("linear_2", "linear_2"),
        ("residual", "linear_res"),
        ("skip", "skip_tp"),
    ):
        for ir, weight in read_linear(node.child(theirs, classes.LINEAR)).items():
            tensors[f"{name}.{ir}"] = weight
    message = irreps_blocks(simplified(node, node.attribute("irreps_out")))
    node.derived("irreps_nonlin")
    of_block = {
        "radial_widths": widths,
        "radial_activation": "silu",
        "radial_activation_scale": 1.0,
        "gate": _read_gate(node.child("equivariant_nonlin", *classes.GATES), message),
        "density_widths": density_widths,
    }
    return of_block, tensors


def _read_mlp(node: Node, name: str) -> tuple[tuple[int, ...], Tensors]:
    """Linear layers with biases, each but the last followed by a layer norm and silu."""
    node.derived("hs")
    net = node.child("net", classes.SEQUENTIAL)
    keys = list(net.module._modules)
    tensors: Tensors = {}
    widths: list[int] = []
    for k, first in enumerate(range(0, len(keys), 3)):
        dense = net.child(keys[first], classes.DENSE)
        dense.derived("in_features", "out_features")
        weight = dense.tensor("weight").T
        tensors[f"{name}.{k}"], tensors[f"{name}.{k}.bias"] = weight, dense.tensor("bias")
        widths += weight.shape if k == 0 else weight.shape[1:]
        if first + 1 == len(keys) and k > 0:
            return tuple(widths), tensors
        if first + 1 == len(keys):
            break
        norm = net.child(keys[first + 1], classes.LAYER_NORM)
        norm.require("eps", LAYER_NORM_EPS, LAYER_NORM_EPS, "another constant in a layer norm")
        norm.derived("normalized_shape", "elementwise_affine")
        for what in ("weight", "bias"):
            tensors[f"{name}.{k}.norm.{what}"] = norm.tensor(what)
        net.child(keys[first + 2], classes.SILU).derived("inplace")
    raise node.error("expected a hidden layer, and a linear one at the end")


def _read_gate(node: Node, message: dict[str, int]) -> GateSpec:
    """Either mace-torch's gate or e3nn's, which older files hold."""
    channels = set(message.values())
    if next(iter(message)) != "0e" or len(channels) != 1:
        raise node.error(f"expected scalars first and equal multiplicities, got {message}")
    wanted = {
        "irreps_scalars": {"0e": message["0e"]},
        "irreps_gates": {"0e": message["0e"] * (len(message) - 1)},
        "irreps_gated": {ir: mul for ir, mul in message.items() if ir != "0e"},
    }
    for name, irreps in wanted.items():
        value = node.attribute(name, None)
        if value is not None and irreps_blocks(simplified(node, value)) != irreps:
            raise node.error(f"{name}: expected {irreps}, got {value}")
    if node.kind == classes.GATES[1]:
        return _read_e3nn_gate(node)
    node.require("_layout_is_ir_mul", False, False, "another order of components")
    node.derived(
        "_irreps_in", "_irreps_out", "_s_start", "_s_len", "_g_start", "_g_len", "_gated_info"
    )
    scalar, gate = (
        (_activation_name(node, name), float(node.attribute(scale)))
        for name, scale in (("_act_scalar", "_scalar_cst"), ("_act_gate", "_gate_cst"))
    )
    return GateSpec(*scalar, *gate)


def _read_e3nn_gate(node: Node) -> GateSpec:
    node.derived("_irreps_in", "_irreps_out")
    node.code("sc", "mul")
    kinds = []
    for name in ("act_scalars", "act_gates"):
        activation = node.child(name, classes.ACTIVATION)
        activation.derived("irreps_in", "irreps_out")
        acts = {read_activation(act, _SIGMOIDS) for act in activation.children("acts")}
        if len(acts) != 1:
            raise activation.error("expected one activation for all scalars")
        kinds += acts.pop()
    return GateSpec(*kinds)


def _activation_name(node: Node, name: str) -> str:
    function = node.attribute(name)
    known = {"silu": "silu", "sigmoid": "sigmoid", "tanh": "tanh"}
    found = known.get(getattr(function, "__name__", ""))
    if found is None:
        raise node.error(f"{name}: expected one of {sorted(known)}, got {function!r}")
    return found


def read_inputs(root: Node, n_heads: int) -> tuple[tuple[InputSpec, ...], bool, Tensors]:
    """Embedding of charge and spin: specification, whether it is read out, raw tensors."""
    if not root.has("joint_embedding"):
        root.derived_if_none("embedding_specs")
        return (), False, {}
    root.derived("embedding_specs")
    node = root.child("joint_embedding", classes.JOINT_EMBEDDING)
    node.derived("base_dim", "out_dim")
    embedders = node.child("embedders", classes.MODULE_DICT)
    inputs, tensors = [], {}
    for name, told in node.attribute("specs").items():
        if name not in INPUT_DEFAULTS or told.get("per") != "graph":
            raise node.error(
                f"input {name} per {told.get('per')}: only {' and '.join(INPUT_DEFAULTS)} of "
                "the whole system can be given in LAMMPS"
            )
        item, of_input = _read_embedder(embedders, name, told)
        inputs.append(item)
        tensors |= {f"embedding.{name}.{key}": array for key, array in of_input.items()}
    project = node.child("project", classes.SEQUENTIAL)
    dense = project.child("0", classes.DENSE)
    dense.derived("in_features", "out_features")
    project.child("1", classes.SILU).derived("inplace")
    tensors["embedding.project"] = dense.tensor("weight").T
    if not root.has("embedding_readout"):
        return tuple(inputs), False, tensors
    readout = root.child("embedding_readout", "mace.modules.blocks.LinearReadoutBlock")
    (weight,) = read_linear(readout.child("linear", classes.LINEAR)).values()
    if weight.shape[1] != n_heads:
        raise readout.error(f"expected {n_heads} outputs, got {weight.shape[1]}")
    return tuple(inputs), True, tensors | {"embedding.readout": weight}


def _read_embedder(embedders: Node, name: str, told: dict) -> tuple[InputSpec, Tensors]:
    width, kind = int(told["emb_dim"]), str(told["type"])
    if kind == "categorical":
        node = embedders.child(name, classes.EMBEDDING_TABLE)
        node.require("max_norm", None, None, "embeddings of limited norm")
        node.derived("num_embeddings", "embedding_dim", "padding_idx", "norm_type")
        node.derived("scale_grad_by_freq", "sparse")
        table = node.tensor("weight")
        offset = int(told.get("offset", 0))
        return InputSpec(name, kind, width, len(table), offset, False), {"table": table}
    node = embedders.child(name, classes.SEQUENTIAL)
    has_bias = bool(told.get("use_bias", True))
    tensors: Tensors = {}
    for k, key in enumerate(("0", "2")):
        dense = node.child(key, classes.DENSE)
        dense.derived("in_features", "out_features")
        tensors[str(k)] = dense.tensor("weight").T
        if has_bias:
            tensors[f"{k}.bias"] = dense.tensor("bias")
    node.child("1", classes.SILU).derived("inplace")
    return InputSpec(name, kind, width, 0, 0, has_bias), tensors
