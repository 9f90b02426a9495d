"""Random-weight twins of the MACE foundation models: the same shapes, no trained weights.

Needs mace-torch (``pip install 'mace-stream[convert]'``). Shapes follow the training scripts of
ACEsuit/mace-foundations; MP-0a medium and MPA-0 medium have the published numbers of parameters.

Example:
    model = build_twin("OMAT-0 medium", elements=[22, 8], hidden="8x0e+8x1o")
    torch.save(model, "twin.model")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mace_stream.convert.defaults import default_dtype
from mace_stream.convert.source import import_mace

MATERIALS = (*range(1, 84), *range(89, 95))
"""The 89 elements of the models for materials."""
ORGANIC = (1, 6, 7, 8, 9, 15, 16, 17, 35, 53)
"""The 10 elements of the models for organic molecules."""

L0, L1, L2 = "128x0e", "128x0e+128x1o", "128x0e+128x1o+128x2e"


@dataclass(frozen=True)
class Architecture:
    """Hyper-parameters of one model; blocks by their short names."""

    hidden: str = L1
    first: str = "RealAgnosticResidualInteractionBlock"
    rest: str = "RealAgnosticResidualInteractionBlock"
    r_max: float = 6.0
    num_bessel: int = 10
    elements: tuple[int, ...] = MATERIALS
    heads: tuple[str, ...] = ("Default",)
    distance_transform: str = "None"
    pair_repulsion: bool = False
    num_interactions: int = 2
    correlation: int = 3
    max_ell: int = 3
    p: int = 5
    radial_type: str = "bessel"
    radial_mlp: tuple[int, ...] = (64, 64, 64)
    mlp_irreps: str = "16x0e"
    gate: str = "silu"
    edge: str | None = None
    edge_irreps_first: bool = False
    apply_cutoff: bool = True
    agnostic_product: bool = False
    reduced_cg: bool = False
    """Fewer coupling paths, which mace-torch has where cuequivariance is installed."""
    use_so3: bool = False
    last_readout_only: bool = False
    keep_last_layer_irreps: bool = False
    scale_shift: bool = True
    embedding: dict[str, dict] | None = None
    """Numbers of the whole system that are embedded, as mace-torch's ``embedding_specs``."""
    embedding_readout: bool = False


MP0 = Architecture()
AGNESI = Architecture(
    first="RealAgnosticInteractionBlock",
    num_bessel=8,
    distance_transform="Agnesi",
    pair_repulsion=True,
)
DENSITY = replace(
    AGNESI,
    first="RealAgnosticDensityInteractionBlock",
    rest="RealAgnosticDensityResidualInteractionBlock",
)
OFF23 = Architecture(first="RealAgnosticInteractionBlock", elements=ORGANIC, num_bessel=8)
NONLINEAR = Architecture(
    first="RealAgnosticResidualNonLinearInteractionBlock",
    rest="RealAgnosticResidualNonLinearInteractionBlock",
    apply_cutoff=False,
)

CHARGE_AND_SPIN = {
    "total_charge": {
        **{"type": "categorical", "per": "graph"},
        **{"num_classes": 201, "offset": 100, "emb_dim": 64},
    },
    "total_spin": {
        **{"type": "categorical", "per": "graph"},
        **{"num_classes": 101, "offset": 0, "emb_dim": 64},
    },
}

ARCHS: dict[str, Architecture] = {
    "MP-0a small": replace(MP0, hidden=L0),
    "MP-0a medium": MP0,
    "MP-0a large": replace(MP0, hidden=L2),
    "MP-0b small": replace(AGNESI, hidden=L0),
    "MP-0b medium": AGNESI,
    "MP-0b2 small": replace(DENSITY, hidden=L0, r_max=5.0),
    "MP-0b2 medium": replace(DENSITY, r_max=5.0),
    "MP-0b2 large": replace(DENSITY, hidden=L2, r_max=5.0),
    "MP-0b3 medium": replace(DENSITY, num_bessel=10),
    "MPA-0 medium": replace(DENSITY, num_bessel=10),
    "OMAT-0 small": replace(DENSITY, hidden=L0),
    "OMAT-0 medium": DENSITY,
    "MH-0": replace(DENSITY, heads=tuple("abcdefg")),
    "OFF23 small": replace(OFF23, hidden="96x0e", r_max=4.5),
    "OFF23 medium": replace(OFF23, r_max=5.0),
    "OFF23 large": replace(OFF23, hidden="224x0e+224x1o+224x2e", r_max=5.0),
    "MH-1": replace(
        NONLINEAR,
        hidden="512x0e+512x1o",
        edge=L1,
        heads=tuple("abcdef"),
        distance_transform="Agnesi",
        pair_repulsion=True,
        edge_irreps_first=True,
        agnostic_product=True,
    ),
    "OMOL-0": replace(
        NONLINEAR,
        hidden="1024x0e+1024x1o+1024x2e",
        edge=L2,
        correlation=2,
        num_interactions=3,
        num_bessel=8,
        elements=tuple(range(1, 84)),
        embedding=CHARGE_AND_SPIN,
    ),
}


def build_twin(
    name: str,
    elements: Sequence[int] | None = None,
    seed: int = 0,
    dtype: str = "float64",
    **override: Any,
) -> torch.nn.Module:
    """A mace-torch model with random weights and the shapes of the named foundation model.

    Args:
        name: A key of :data:`ARCHS`.
        elements: Atomic numbers, if fewer than the named model has.
        seed: Of all random numbers.
        dtype: ``float32`` or ``float64``.
        override: Other values of the fields of :class:`Architecture`.
    """
    architecture = replace(ARCHS[name], **override)
    if elements is not None:
        architecture = replace(architecture, elements=tuple(elements))
    import_mace()
    with default_dtype(getattr(torch, dtype)), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _build(architecture, np.random.default_rng(seed))


def _build(arch: Architecture, rng: np.random.Generator) -> torch.nn.Module:
    from e3nn import o3
    from mace import modules

    n_heads = len(arch.heads)
    settings = {
        "r_max": arch.r_max,
        "num_bessel": arch.num_bessel,
        "num_polynomial_cutoff": arch.p,
        "max_ell": arch.max_ell,
        "interaction_cls": modules.interaction_classes[arch.rest],
        "interaction_cls_first": modules.interaction_classes[arch.first],
        "num_interactions": arch.num_interactions,
        "num_elements": len(arch.elements),
        "hidden_irreps": o3.Irreps(arch.hidden),
        "MLP_irreps": o3.Irreps(arch.mlp_irreps),
        "atomic_energies": rng.normal(-5.0, 2.0, (n_heads, len(arch.elements))),
        "avg_num_neighbors": 50.0,
        "atomic_numbers": list(arch.elements),
        "correlation": arch.correlation,
        "gate": modules.gate_dict[arch.gate],
        "pair_repulsion": arch.pair_repulsion,
        "apply_cutoff": arch.apply_cutoff,
        "use_reduced_cg": arch.reduced_cg,
        "use_so3": arch.use_so3,
        "use_agnostic_product": arch.agnostic_product,
        "use_last_readout_only": arch.last_readout_only,
        "distance_transform": arch.distance_transform,
        "embedding_specs": arch.embedding,
        "use_embedding_readout": arch.embedding_readout,
        "edge_irreps": None if arch.edge is None else o3.Irreps(arch.edge),
        "use_edge_irreps_first": arch.edge_irreps_first,
        "radial_MLP": list(arch.radial_mlp),
        "radial_type": arch.radial_type,
        "heads": list(arch.heads),
        "keep_last_layer_irreps": arch.keep_last_layer_irreps,
    }
    if not arch.scale_shift:
        return modules.MACE(**settings)
    scale = [0.9 + 0.1 * head for head in range(n_heads)]
    shift = [0.05 * (head + 1) for head in range(n_heads)]
    return modules.ScaleShiftMACE(
        **settings,
        atomic_inter_scale=scale if n_heads > 1 else scale[0],
        atomic_inter_shift=shift if n_heads > 1 else shift[0],
    )


def tiny(name: str, **override: Any) -> torch.nn.Module:
    """The named twin with few channels, two elements and lower degrees: built in a second."""
    arch = ARCHS[name]
    small = {"hidden": _with_channels(arch.hidden, 4), "elements": (14, 6), "radial_mlp": (8, 8)}
    small |= {"mlp_irreps": "4x0e", "max_ell": 2, "correlation": 2}
    if arch.edge is not None:
        small["edge"] = _with_channels(arch.edge, 4)
    return build_twin(name, **{**small, **override})


def _with_channels(irreps: str, channels: int) -> str:
    return "+".join(f"{channels}x{term.partition('x')[2]}" for term in irreps.split("+"))
