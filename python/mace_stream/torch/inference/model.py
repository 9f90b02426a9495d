"""A model made ready for the inference path on one device: tables, matrices, kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mace_stream.embedding import input_values
from mace_stream.folded import fold_layers, site_constants
from mace_stream.kernels.inference import Passes, Setup
from mace_stream.spec import ModelSpec
from mace_stream.tables.building import BOUNDS, N_COEF
from mace_stream.tables.contraction import contraction_terms
from mace_stream.tables.radial import RadialTables
from mace_stream.torch.inference.pipeline import Tables
from mace_stream.torch.inference.tables import build_repulsion, build_tables
from mace_stream.torch.inference.weights import Layer, layers_of
from mace_stream.torch.model import MACE
from mace_stream.torch.ops import architecture
from mace_stream.torch.placement import borrowed_threads


@dataclass(frozen=True)
class PreparedModel:
    """What the pipeline needs of a model, and what is added to its energies."""

    setup: Setup
    layers: list[Layer]
    tables: Tables
    passes: Passes
    radial: RadialTables
    constants: np.ndarray
    """Isolated-atom energy and shift of every present species in eV, [S]."""
    held: list[torch.Tensor]
    """Arrays that the passes know by address."""


def prepare(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    *,
    head: str,
    species: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    inputs: Mapping[str, float] | None = None,
) -> PreparedModel:
    """Tabulate and fold a model, and compile its kernels.

    Args:
        spec: The architecture.
        tensors: Numbers of the file.
        head: Which head.
        species: Elements that are present, as indices into the model's.
        dtype: ``Real``.
        device: Where it is to run.
        inputs: Charge and spin, for models that take them.

    Raises:
        ValueError: The radial tables cannot be made fine enough.
        NotImplementedError: The inference path cannot run this model.
    """
    number, values = spec.heads.index(head), input_values(spec, inputs)
    folded = fold_layers(spec, tensors, number, species, values)
    model = MACE.from_spec(spec, tensors, head=head, dtype=torch.float64, inputs=inputs)
    with borrowed_threads(1):  # many small products
        radial = build_tables(model, species, N_COEF, BOUNDS[_name(dtype)])
    setup, coefs = _setup(model, tensors, species, radial, dtype)

    def upload(array: np.ndarray | None) -> torch.Tensor | None:
        return (
            None
            if array is None
            else torch.tensor(np.ascontiguousarray(array), dtype=dtype, device=device)
        )

    tables = Tables(
        hidden=upload(radial.hidden),
        convs=[upload(table) for table in radial.convs],
        densities=[upload(table) for table in radial.densities],
        coefs=[upload(coef) for coef in coefs],
    )
    energies = site_constants(spec, tensors, number, species, values)
    layers = [layer.to(device) for layer in layers_of(folded, dtype)]
    passes, held = _passes(setup, radial, device)
    return PreparedModel(setup, layers, tables, passes, radial, energies, held)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _setup(
    model: MACE,
    tensors: Mapping[str, np.ndarray],
    species: Sequence[int],
    radial: RadialTables,
    dtype: torch.dtype,
) -> tuple[Setup, list[np.ndarray]]:
    contractions = [
        contraction_terms(layer, tensors, f"layers.{t}.product.", species)
        for t, layer in enumerate(model.spec.layers)
    ]
    plans = [interaction.plan for interaction in model.interactions]
    setup = Setup(
        dtype=_name(dtype),
        n_species=len(species),
        l_max=model.spec.l_max,
        channels=model.products[0].contraction.channels,
        r_0=radial.grid.r_0,
        r_max=radial.grid.r_max,
        n_knots=radial.grid.n_knots,
        n_coef=radial.n_coef,
        n_hidden=radial.hidden.shape[-1],
        plans=(None, *plans[1:]),
        contractions=tuple(contraction for contraction, _ in contractions),
        repulsion=build_repulsion(model, species),
    )
    return setup, [coefs for _, coefs in contractions]


def _passes(
    setup: Setup, radial: RadialTables, device: torch.device
) -> tuple[Passes, list[torch.Tensor]]:
    """Kernels of a device, and the arrays that they know by address."""
    if device.type == "cpu":
        from mace_stream.kernels.inference_cpu import CpuPasses

        return CpuPasses(setup), []
    from mace_stream.kernels.inference_cuda import CudaPasses

    densities = tuple(table is not None for table in radial.densities)
    zbl = setup.repulsion
    arrays = () if zbl is None else (zbl.charge, zbl.inverse_length, zbl.bond)
    held = [torch.tensor(array, dtype=torch.float64, device=device) for array in arrays]
    passes = CudaPasses(
        setup,
        architecture(device.index or 0),
        densities,
        stream=lambda: torch.cuda.current_stream(device).cuda_stream,
        zbl=tuple(array.data_ptr() for array in held) or (0, 0, 0),
    )
    return passes, held
