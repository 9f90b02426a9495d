"""One structure through mace-torch, the torch model and the oracle; used by the model tests."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.neighborlist import primitive_neighbor_list

from mace_stream.convert.model import read_model
from mace_stream.testing import EXACT, Tolerance, structure
from mace_stream.testing.twins import ARCHS, build_twin
from mace_stream.torch import MACE

pytest.importorskip("mace", reason="needs mace-torch: pip install 'mace-stream[test]'")

ELEMENTS = (14, 6)


@dataclass(frozen=True)
class Graph:
    """Receiver-major edges of a structure; ``shift`` is the sender's image in cells."""

    edge_vec: np.ndarray
    indptr: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    shift: np.ndarray
    species: np.ndarray

    def arguments(self):
        return self.edge_vec, self.indptr, self.sender, self.species


@dataclass(frozen=True)
class Result:
    node_energy: np.ndarray
    forces: np.ndarray
    virial: np.ndarray


def graph_of(atoms: Atoms, elements, r_max: float) -> Graph:
    receiver, sender, shift = primitive_neighbor_list(
        "ijS", atoms.pbc, atoms.cell, atoms.positions, r_max, self_interaction=False
    )
    order = np.argsort(receiver, kind="stable")
    receiver, sender, shift = receiver[order], sender[order], shift[order].reshape(-1, 3)
    x = atoms.positions
    counts = np.bincount(receiver, minlength=len(atoms))
    return Graph(
        edge_vec=x[receiver] - x[sender] - shift @ atoms.cell.array,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        sender=sender,
        receiver=receiver,
        shift=shift,
        species=np.array([list(elements).index(z) for z in atoms.numbers], dtype=np.int64),
    )


def edge_gradient(model: MACE, edge_vec, indptr, sender, species):
    """Node energies and dE/d(edge_vec) of the torch model, as NumPy arrays."""
    leaf = torch.tensor(edge_vec, requires_grad=True)
    rest = (torch.tensor(array) for array in (indptr, sender, species))
    interaction_energy, node_energy = model(leaf, *rest)
    (gradient,) = torch.autograd.grad(interaction_energy, leaf)
    return node_energy.detach().numpy(), gradient.numpy()


def reduce(graph: Graph, node_energy, gradient) -> Result:
    forces = np.zeros((len(node_energy), 3))
    np.add.at(forces, graph.receiver, -gradient)
    np.add.at(forces, graph.sender, gradient)
    return Result(node_energy, forces, -graph.edge_vec.T @ gradient)


def ours(model: MACE, atoms: Atoms) -> Result:
    graph = graph_of(atoms, model.elements, model.r_max)
    return reduce(graph, *edge_gradient(model, *graph.arguments()))


def truth(source: torch.nn.Module, atoms: Atoms, head: int = 0, inputs=None) -> Result:
    """mace-torch itself, in the precision of its parameters."""
    out = _call_mace(source, atoms, head, inputs or {})
    arrays = (out[key].detach().double().numpy() for key in ("node_energy", "forces", "virials"))
    node_energy, forces, virial = arrays
    node_energy = node_energy.copy()
    if hasattr(source, "embedding_readout"):  # in mace-torch's totals only: those of lone atoms
        for index, number in enumerate(atoms.numbers):
            lone = _call_mace(source, Atoms(numbers=[number]), head, inputs or {})
            node_energy[index] += float(lone["energy"] - lone["node_energy"].sum())
    return Result(node_energy, forces, virial[0])


def _call_mace(source, atoms, head, inputs):
    elements = source.atomic_numbers.tolist()
    graph = graph_of(atoms, elements, float(source.r_max))
    dtype = source.r_max.dtype
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # its ZBL takes the power of an integer in the default dtype
    try:
        batch = _mace_batch(atoms, graph, len(elements), dtype, head, inputs)
        return source(batch, compute_stress=True)
    finally:
        torch.set_default_dtype(before)


def _mace_batch(atoms, graph, n_elements, dtype, head, inputs):
    cell = torch.tensor(atoms.cell.array if atoms.cell.rank == 3 else 50 * np.eye(3), dtype=dtype)
    return {
        "positions": torch.tensor(atoms.positions, dtype=dtype),
        "node_attrs": torch.eye(n_elements, dtype=dtype)[torch.tensor(graph.species)],
        "edge_index": torch.tensor(np.stack([graph.sender, graph.receiver])),
        "shifts": torch.tensor(-graph.shift @ atoms.cell.array, dtype=dtype),
        "unit_shifts": torch.tensor(-graph.shift, dtype=dtype),
        "cell": cell,
        "batch": torch.zeros(len(atoms), dtype=torch.int64),
        "ptr": torch.tensor([0, len(atoms)]),
        "head": torch.tensor([head]),
        **{name: torch.tensor([value], dtype=dtype) for name, value in inputs.items()},
    }


def assert_same(actual: Result, expected: Result, within: Tolerance = EXACT) -> None:
    """Within the bounds of the project, which nobody tunes."""
    energy = np.abs(actual.node_energy - expected.node_energy).max()
    assert energy <= within.energy, f"energy differs by {energy:.2e} eV/atom"
    force = np.abs(actual.forces - expected.forces).max()
    assert force <= within.force, f"forces differ by {force:.2e} eV/Å"
    largest = np.abs(expected.virial).max()
    virial = np.abs(actual.virial - expected.virial).max()
    assert virial <= within.virial * largest, f"virial differs by {virial:.2e} of {largest:.2e} eV"


def is_wrong(actual: Result, expected: Result) -> bool:
    """Whether :func:`assert_same` rejects."""
    try:
        assert_same(actual, expected)
    except AssertionError:
        return True
    return False


def small_twin(name: str, **override):
    """A twin with few channels, a short cutoff and two elements: seconds become milliseconds."""
    channels = override.pop("channels", 8)
    terms = ARCHS[name].hidden.split("+")
    hidden = "+".join(f"{channels}x{term.partition('x')[2]}" for term in terms)
    settings = {"hidden": hidden, "r_max": 3.2, "elements": ELEMENTS, "radial_mlp": (16, 16)}
    if ARCHS[name].edge is not None:
        terms = ARCHS[name].edge.split("+")
        settings["edge"] = "+".join(f"{channels}x{term.partition('x')[2]}" for term in terms)
    return build_twin(name, **{**settings, **override})


def learned(source, seed=0):
    """The same model with numbers in place of those that training starts from."""
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in source.named_parameters():
        last = name.rpartition(".")[2]
        if last in ("alpha", "beta"):
            parameter.data += 3 * torch.rand((), generator=rng, dtype=parameter.dtype)
        elif "conv_tp_weights" in name or "density_fn" in name or "_embedding" in name:
            noise = torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype)
            parameter.data += 0.3 * noise
    return source


def spec_and_tensors(source):
    return read_model(source)


def structures(*names, elements=ELEMENTS):
    return [structure(name, elements=elements) for name in names]
