"""Which tensors a ``.mace`` file must hold, worked out from its specification.

NumPy only. The table of names and shapes is in :mod:`mace_stream.spec`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mace_stream.spec import LayerSpec, ModelSpec, ReadoutSpec

N_COVALENT_RADII = 119
"""Length of ASE's table of covalent radii, element 0 included."""

_ALWAYS_FLOAT64 = re.compile(
    r"atomic_energies|scale|shift|radial\.gaussian\.coefficient"
    r"|layers\.\d+\.(avg_num_neighbors|w3j\..*)"
)

_CONSTANT = re.compile(
    r"atomic_energies|scale|shift|(radial|zbl)\..*"
    r"|layers\.\d+\.(avg_num_neighbors|w3j\..*|product\..*\.U\..*)"
)

INDEX_DTYPE = "int16"


@dataclass(frozen=True)
class TensorRule:
    """Dtype and shape that one tensor must have; ``None`` stands for any length."""

    shape: tuple[int | None, ...]
    dtype: str


def irreps_blocks(irreps: str) -> dict[str, int]:
    """Multiplicity of every irrep, in order: ``"8x0e+4x1o"`` gives ``{"0e": 8, "1o": 4}``.

    Raises:
        ValueError: The text is not of that form, or names an irrep twice.
    """
    blocks: dict[str, int] = {}
    for term in irreps.replace(" ", "").split("+"):
        mul, _, ir = term.partition("x")
        if not (mul.isdigit() and ir[:-1].isdigit() and ir[-1:] in ("e", "o")) or ir in blocks:
            raise ValueError(f'irreps: expected the form "8x0e+8x1o", got "{irreps}"')
        blocks[ir] = int(mul)
    return blocks


def irrep_dim(ir: str) -> int:
    """Number of components of an irrep: ``2l + 1``."""
    return 2 * int(ir[:-1]) + 1


def irrep_parity(ir: str) -> int:
    """+1 for an even irrep (``e``), -1 for an odd one (``o``)."""
    return 1 if ir.endswith("e") else -1


def tensor_rules(spec: ModelSpec) -> dict[str, TensorRule]:
    """Name, shape and dtype of every tensor of a file with this specification."""
    n_elements, n_heads = len(spec.elements), len(spec.heads)
    channels = sum(irreps_blocks(spec.layers[0].irreps_in).values())
    shapes: dict[str, tuple[int | None, ...]] = {
        "atomic_energies": (n_heads, n_elements),
        "scale": (n_heads,),
        "shift": (n_heads,),
        "node_embedding.weight": (n_elements, channels),
        **_radial_shapes(spec),
        **_input_shapes(spec, channels),
    }
    for t, layer in enumerate(spec.layers):
        for name, shape in _layer_shapes(layer, n_elements, spec.radial.n_basis).items():
            shapes[f"layers.{t}.{name}"] = shape
    for r, readout in enumerate(spec.readouts):
        for name, shape in _readout_shapes(readout, spec).items():
            shapes[f"readouts.{r}.{name}"] = shape
    return {
        name: TensorRule(shape, stored_dtype(name, spec.dtype)) for name, shape in shapes.items()
    }


def trainable_names(spec: ModelSpec) -> tuple[str, ...]:
    """Tensors by which training changes a model, those of mace-torch's optimiser.

    All but isolated-atom energies, scale and shift, couplings, and the constants of radial basis,
    cutoff and repulsion. A model that is built with a framework's own arrays in their place can be
    differentiated by them.

    Raises:
        ValueError: The model takes inputs such as a charge, whose embedding is a constant here.
    """
    if spec.inputs:
        names = ", ".join(item.name for item in spec.inputs)
        raise ValueError(
            f"training: expected a model without inputs, got one that takes {names}; train it with"
            " mace-torch, and convert the result"
        )
    return tuple(name for name in tensor_rules(spec) if not _CONSTANT.fullmatch(name))


def stored_dtype(name: str, dtype: str) -> str:
    """Dtype of one tensor in a file of this dtype.

    Energies, and constants that the source computes with in double precision whatever its own
    dtype, are never rounded to single precision.
    """
    if _ALWAYS_FLOAT64.fullmatch(name):
        return "float64"
    return INDEX_DTYPE if name.endswith(".indices") else dtype


def _radial_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    n_basis, radii = spec.radial.n_basis, (N_COVALENT_RADII,)
    basis = {
        "bessel": {"frequencies": (n_basis,), "prefactor": ()},
        "gaussian": {"centers": (n_basis,), "coefficient": ()},
        "chebyshev": {"orders": (n_basis,)},
    }
    transform = {
        "none": {},
        "agnesi": {"a": (), "p": (), "q": (), "covalent_radii": radii},
        "soft": {"alpha": (), "covalent_radii": radii},
    }
    zbl = {"c": (4,), "p": (), "a_exp": (), "a_prefactor": (), "covalent_radii": radii}
    groups = {
        f"radial.{spec.radial.basis}": basis[spec.radial.basis],
        "radial.cutoff": {"p": (), "r_max": ()},
        f"radial.{spec.radial.transform}": transform[spec.radial.transform],
        "zbl": zbl if spec.pair_repulsion == "zbl" else {},
    }
    return {f"{group}.{name}": shape for group, s in groups.items() for name, shape in s.items()}


def _layer_shapes(layer: LayerSpec, n_elements: int, n_basis: int) -> dict:
    irreps_in, up = irreps_blocks(layer.irreps_in), irreps_blocks(layer.irreps_up)
    message, out = irreps_blocks(layer.irreps_message), irreps_blocks(layer.irreps_out)
    shapes: dict[str, tuple[int | None, ...]] = {}
    for ir, mul in up.items():
        shapes[f"linear_up.{ir}"] = (irreps_in[ir], mul)
    shapes |= _network_shapes("radial", layer.radial_widths, has_norms=layer.block == "NL")
    for path in layer.paths:
        l_edge = 2 * path.l_edge + 1
        name = f"w3j.{path.ir_in}.{path.l_edge}.{path.ir_out}"
        shapes[name] = (irrep_dim(path.ir_in), l_edge, irrep_dim(path.ir_out))
    fan_in = {
        ir: sum(up[path.ir_in] for path in layer.paths if path.ir_out == ir) for ir in message
    }
    if layer.block == "NL":
        shapes |= _gated_shapes(layer, fan_in, n_elements)
        return shapes | _product_shapes(layer, n_elements)
    for ir, mul in message.items():
        shapes[f"linear.{ir}"] = (fan_in[ir], mul)
    if layer.block in ("R", "RR"):
        shapes["avg_num_neighbors"] = ()
    else:
        shapes["density"] = (n_basis, 1)
    before, after = (message, message) if layer.block in ("R", "D") else (irreps_in, out)
    for ir in before:
        if ir in after:
            shapes[f"skip.{ir}"] = (before[ir], n_elements, after[ir])
    return shapes | _product_shapes(layer, n_elements)


def _network_shapes(name: str, widths: tuple[int, ...], *, has_norms: bool) -> dict:
    """Linear layers; those of block NL have biases and are followed by layer norms."""
    shapes: dict[str, tuple[int, ...]] = {}
    for k, (n_in, n_out) in enumerate(pairwise(widths)):
        shapes[f"{name}.{k}"] = (n_in, n_out)
        if has_norms:
            shapes[f"{name}.{k}.bias"] = (n_out,)
        if has_norms and k < len(widths) - 2:
            shapes[f"{name}.{k}.norm.weight"] = shapes[f"{name}.{k}.norm.bias"] = (n_out,)
    return shapes


def _gated_shapes(layer: LayerSpec, fan_in: dict[str, int], n_elements: int) -> dict:
    irreps_in, up = irreps_blocks(layer.irreps_in), irreps_blocks(layer.irreps_up)
    message, out = irreps_blocks(layer.irreps_message), irreps_blocks(layer.irreps_out)
    shapes = _network_shapes("density", layer.density_widths, has_norms=True)
    shapes |= {"alpha": (), "beta": ()}
    for end in ("source", "target"):
        shapes[f"{end}_embedding"] = (n_elements, irreps_in["0e"])
    for ir, mul in message.items():
        width = mul * len(message) if ir == "0e" else mul
        shapes[f"linear_1.{ir}"] = (fan_in[ir], width)
        if ir in up:
            shapes[f"residual.{ir}"] = (up[ir], width)
        shapes[f"linear_2.{ir}"] = (mul, mul)
    for ir in irreps_in:
        if ir in out:
            shapes[f"skip.{ir}"] = (irreps_in[ir], out[ir])
    return shapes


def _input_shapes(spec: ModelSpec, channels: int) -> dict:
    shapes: dict[str, tuple[int, ...]] = {}
    for item in spec.inputs:
        name = f"embedding.{item.name}"
        if item.kind == "categorical":
            shapes[f"{name}.table"] = (item.n_classes, item.width)
            continue
        for k, n_in in enumerate((1, item.width)):
            shapes[f"{name}.{k}"] = (n_in, item.width)
            if item.has_bias:
                shapes[f"{name}.{k}.bias"] = (item.width,)
    if spec.inputs:
        shapes["embedding.project"] = (sum(item.width for item in spec.inputs), channels)
    if spec.embedding_readout:
        shapes["embedding.readout"] = (channels, len(spec.heads))
    return shapes


def _product_shapes(layer: LayerSpec, n_elements: int) -> dict:
    channels = irreps_blocks(layer.irreps_message)["0e"]
    if layer.agnostic_product:
        n_elements = 1
    shapes: dict[str, tuple[int | None, ...]] = {}
    for ir, mul in irreps_blocks(layer.irreps_out).items():
        for nu in range(1, layer.correlation + 1):
            shapes[f"product.{ir}.weight.{nu}"] = (n_elements, None, channels)
            shapes[f"product.{ir}.U.{nu}.indices"] = (None, nu + 2)
            shapes[f"product.{ir}.U.{nu}.values"] = (None,)
        shapes[f"product.linear.{ir}"] = (channels, mul)
    return shapes


def _readout_shapes(readout: ReadoutSpec, spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    n_heads = len(spec.heads)
    channels = irreps_blocks(spec.layers[readout.layer].irreps_out)["0e"]
    if readout.kind == "linear":
        return {"linear": (channels, n_heads)}
    hidden = n_heads * readout.hidden
    return {"linear_1": (channels, hidden), "linear_2": (hidden, n_heads)}


def check_tensors(spec: ModelSpec, tensors: dict) -> None:
    """Raise ``ValueError`` unless the tensors are exactly those that the specification names.

    Checked are names, shapes, dtypes, finite values and the ranges of the sparse indices.
    """
    rules = tensor_rules(spec)
    missing, extra = sorted(set(rules) - set(tensors)), sorted(set(tensors) - set(rules))
    if missing or extra:
        raise ValueError(f"missing tensors {missing or 'none'}, unknown tensors {extra or 'none'}")
    for name, rule in rules.items():
        _check_tensor(name, rule, tensors[name])
    for t, layer in enumerate(spec.layers):
        for ir in irreps_blocks(layer.irreps_out):
            for nu in range(1, layer.correlation + 1):
                _check_coupling(f"layers.{t}.product.{ir}", nu, ir, layer, tensors)


def _check_tensor(name: str, rule: TensorRule, array: np.ndarray) -> None:
    fits = len(array.shape) == len(rule.shape) and all(
        want is None or want == got for want, got in zip(rule.shape, array.shape, strict=True)
    )
    if not fits:
        expected = tuple("any" if n is None else n for n in rule.shape)
        raise ValueError(f"{name}: expected shape {expected}, got {array.shape}")
    if array.dtype != rule.dtype:
        raise ValueError(f"{name}: expected dtype {rule.dtype}, got {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite numbers, got inf or NaN")


def _check_coupling(prefix: str, nu: int, ir: str, layer: LayerSpec, tensors: dict) -> None:
    """The nonzeros of U point inside [2l + 1, components of the message, ..., K]."""
    indices = tensors[f"{prefix}.U.{nu}.indices"]
    n_values = len(tensors[f"{prefix}.U.{nu}.values"])
    if len(indices) != n_values:
        raise ValueError(f"{prefix}.U.{nu}: {len(indices)} indices for {n_values} values")
    n_weights = tensors[f"{prefix}.weight.{nu}"].shape[1]
    components = sum(map(irrep_dim, irreps_blocks(layer.irreps_message)))
    limits = [irrep_dim(ir), *[components] * nu, n_weights]
    if len(indices) and ((indices < 0).any() or (indices.max(axis=0) >= limits).any()):
        raise ValueError(f"{prefix}.U.{nu}.indices: expected 0 to below {limits}")
