"""A model made ready for the inference path on one device: tables, matrices, kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from mace_stream.embedding import input_values
from mace_stream.folded import fold_layers, site_constants
from mace_stream.jax.folding import Tree
from mace_stream.jax.inference.calls import Calls
from mace_stream.jax.inference.layers import Layer
from mace_stream.jax.inference.tables import radial_model, repulsion
from mace_stream.jax.placement import Placement
from mace_stream.kernels.inference import Setup
from mace_stream.kernels.launching import primary_context
from mace_stream.kernels.recording import CpuNotes, CudaNotes
from mace_stream.spec import ModelSpec
from mace_stream.tables.building import BOUNDS, N_COEF, build_tables
from mace_stream.tables.contraction import contraction_terms
from mace_stream.tables.radial import RadialTables


@dataclass(frozen=True)
class PreparedModel:
    """What the pipeline needs of a model, and what is added to its energies."""

    setup: Setup
    layers: list[Layer]
    tree: Tree
    """Numbers on the device: matrices of ``layers`` and ``tables``."""
    calls: Calls
    radial: RadialTables
    constants: np.ndarray
    """Isolated-atom energy and shift of every present species in eV, [S]."""
    held: list[jax.Array]
    """Arrays that the passes know by address."""


def prepare(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    *,
    head: str,
    species: Sequence[int],
    placement: Placement,
    inputs: Mapping[str, float] | None = None,
) -> PreparedModel:
    """Tabulate and fold a model, and compile its kernels.

    Call it where JAX knows float64. Arguments as of the function of this name for torch.

    Raises:
        TableError: The radial tables cannot be made fine enough.
        NotImplementedError: The inference path cannot run this model.
    """
    number, values = spec.heads.index(head), input_values(spec, inputs)
    folded = fold_layers(spec, tensors, number, species, values)
    with jax.default_device(_for_tables(placement)):
        radial = build_tables(radial_model(spec, tensors), species, N_COEF, BOUNDS[placement.dtype])
    contractions = [
        contraction_terms(layer, tensors, f"layers.{t}.product.", species)
        for t, layer in enumerate(spec.layers)
    ]
    setup = Setup(
        dtype=placement.dtype,
        n_species=len(species),
        l_max=spec.l_max,
        channels=contractions[0][1].shape[-1],
        r_0=radial.grid.r_0,
        r_max=radial.grid.r_max,
        n_knots=radial.grid.n_knots,
        n_coef=radial.n_coef,
        n_hidden=radial.hidden.shape[-1],
        plans=(None, *(layer.plan for layer in folded[1:])),
        contractions=tuple(contraction for contraction, _ in contractions),
        repulsion=repulsion(spec, tensors, number, species),
    )
    dims = [0, *(layer.dim_out for layer in folded)]
    layers = [Layer(*pair) for pair in zip(folded, dims, strict=False)]
    tables = {
        "hidden": radial.hidden,
        "convs": list(radial.convs),
        "densities": list(radial.densities),
        "coefs": [coefs for _, coefs in contractions],
    }
    tree = {"layers": [layer.weights() for layer in layers], "tables": tables}
    passes, held = _passes(setup, radial, placement)
    return PreparedModel(
        setup=setup,
        layers=layers,
        tree=jax.tree.map(lambda array: _uploaded(array, placement), tree),
        calls=Calls(passes),
        radial=radial,
        constants=site_constants(spec, tensors, number, species, values),
        held=held,
    )


def _uploaded(array: np.ndarray, placement: Placement) -> jax.Array:
    real = np.ascontiguousarray(array, dtype=placement.dtype)
    return jax.device_put(real, placement.device)


def _for_tables(placement: Placement) -> jax.Device:
    """A CPU, which compiles small float64 programs faster, unless JAX was told to have none."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return placement.device


def _passes(
    setup: Setup, radial: RadialTables, placement: Placement
) -> tuple[CpuNotes | CudaNotes, list[jax.Array]]:
    """Kernels of a device, and the arrays that they know by address."""
    if not placement.on_gpu:
        return CpuNotes(setup), []
    zbl, device = setup.repulsion, placement.device
    arrays = () if zbl is None else (zbl.charge, zbl.inverse_length, zbl.bond)
    held = [jax.device_put(np.array(array, np.float64), device) for array in arrays]
    with primary_context(device.local_hardware_id):
        passes = CudaNotes(
            setup,
            f"sm_{device.compute_capability.replace('.', '')}",
            tuple(table is not None for table in radial.densities),
            stream=lambda: 0,
            zbl=tuple(array.unsafe_buffer_pointer() for array in held) or (0, 0, 0),
        )
    return passes, held
