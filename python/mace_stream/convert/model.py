"""A whole mace-torch model read as a specification and raw tensors."""

from __future__ import annotations

import numpy as np
import torch

from mace_stream.convert import classes
from mace_stream.convert.gated import read_inputs
from mace_stream.convert.irreps import read_harmonics, read_linear
from mace_stream.convert.layers import Tensors, read_layer, read_readout
from mace_stream.convert.ledger import Ledger, Node
from mace_stream.spec import ModelSpec, RadialSpec
from mace_stream.tensors import INDEX_DTYPE, stored_dtype


def read_model(model: torch.nn.Module) -> tuple[ModelSpec, Tensors]:
    """Read everything that a model computes with.

    Args:
        model: A mace-torch model of plain e3nn modules, on the CPU.

    Returns:
        The specification, without provenance, and the raw tensors of :mod:`mace_stream.spec`.

    Raises:
        ConversionError: Some class, parameter, buffer or attribute is not supported or was
            not consumed; the message lists all of them.
    """
    ledger = Ledger(model)
    ledger.refuse_unknown_classes(classes.KNOWN, classes.REASONS)
    root = ledger.root
    architecture = classes.MODELS.get(root.kind)
    if architecture is None:
        raise root.error(f"expected {' or '.join(classes.MODELS)}")
    heads, apply_cutoff = _read_switches(root)
    elements = tuple(int(z) for z in root.tensor("atomic_numbers"))
    tensors = _read_energies(root, len(heads), len(elements))
    (embedding,) = read_linear(
        root.child("node_embedding", classes.EMBEDDING).child("linear", classes.LINEAR)
    ).values()
    tensors["node_embedding.weight"] = embedding
    radial, radial_tensors = _read_radial(root)
    layers, layer_tensors = _read_layers(root)
    readouts, readout_tensors = _read_readouts(root, len(layers), len(heads))
    pair_repulsion, zbl_tensors = _read_pair_repulsion(root)
    inputs, embedding_readout, input_tensors = read_inputs(root, len(heads))
    tensors |= radial_tensors | layer_tensors | readout_tensors | zbl_tensors | input_tensors
    spec = ModelSpec(
        architecture=architecture,
        dtype=source_dtype(root),
        elements=elements,
        r_max=float(root.tensor("r_max")),
        heads=heads,
        n_heads_source=len(heads),
        l_max=read_harmonics(root.child("spherical_harmonics", classes.HARMONICS)),
        radial=radial,
        pair_repulsion=pair_repulsion,
        layers=layers,
        readouts=readouts,
        apply_cutoff=apply_cutoff,
        inputs=inputs,
        embedding_readout=embedding_readout,
    )
    _check_cutoff(root, spec.r_max, tensors)
    ledger.check_nothing_left()
    return spec, cast(tensors, spec.dtype)


def source_dtype(root: Node) -> str:
    """Widest floating-point dtype of the parameters: float32 or float64."""
    dtypes = {parameter.dtype for parameter in root.module.parameters()}
    if not dtypes <= {torch.float32, torch.float64}:
        raise root.error(f"dtype: expected float32 or float64, got {sorted(map(str, dtypes))}")
    return "float64" if torch.float64 in dtypes else "float32"


def cast(tensors: Tensors, dtype: str) -> Tensors:
    """Tensors in the dtypes that a file of this dtype has.

    Raises:
        OverflowError: A number does not fit; the message names the tensor.
    """
    return {name: _cast_one(name, array, dtype) for name, array in tensors.items()}


def _cast_one(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    dtype = stored_dtype(name, dtype)
    largest = float(np.abs(array).max(initial=0))
    limit = np.iinfo(dtype).max if dtype == INDEX_DTYPE else np.finfo(dtype).max
    if largest > limit:
        raise OverflowError(f"{name}: {largest:.3g} does not fit into {dtype}")
    return array.astype(dtype)


def _read_switches(root: Node) -> tuple[tuple[str, ...], bool]:
    """Names of the heads, and whether radial features have the cutoff; odd switches are refused."""
    apply_cutoff = bool(root.attribute("apply_cutoff", True))
    radial = root.child("radial_embedding", classes.RADIAL_EMBEDDING)
    radial.require("apply_cutoff", apply_cutoff, True, "the model itself says otherwise")
    root.require("use_so3", False, False, "SO(3) irreps")
    root.derived(
        "lammps_mliap", "edge_irreps", "use_reduced_cg", "use_agnostic_product",
        "use_last_readout_only", "use_edge_irreps_first", "num_interactions",
    )  # fmt: skip
    heads = root.attribute("heads", None) or ["Default"]
    return tuple(str(head) for head in heads), apply_cutoff


def _read_energies(root: Node, n_heads: int, n_elements: int) -> Tensors:
    node = root.child("atomic_energies_fn", classes.ENERGIES)
    energies = node.tensor("atomic_energies")
    if energies.size != n_heads * n_elements:
        raise node.error(f"{energies.shape} energies for {n_heads} heads, {n_elements} elements")
    tensors = {"atomic_energies": energies.reshape(n_heads, n_elements)}
    if not root.has("scale_shift"):
        return tensors | {"scale": np.ones(n_heads), "shift": np.zeros(n_heads)}
    node = root.child("scale_shift", classes.SCALE_SHIFT)
    for name in ("scale", "shift"):
        values = node.tensor(name).reshape(-1)
        if len(values) != n_heads:
            raise node.error(f"{name}: expected {n_heads} numbers, one per head, got {len(values)}")
        tensors[name] = values
    return tensors


def _read_radial(root: Node) -> tuple[RadialSpec, Tensors]:
    node = root.child("radial_embedding", classes.RADIAL_EMBEDDING)
    basis_node, cutoff = node.child("bessel_fn", *classes.BASES), node.child("cutoff_fn")
    basis = classes.BASES[basis_node.kind]
    tensors = {f"radial.{basis}.{name}": a for name, a in _BASIS_READERS[basis](basis_node).items()}
    tensors |= {f"radial.cutoff.{name}": cutoff.tensor(name) for name in ("p", "r_max")}
    transform = "none"
    if node.has("distance_transform"):
        transform_node = node.child("distance_transform", *classes.TRANSFORMS)
        transform = classes.TRANSFORMS[transform_node.kind]
        names = ("a", "p", "q") if transform == "agnesi" else ("alpha",)
        for name in (*names, "covalent_radii"):
            tensors[f"radial.{transform}.{name}"] = transform_node.tensor(name)
    return RadialSpec(basis, int(node.attribute("out_dim")), transform), tensors


def _read_bessel(node: Node) -> Tensors:
    node.derived("r_max")
    return {"frequencies": node.tensor("bessel_weights"), "prefactor": node.tensor("prefactor")}


def _read_gaussian(node: Node) -> Tensors:
    coefficient = np.array(float(node.attribute("coeff")))
    return {"centers": node.tensor("gaussian_weights"), "coefficient": coefficient}


def _read_chebyshev(node: Node) -> Tensors:
    node.derived("num_basis", "r_max")
    return {"orders": node.tensor("n").reshape(-1)}


_BASIS_READERS = {"bessel": _read_bessel, "gaussian": _read_gaussian, "chebyshev": _read_chebyshev}


def _read_pair_repulsion(root: Node) -> tuple[str, Tensors]:
    active = vars(root.module).get("pair_repulsion", False)
    if not active and not root.has("pair_repulsion_fn"):
        root.derived("pair_repulsion")
        return "none", {}
    node = root.child("pair_repulsion_fn", classes.ZBL)
    if root.attribute("pair_repulsion", None) is not True:
        raise node.error("is there, but the model does not say that it is used")
    names = ("c", "p", "a_exp", "a_prefactor", "covalent_radii")
    return "zbl", {f"zbl.{name}": node.tensor(name) for name in names}


def _read_layers(root: Node) -> tuple[tuple, Tensors]:
    interactions, products = root.children("interactions"), root.children("products")
    if len(interactions) != len(products):
        raise root.error(f"{len(interactions)} interactions, but {len(products)} products")
    layers, tensors = [], {}
    for t, (interaction, product) in enumerate(zip(interactions, products, strict=True)):
        layer, layer_tensors = read_layer(interaction, product)
        layers.append(layer)
        tensors |= {f"layers.{t}.{name}": array for name, array in layer_tensors.items()}
    return tuple(layers), tensors


def _read_readouts(root: Node, n_layers: int, n_heads: int) -> tuple[tuple, Tensors]:
    nodes = root.children("readouts")
    if len(nodes) not in (1, n_layers):
        raise root.error(f"{len(nodes)} readouts for {n_layers} layers")
    readouts, tensors = [], {}
    for r, node in enumerate(nodes):
        # mace-torch reads the last layer if there is one readout only.
        layer = n_layers - 1 if len(nodes) == 1 else r
        readout, readout_tensors = read_readout(node, layer, n_heads)
        readouts.append(readout)
        tensors |= {f"readouts.{r}.{name}": array for name, array in readout_tensors.items()}
    return tuple(readouts), tensors


def _check_cutoff(root: Node, r_max: float, tensors: Tensors) -> None:
    cutoff = float(tensors["radial.cutoff.r_max"])
    if not np.isclose(cutoff, r_max, rtol=1e-6):
        raise root.error(f"r_max is {r_max} Å, but the cutoff function ends at {cutoff} Å")
    p = float(tensors["radial.cutoff.p"])
    if p != int(p):
        raise root.error(f"cutoff exponent p: expected a whole number, got {p}")
