"""Tiny random-weight models, and their evaluation by mace-torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from ase import Atoms

from mace_stream.convert import convert
from mace_stream.testing.twins import CHARGE_AND_SPIN, build_twin

TWINS = {
    "plain": {},
    "zbl": {"pair_repulsion": True, "distance_transform": "Agnesi"},
    "heads": {"heads": ("a_pbe", "b_scan")},
    "unsorted_heads": {"heads": ("zeta", "alpha")},
    "one_layer": {"num_interactions": 1},
    "three_layers": {"num_interactions": 3},
    "density": {
        "first": "RealAgnosticDensityInteractionBlock",
        "rest": "RealAgnosticDensityResidualInteractionBlock",
        "distance_transform": "Agnesi",
        "pair_repulsion": True,
    },
    "ti": {"elements": (22,), "r_max": 6.0},
    "ti_far": {"elements": (22,), "r_max": 8.0},
    "binary": {"elements": (6, 14), "pair_repulsion": True, "distance_transform": "Agnesi"},
}
_GATED = {
    "first": "RealAgnosticResidualNonLinearInteractionBlock",
    "rest": "RealAgnosticResidualNonLinearInteractionBlock",
    "apply_cutoff": False,
    "elements": (6, 14),
}
TWINS |= {
    "gated": {
        **_GATED,
        **{"edge": "4x0e+4x1o", "edge_irreps_first": True, "agnostic_product": True},
        **{"pair_repulsion": True, "distance_transform": "Agnesi", "heads": ("a_pbe", "b_scan")},
    },
    "charged": {**_GATED, "num_interactions": 3, "embedding": CHARGE_AND_SPIN},
}
_TINY = {
    "elements": (1, 6, 8, 14),
    "hidden": "8x0e+8x1o",
    "correlation": 2,
    "r_max": 4.5,
    "max_ell": 2,
    "num_bessel": 6,
    "radial_mlp": (12, 12),
    "mlp_irreps": "8x0e",
}


@dataclass(frozen=True)
class Model:
    """A random-weight model as a ``.mace`` file and as mace-torch's own object."""

    path: Path
    torch: object

    @property
    def pickle(self) -> Path:
        """The file that mace-torch wrote."""
        return self.path.with_suffix(".model")


def make_model(name: str, folder: Path) -> Model:
    """Build, save and convert the twin of this name."""
    import torch

    twin = build_twin("MP-0a medium", seed=7, **{**_TINY, **TWINS[name]})
    with torch.no_grad():
        for interaction in twin.interactions:  # random weights give forces of some 1e-3 eV/Å
            gated = hasattr(interaction, "linear_1")
            (interaction.linear_1 if gated else interaction.linear).weight.mul_(20.0)
            if gated:  # as after training: a density that counts
                interaction.beta.fill_(3.0)
    model = Model(folder / f"{name}.mace", twin)
    torch.save(twin, model.pickle)
    convert(model.pickle, model.path)
    return model


@dataclass
class Result:
    """Numbers in eV and Å, atoms in the order of their ids."""

    energy: float
    forces: np.ndarray
    virial: np.ndarray  # [3, 3]
    node_energy: np.ndarray
    node_virial: np.ndarray = field(default=None)  # [n, 6]: xx yy zz xy xz yz
    centroid_virial: np.ndarray = field(default=None)  # [n, 9]: ... yx zx zy

    def gap(self, other: Result) -> float:
        """Largest absolute difference of anything that both have."""
        names = ("energy", "forces", "virial", "node_energy", "node_virial", "centroid_virial")
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        return max(
            float(np.abs(np.subtract(a, b)).max(initial=0.0))
            for a, b in pairs
            if a is not None and b is not None
        )


def mace_torch(
    model: Model,
    atoms: Atoms,
    head: int = 0,
    keep: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    inputs: dict[str, float] | None = None,
) -> Result:
    """Evaluate with mace-torch in float64; ASE finds the neighbors.

    Virials of atoms follow from mace-torch's edge forces: half to either end of an edge for the
    6 components, all to the sender for the 9.

    Args:
        model: As from :func:`make_model`.
        atoms: Positions in Å.
        head: Index of the head.
        keep: Tells from senders and receivers [n_edges] which edges the graph keeps.
        inputs: Total charge and spin, for models that take them.
    """
    from ase.neighborlist import neighbor_list

    sender, receiver, shifts = neighbor_list("ijS", atoms, float(model.torch.r_max))
    chosen = slice(None) if keep is None else keep(sender, receiver)
    sender, receiver, shifts = sender[chosen], receiver[chosen], shifts[chosen]
    arrays = _call(model.torch, atoms, (sender, receiver, shifts), head, inputs)
    vec = atoms.positions[receiver] - atoms.positions[sender] + shifts @ atoms.cell.array
    products = -vec[:, :, None] * arrays["edge_forces"][:, None, :]  # these are +dE/d(edge_vec)
    sent, received = np.zeros((2, len(atoms), 3, 3))
    np.add.at(sent, sender, products)
    np.add.at(received, receiver, products)
    within = 1e-9 * max(1.0, np.abs(arrays["virials"]).max())
    np.testing.assert_allclose(sent.sum(axis=0), arrays["virials"][0], rtol=0, atol=within)
    return Result(
        arrays["energy"].item(),
        arrays["forces"],
        arrays["virials"][0],
        arrays["node_energy"],
        node_virial=components((sent + received) / 2)[:, :6],
        centroid_virial=components(sent),
    )


def single_forces(model: Model, atoms: Atoms) -> np.ndarray:
    """Forces of mace-torch in float32: the yardstick of our own single precision."""
    from ase.neighborlist import neighbor_list

    twin = copy.deepcopy(model.torch).float()
    return _call(twin, atoms, neighbor_list("ijS", atoms, float(twin.r_max)))["forces"]


def _call(
    twin: object,
    atoms: Atoms,
    edges: tuple[np.ndarray, ...],
    head: int = 0,
    inputs: dict[str, float] | None = None,
) -> dict[str, np.ndarray]:
    """All that mace-torch gives for these edges, in the precision of the model."""
    import torch

    sender, receiver, shifts = edges
    dtype = twin.r_max.dtype
    species = [twin.atomic_numbers.tolist().index(z) for z in atoms.numbers]
    cell = torch.tensor(atoms.cell.array, dtype=dtype)
    unit_shifts = torch.tensor(shifts, dtype=dtype).reshape(-1, 3)
    graph = {
        "positions": torch.tensor(atoms.positions, dtype=dtype),
        "node_attrs": torch.eye(len(twin.atomic_numbers), dtype=dtype)[species],
        "edge_index": torch.tensor(np.array([sender, receiver])),
        "unit_shifts": unit_shifts,
        "shifts": unit_shifts @ cell,
        "cell": cell,
        "batch": torch.zeros(len(atoms), dtype=torch.int64),
        "ptr": torch.tensor([0, len(atoms)]),
        "head": torch.tensor([head]),
        **{k: torch.tensor([v], dtype=dtype) for k, v in (inputs or {}).items()},
    }
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # its ZBL takes the power of an integer in the default dtype
    try:
        wanted = ("compute_force", "compute_virials", "compute_edge_forces")
        out = twin(graph, **dict.fromkeys(wanted, True))
    finally:
        torch.set_default_dtype(before)
    return {k: v.detach().numpy() for k, v in out.items() if isinstance(v, torch.Tensor)}


def components(tensors: np.ndarray) -> np.ndarray:
    """LAMMPS' order xx yy zz xy xz yz yx zx zy of tensors [n, 3, 3]."""
    return tensors.reshape(-1, 9)[:, [0, 4, 8, 1, 2, 5, 3, 6, 7]]
