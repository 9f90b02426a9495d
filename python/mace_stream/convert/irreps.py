"""e3nn modules read as plain arrays, one per irrep, with their normalisation checked."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from mace_stream.convert import classes
from mace_stream.convert.ledger import Node
from mace_stream.spec import Path
from mace_stream.tensors import irrep_dim, irreps_blocks

_COMPILED = ("_compiled_main", "_compiled_main_left_right", "_compiled_main_right")
_CODEGEN = ("__codegen__", "_optimize_einsums", "_specialized_code", "_profiling_str")
_ACTIVATIONS = {
    "torch.nn.functional.silu": "silu",
    "torch._VariableFunctionsClass.tanh": "tanh",
    "torch.tanh": "tanh",
}


def simplified(node: Node, irreps: object) -> str:
    """Irreps as text, each irrep once.

    Raises:
        ConversionError: An irrep comes in two separate blocks.
    """
    terms = [(int(mul), f"{ir.l}{'e' if ir.p == 1 else 'o'}") for mul, ir in irreps]
    merged: list[tuple[int, str]] = []
    for mul, ir in terms:
        if merged and merged[-1][1] == ir:
            mul += merged.pop()[0]  # noqa: PLW2901
        merged.append((mul, ir))
    text = "+".join(f"{mul}x{ir}" for mul, ir in merged)
    if len({ir for _, ir in merged}) < len(merged):
        raise node.error(f"irreps {text} have one irrep in two places")
    return text


def read_linear(node: Node) -> dict[str, np.ndarray]:
    """Raw weights of ``o3.Linear``, ``{ir: [fan_in, out]}``; its norm must be 1/sqrt(fan_in)."""
    for name in ("internal_weights", "shared_weights"):
        node.require(name, True, True, "weights must belong to the layer")
    node.derived("output_mask", "weight_numel", "bias_numel", *_CODEGEN)
    node.derived_empty("bias")
    node.code(*_COMPILED)
    irreps_in, irreps_out = node.attribute("irreps_in"), node.attribute("irreps_out")
    flat, blocks, norms = node.tensor("weight").reshape(-1), {}, {}
    for ins in node.attribute("instructions"):
        size = math.prod(ins.path_shape)
        ir = str(irreps_out[ins.i_out].ir)
        if str(irreps_in[ins.i_in].ir) != ir:
            raise node.error("a bias or an odd instruction")
        blocks.setdefault(ir, []).append(flat[:size].reshape(ins.path_shape))
        norms.setdefault(ir, set()).add(float(ins.path_weight))
        flat = flat[size:]
    weights = {ir: np.concatenate(parts) for ir, parts in blocks.items()}
    for ir, weight in weights.items():
        _check_norms(node, norms[ir], 1 / math.sqrt(len(weight)))
    return weights


def read_skip(node: Node) -> dict[str, np.ndarray]:
    """Raw weights of the element-dependent skip connection, ``{ir: [C_in, Z, C_out]}``."""
    _read_product_attributes(node)
    node.require("internal_weights", True, True, "weights must belong to the layer")
    node.require("shared_weights", True, True, "weights must belong to the layer")
    irreps_in, irreps_out = node.attribute("irreps_in1"), node.attribute("irreps_out")
    flat, weights = node.tensor("weight").reshape(-1), {}
    for ins in node.attribute("instructions"):
        ir = str(irreps_out[ins.i_out].ir)
        scalar = ins.i_in2 == 0 and ins.connection_mode == "uvw" and ins.has_weight
        if not scalar or str(irreps_in[ins.i_in1].ir) != ir or ir in weights:
            raise node.error(f"unexpected instruction {ins}")
        size = math.prod(ins.path_shape)
        weights[ir], flat = flat[:size].reshape(ins.path_shape), flat[size:]
        c_in, n_elements, _ = ins.path_shape
        # e3nn multiplies by sqrt(2l + 1) and by w3j = delta / sqrt(2l + 1).
        _check_norms(node, {ins.path_weight}, math.sqrt(irrep_dim(ir) / (c_in * n_elements)))
    node.derived("irreps_in2")
    return weights


def read_convolution(node: Node) -> tuple[tuple[Path, ...], dict[str, np.ndarray]]:
    """Paths of the convolution in weight order and the coupling tensor of each."""
    _read_product_attributes(node)
    node.derived_empty("weight")
    node.derived("internal_weights", "shared_weights")
    irreps_in, irreps_edge = node.attribute("irreps_in1"), node.attribute("irreps_in2")
    irreps_out = node.attribute("irreps_out")
    paths, couplings = [], {}
    for index, ins in enumerate(node.attribute("instructions")):
        ir_in, ir_edge = irreps_in[ins.i_in1].ir, irreps_edge[ins.i_in2].ir
        ir_out = irreps_out[ins.i_out].ir
        plain = ins.connection_mode == "uvu" and ins.has_weight and ins.path_shape[1] == 1
        if not plain or ins.i_out != index or ir_edge.p != (-1) ** ir_edge.l:
            raise node.error(f"unexpected instruction {ins}")
        _check_norms(node, {ins.path_weight}, math.sqrt(ir_out.dim))
        paths.append(Path(str(ir_in), ir_edge.l, str(ir_out)))
        couplings[f"{ir_in}.{ir_edge.l}.{ir_out}"] = _coupling(node, ir_in.l, ir_edge.l, ir_out.l)
    return tuple(paths), couplings


def read_harmonics(node: Node) -> int:
    """Highest degree of the spherical harmonics, which must be 0 to l_max, normalised as usual."""
    node.require("normalize", True, True, "harmonics of unit vectors expected")
    node.require("normalization", "component", "component", "component normalisation expected")
    node.derived("irreps_in", "_ls_list", "_lmax", "_is_range_lmax", "_prof_str")
    blocks = list(irreps_blocks(str(node.attribute("irreps_out"))).items())
    l_max = len(blocks) - 1
    if blocks != [(f"{degree}{'eo'[degree % 2]}", 1) for degree in range(l_max + 1)]:
        raise node.error(f"unexpected spherical harmonics {blocks}")
    return l_max


def read_network(node: Node) -> tuple[list[np.ndarray], str, float]:
    """Weights of a bias-free network, its activation and that one's stored constant."""
    node.derived("hs")
    names = list(node.module._modules)
    weights, acts = [], []
    for name in names:
        layer = node.child(name, classes.NETWORK_LAYER)
        weights.append(layer.tensor("weight"))
        for variance in ("var_in", "var_out"):
            layer.require(variance, 1, 1, "unit variances expected")
        layer.derived("h_in", "h_out", "_profiling_str")
        if layer.has("act"):
            acts.append(read_activation(layer.child("act", classes.NORMALIZED)))
        layer.derived("act")
    if len(acts) != len(names) - 1 or len(set(acts)) > 1:
        raise node.error("expected one activation after each layer but the last")
    activation, scale = acts[0] if acts else ("none", 1.0)
    return weights, activation, scale


def read_activation(node: Node, others: Mapping[str, str] | None = None) -> tuple[str, float]:
    """Name of an activation and the factor that makes its second moment one.

    ``others`` are functions allowed here beside silu and tanh, by qualified name.
    """
    allowed = {**_ACTIVATIONS, **(others or {})}
    function = node.attribute("f")
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
    if name not in allowed:
        raise node.error(
            f"activation {name}: expected {' or '.join(dict.fromkeys(allowed.values()))}"
        )
    scale = float(node.attribute("cst"))
    return allowed[name], 1.0 if node.attribute("_is_id") else scale


def _read_product_attributes(node: Node) -> None:
    node.derived("output_mask", "weight_numel", "_in1_dim", "_in2_dim", *_CODEGEN)
    node.code(*_COMPILED)


def _coupling(node: Node, l_in: int, l_edge: int, l_out: int) -> np.ndarray:
    """Wigner 3j of one path: the file's own, or the closed form that e3nn uses if one l is 0."""
    compiled = node.module._modules.get("_compiled_main_left_right")
    stored = dict(compiled.named_buffers()) if compiled is not None else {}
    name = f"_w3j_{l_in}_{l_edge}_{l_out}"
    if name in stored:
        return stored[name].detach().cpu().numpy()
    if 0 not in (l_in, l_edge, l_out):
        raise node.error(f"has no coupling coefficients {name}")
    dims = (2 * l_in + 1, 2 * l_edge + 1, 2 * l_out + 1)
    return (np.eye(max(dims)) / math.sqrt(max(dims))).reshape(dims)


def _check_norms(node: Node, norms: set[float], expected: float) -> None:
    if not all(math.isclose(norm, expected, rel_tol=1e-6) for norm in norms):
        raise node.error(f"normalisation: expected {expected:.8g}, got {sorted(norms)}")
