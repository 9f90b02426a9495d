"""One layer of a source model: interaction, product basis; and the readouts."""

from __future__ import annotations

import numpy as np

from mace_stream.convert import classes
from mace_stream.convert.gated import read_gated
from mace_stream.convert.irreps import (
    read_activation,
    read_convolution,
    read_linear,
    read_network,
    read_skip,
    simplified,
)
from mace_stream.convert.ledger import Node
from mace_stream.spec import LayerSpec, ReadoutSpec
from mace_stream.tensors import irrep_dim, irrep_parity, irreps_blocks

Tensors = dict[str, np.ndarray]


def read_layer(interaction: Node, product: Node) -> tuple[LayerSpec, Tensors]:
    """Specification and raw tensors of one interaction with its product basis."""
    block = classes.BLOCKS.get(interaction.kind)
    if block is None:
        raise interaction.error("expected a supported interaction block")
    _derived_attributes(interaction)
    linear_up = interaction.child("linear_up", classes.LINEAR)
    tensors = {f"linear_up.{ir}": weight for ir, weight in read_linear(linear_up).items()}
    paths, couplings = read_convolution(interaction.child("conv_tp", classes.TENSOR_PRODUCT))
    tensors |= {f"w3j.{name}": array for name, array in couplings.items()}
    last = interaction.child("linear_2" if block == "NL" else "linear", classes.LINEAR)
    message = simplified(last, last.attribute("irreps_out"))
    if any(irrep_parity(ir) != (-1) ** (irrep_dim(ir) // 2) for ir in irreps_blocks(message)):
        raise last.error(f"messages {message}: expected the parities of spherical harmonics")
    of_block, block_tensors = (read_gated if block == "NL" else _read_plain)(interaction, block)
    of_product, product_tensors = _read_product(product, message)
    use_sc = of_product.pop("use_sc") and block in ("RR", "DR", "NL")
    layer = LayerSpec(
        block=block,
        irreps_in=simplified(linear_up, linear_up.attribute("irreps_in")),
        irreps_up=simplified(linear_up, linear_up.attribute("irreps_out")),
        irreps_message=message,
        paths=paths,
        use_sc=use_sc,
        **of_block,
        **of_product,
    )
    return layer, tensors | block_tensors | product_tensors


def _derived_attributes(node: Node) -> None:
    node.derived(
        "node_attrs_irreps", "node_feats_irreps", "edge_attrs_irreps", "edge_feats_irreps",
        "target_irreps", "hidden_irreps", "radial_MLP", "edge_irreps", "irreps_out",
    )  # fmt: skip
    node.child("reshape", classes.RESHAPE).derived("irreps", "dims", "muls", "cueq_config")
    refuse_acceleration(node, "cueq_config", "oeq_config")


def _read_plain(node: Node, block: str) -> tuple[dict, Tensors]:
    """What blocks R, RR, D and DR have beside the convolution."""
    weights, activation, scale = read_network(node.child("conv_tp_weights", classes.NETWORK))
    tensors: Tensors = {f"radial.{k}": weight for k, weight in enumerate(weights)}
    for name, reader, kind in (
        ("linear", read_linear, classes.LINEAR),
        ("skip_tp", read_skip, classes.FULLY_CONNECTED),
    ):
        for ir, weight in reader(node.child(name, kind)).items():
            tensors[f"{name.removesuffix('_tp')}.{ir}"] = weight
    average = node.attribute("avg_num_neighbors")
    if block in ("R", "RR"):
        tensors["avg_num_neighbors"] = np.array(float(average))
    else:
        (tensors["density"],), _, _ = read_network(node.child("density_fn", classes.NETWORK))
    of_block = {
        "radial_widths": (len(weights[0]), *(weight.shape[1] for weight in weights)),
        "radial_activation": activation,
        "radial_activation_scale": scale,
    }
    return of_block, tensors


def refuse_acceleration(node: Node, *names: str) -> None:
    """Note a problem if a layer still computes through an acceleration library."""
    for name in names:
        config = node.attribute(name, None)
        if getattr(config, "enabled", False):
            node.ledger.problems.append(f"attribute {node.path}.{name} is enabled")


def _read_product(node: Node, message: str) -> tuple[dict, Tensors]:
    refuse_acceleration(node, "cueq_config")
    contractions = node.child("symmetric_contractions", classes.CONTRACTIONS)
    contractions.derived("irreps_in", "internal_weights", "shared_weights")
    irreps = list(irreps_blocks(str(contractions.attribute("irreps_out"))))
    tensors: Tensors = {}
    correlations = set()
    nodes = contractions.children("contractions")
    for ir, contraction in zip(irreps, nodes, strict=True):
        correlations.add(int(contraction.attribute("correlation")))
        for name, array in _read_contraction(contraction, ir, message).items():
            tensors[f"product.{ir}.{name}"] = array
    if len(correlations) != 1:
        raise node.error(f"one correlation order expected, got {sorted(correlations)}")
    linear = node.child("linear", classes.LINEAR)
    tensors |= {f"product.linear.{ir}": weight for ir, weight in read_linear(linear).items()}
    of_product = {
        "irreps_out": simplified(linear, linear.attribute("irreps_out")),
        "correlation": correlations.pop(),
        "use_sc": bool(node.attribute("use_sc")),
        "agnostic_product": bool(node.attribute("use_agnostic_product", False)),
    }
    return of_product, tensors


def _read_contraction(node: Node, ir: str, message: str) -> Tensors:
    """Weights and sparse coupling tensors of one output irrep, for every order nu."""
    coupling = [str(irrep.ir) for irrep in node.attribute("coupling_irreps")]
    if coupling != list(irreps_blocks(message)):
        raise node.error(f"couples {coupling}, but the message has {message}")
    node.derived("num_features")
    node.code("contractions_weighting", "contractions_features", "graph_opt_main")
    correlation = int(node.attribute("correlation"))
    lower = node.child("weights", classes.PARAMETER_LIST)
    lower.derived("_size")
    tensors: Tensors = {}
    for nu in range(correlation, 0, -1):
        index = correlation - 1 - nu
        tensors[f"weight.{nu}"] = (
            node.tensor("weights_max") if nu == correlation else lower.tensor(str(index))
        )
        indices, values = sparse_coupling(node.tensor(f"U_matrix_{nu}"), nu)
        tensors[f"U.{nu}.indices"], tensors[f"U.{nu}.values"] = indices, values
        if len(indices) and indices[:, 0].max() >= irrep_dim(ir):
            raise node.error(f"U_matrix_{nu} is not made for {ir}")
    # The flags only repeat that U is zero; such weights are multiplied by zero in any case.
    node.derived("weights_max_zeroed", *(f"weights_{k}_zeroed" for k in range(correlation - 1)))
    return tensors


def sparse_coupling(u_matrix: np.ndarray, nu: int) -> tuple[np.ndarray, np.ndarray]:
    """Nonzeros of U: indices ``[nnz, 1 + nu + 1]`` (m, mu.., k) and values ``[nnz]``."""
    dense = u_matrix if u_matrix.ndim == nu + 2 else u_matrix[None]
    indices = np.argwhere(dense)
    return indices, dense[tuple(indices.T)]


def read_readout(node: Node, layer: int, n_heads: int) -> tuple[ReadoutSpec, Tensors]:
    """Specification and raw tensors of one readout of ``n_heads`` heads."""
    kind = classes.READOUTS.get(node.kind)
    if kind is None:
        raise node.error("expected a supported readout")
    if kind == "linear":
        weight = _read_scalars(node.child("linear", classes.LINEAR), n_heads)
        return ReadoutSpec("linear", layer, 0, "none", 1.0), {"linear": weight}
    if node.attribute("num_heads", 1) != n_heads:
        raise node.error(f"num_heads differs from the model's {n_heads} heads")
    node.derived("hidden_irreps")
    linear_2 = _read_scalars(node.child("linear_2", classes.LINEAR), n_heads)
    linear_1 = _read_scalars(node.child("linear_1", classes.LINEAR), len(linear_2))
    activation, scale = _read_gate(node.child("non_linearity", classes.ACTIVATION))
    if len(linear_2) % n_heads:
        raise node.error(f"hidden width {len(linear_2)} is no multiple of {n_heads} heads")
    spec = ReadoutSpec("nonlinear", layer, len(linear_2) // n_heads, activation, scale)
    return spec, {"linear_1": linear_1, "linear_2": linear_2}


def _read_gate(node: Node) -> tuple[str, float]:
    node.derived("irreps_in", "irreps_out")
    acts = node.children("acts")
    if len(acts) != 1:
        raise node.error("expected one activation for all hidden scalars")
    return read_activation(acts[0])


def _read_scalars(node: Node, width: int) -> np.ndarray:
    weights = read_linear(node)
    if list(weights) != ["0e"] or weights["0e"].shape[1] != width:
        shapes = {ir: weight.shape for ir, weight in weights.items()}
        raise node.error(f"expected {width} scalars, got {shapes}")
    return weights["0e"]
