"""Proof of a conversion: the file evaluated by this package against its source by mace-torch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from ase.neighborlist import neighbor_list

from mace_stream.convert.defaults import default_dtype
from mace_stream.convert.ledger import ConversionError
from mace_stream.spec import ModelSpec

TOLERANCE_EV = 1e-8
"""Largest difference of an atom's energy between the two, both evaluated in float64."""
ROUNDING = 1e-12
"""The same relative to the largest energy, for models whose random weights give huge ones."""


@dataclass(frozen=True)
class Graph:
    """Edges of one structure in receiver order; ``edge_vec = x[receiver] - x[sender]`` in Å."""

    species: np.ndarray
    indptr: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    edge_vec: np.ndarray


def build_graph(atoms: Atoms, elements: tuple[int, ...], r_max: float) -> Graph:
    """All edges shorter than ``r_max``, images included, from ASE's neighbor list."""
    receiver, sender, distance = neighbor_list("ijD", atoms, r_max)
    index = {z: species for species, z in enumerate(elements)}
    counts = np.bincount(receiver, minlength=len(atoms))
    return Graph(
        species=np.array([index[z] for z in atoms.numbers], dtype=np.int64),
        indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        sender=sender.astype(np.int64),
        receiver=receiver.astype(np.int64),
        edge_vec=-distance.astype(np.float64).reshape(-1, 3),
    )


def source_energies(model: torch.nn.Module, atoms: Atoms, head: int) -> np.ndarray:
    """Energy of every atom in eV by mace-torch itself, E0 included.

    Args:
        model: A mace-torch model in float64.
        atoms: The structure.
        head: Index of the head.
    """
    elements = tuple(int(z) for z in model.atomic_numbers)
    graph = build_graph(atoms, elements, float(model.r_max))
    # Positions and image shifts that give exactly these edge vectors.
    positions = torch.tensor(atoms.positions, dtype=torch.float64)
    edge_index = torch.from_numpy(np.stack([graph.sender, graph.receiver]))
    bare = positions[edge_index[1]] - positions[edge_index[0]]
    one_hot = np.eye(len(elements))[graph.species]
    data = {
        "positions": positions,
        "edge_index": edge_index,
        "shifts": torch.from_numpy(graph.edge_vec) - bare,
        "unit_shifts": torch.zeros_like(bare),
        "cell": torch.zeros(3, 3, dtype=torch.float64),
        "node_attrs": torch.from_numpy(one_hot),
        "batch": torch.zeros(len(atoms), dtype=torch.int64),
        "ptr": torch.tensor([0, len(atoms)]),
        "head": torch.tensor([head]),
    }
    with default_dtype(torch.float64):  # mace-torch computes some constants in it
        return model(data, compute_force=False)["node_energy"].detach().numpy()


def file_energies(path: Path, atoms: Atoms, head: str) -> np.ndarray:
    """Energy of every atom in eV by this package from a ``.mace`` file, in float64."""
    from mace_stream.torch import MACE

    model = MACE.from_file(path, head=head, dtype=torch.float64)
    graph = build_graph(atoms, model.elements, model.r_max)
    tensors = map(torch.from_numpy, (graph.edge_vec, graph.indptr, graph.sender, graph.species))
    _, node_energy = model(*tensors)
    return node_energy.detach().numpy()


def probes(elements: tuple[int, ...]) -> list[Atoms]:
    """A distorted periodic crystal with every element, and a molecule of up to four."""
    rng = np.random.default_rng(0)
    n = max(2, int(np.ceil(len(elements) ** (1 / 3))))
    numbers = rng.permutation(np.resize(elements, n**3))
    sites = 2.4 * np.stack(np.meshgrid(*[np.arange(n)] * 3), axis=-1).reshape(-1, 3)
    sites = sites + rng.uniform(-0.2, 0.2, sites.shape)
    cell = 2.4 * n * (np.eye(3) + 0.05 * np.eye(3, k=1))
    corners = 1.3 * np.array([[0, 0, 0], [1, 1, 0], [1, 0, 1], [0, 1, 1.3]])
    molecule = Atoms(numbers=rng.permutation(np.resize(elements, 4)), positions=corners)
    return [Atoms(numbers=numbers, positions=sites, cell=cell, pbc=True), molecule]


def self_test(path: Path, spec: ModelSpec, model: torch.nn.Module) -> float:
    """Largest difference of an atom's energy between file and source in eV, over all heads.

    The source is first rounded to the file's dtype, as the file was; then both are evaluated in
    float64, so that only a mistake can make them differ.

    Raises:
        ConversionError: A difference is not below the tolerance.
    """
    rounded = as_stored(model, spec.dtype)
    all_heads = [str(head) for head in getattr(model, "heads", None) or ["Default"]]
    worst = 0.0
    for head in spec.heads:
        for atoms in probes(spec.elements):
            expected = source_energies(rounded, atoms, all_heads.index(head))
            got = file_energies(path, atoms, head)
            difference = float(np.abs(got - expected).max())
            allowed = max(TOLERANCE_EV, ROUNDING * float(np.abs(expected).max()))
            if not difference < allowed:
                raise ConversionError(
                    f"self-test failed: with head {head} an atom's energy in {atoms.symbols} "
                    f"differs by {difference:.3g} eV from mace-torch's (allowed {allowed:.1g}). "
                    "Nothing was written. Please report this with the model file"
                )
            worst = max(worst, difference)
    return worst


def as_stored(model: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """A float64 copy of the model with its numbers rounded as a file of this dtype has them."""
    exact = copy.deepcopy(model).double().eval()
    rounded = copy.deepcopy(model).to(getattr(torch, dtype)).double().eval()
    rounded.atomic_energies_fn = exact.atomic_energies_fn
    if hasattr(exact, "scale_shift"):
        rounded.scale_shift = exact.scale_shift
    for layer, exact_layer in zip(rounded.interactions, exact.interactions, strict=True):
        layer.conv_tp = exact_layer.conv_tp  # holds no weights, only coupling coefficients
    return rounded
