"""Proof of a conversion: the file evaluated by this package against its source by mace-torch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
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


def source_energies(
    model: torch.nn.Module, atoms: Atoms, head: int, inputs: Mapping[str, float]
) -> np.ndarray:
    """Energy of every atom in eV by mace-torch itself, E0 included.

    Args:
        model: A mace-torch model in float64.
        atoms: The structure.
        head: Index of the head.
        inputs: Value of every input that the model takes.
    """
    elements = tuple(int(z) for z in model.atomic_numbers)
    graph = build_graph(atoms, elements, float(model.r_max))
    energies = _evaluate(model, graph, np.zeros(len(atoms), np.int64), head, inputs)["node_energy"]
    if not hasattr(model, "embedding_readout"):
        return energies
    # mace-torch adds what is read out of the embedding to totals only: of lone atoms, then.
    none, each = np.zeros(0, np.int64), np.arange(len(elements))
    lone = Graph(each, np.zeros(len(each) + 1, np.int64), none, none, np.zeros((0, 3)))
    out = _evaluate(model, lone, each, head, inputs)
    return energies + (out["energy"] - out["node_energy"])[graph.species]


def _evaluate(
    model: torch.nn.Module, graph: Graph, batch: np.ndarray, head: int, inputs: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """Energies by mace-torch of structures that ``batch`` tells apart, their edges in one graph."""
    n_structures = int(batch.max(initial=0)) + 1
    ends = torch.from_numpy(np.stack([graph.sender, graph.receiver]))
    # All positions are zero, and the image shifts are the edge vectors.
    data = {
        "positions": torch.zeros(len(batch), 3, dtype=torch.float64),
        "edge_index": ends,
        "shifts": torch.from_numpy(graph.edge_vec),
        "unit_shifts": torch.zeros(len(graph.sender), 3, dtype=torch.float64),
        "cell": torch.zeros(3 * n_structures, 3, dtype=torch.float64),
        "node_attrs": torch.from_numpy(np.eye(len(model.atomic_numbers))[graph.species]),
        "batch": torch.from_numpy(batch),
        "ptr": torch.from_numpy(np.searchsorted(batch, np.arange(n_structures + 1))),
        "head": torch.full((n_structures,), head),
        **{name: torch.full((n_structures,), value).double() for name, value in inputs.items()},
    }
    with default_dtype(torch.float64):  # mace-torch computes some constants in it
        out = model(data, compute_force=False)
    return {name: out[name].detach().numpy() for name in ("energy", "node_energy")}


def file_energies(path: Path, atoms: Atoms, head: str, inputs: Mapping[str, float]) -> np.ndarray:
    """Energy of every atom in eV by this package from a ``.mace`` file, in float64."""
    from mace_stream.torch import MACE

    model = MACE.from_file(path, head=head, dtype=torch.float64, inputs=inputs)
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


def input_probes(spec: ModelSpec) -> list[dict[str, float]]:
    """Two values of every input: the ends of its table, or zero and one."""
    if not spec.inputs:
        return [{}]
    values = {
        item.name: (-item.offset, item.n_classes - 1 - item.offset)
        if item.kind == "categorical"
        else (0, 1)
        for item in spec.inputs
    }
    return [{name: float(ends[k]) for name, ends in values.items()} for k in (0, 1)]


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
    for head, inputs in itertools.product(spec.heads, input_probes(spec)):
        for atoms in probes(spec.elements):
            expected = source_energies(rounded, atoms, all_heads.index(head), inputs)
            got = file_energies(path, atoms, head, inputs)
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
