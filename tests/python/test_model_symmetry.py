"""What holds for any MACE whatever its numbers: symmetries, smoothness, empty graphs, refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from model_support import (
    MACE,
    edge_gradient,
    graph_of,
    ours,
    small_twin,
    spec_and_tensors,
    structures,
)

from mace_stream.torch import geometry

EXACT_EV = 1e-12


@pytest.fixture(scope="module")
def parts():
    """A twin with every feature that has geometry in it: density, transform, repulsion."""
    return spec_and_tensors(small_twin("MP-0b3 medium", channels=4))


@pytest.fixture(scope="module")
def model(parts):
    return MACE.from_spec(*parts)


@pytest.fixture(scope="module")
def atoms():
    return structures("triclinic")[0]


def orthogonal(seed, determinant):
    q = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    return q * determinant * np.sign(np.linalg.det(q))


def symmetry_gap(model, atoms, matrix):
    """Largest violation of E(Rx) = E(x), F(Rx) = R F(x), W(Rx) = R W(x) R^T."""
    turned = atoms.copy()
    turned.set_cell(atoms.cell.array @ matrix.T)
    turned.positions = atoms.positions @ matrix.T
    before, after = ours(model, atoms), ours(model, turned)
    return max(
        np.abs(after.node_energy - before.node_energy).max(),
        np.abs(after.forces - before.forces @ matrix.T).max(),
        np.abs(after.virial - matrix @ before.virial @ matrix.T).max(),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("determinant", [1, -1], ids=["rotation", "improper"])
def test_rotation_and_inversion(model, atoms, seed, determinant):
    assert symmetry_gap(model, atoms, orthogonal(seed, determinant)) < EXACT_EV


def test_inversion(model, atoms):
    assert symmetry_gap(model, atoms, -np.eye(3)) < EXACT_EV


def test_the_symmetry_check_sees_a_shear_and_a_wrong_coupling(parts, model, atoms):
    shear = np.eye(3)
    shear[0, 1] = 1e-4
    assert symmetry_gap(model, atoms, shear) > 1e-8
    spec, tensors = parts
    name = "layers.1.w3j.1o.2.1o"
    broken = MACE.from_spec(spec, tensors | {name: tensors[name][:, ::-1].copy()})
    assert symmetry_gap(broken, atoms, orthogonal(0, 1)) > 1e-8


def test_translation(model, atoms):
    moved = atoms.copy()
    moved.positions += [0.3, -4.1, 7.7]
    moved.wrap()
    before, after = ours(model, atoms), ours(model, moved)
    assert np.abs(after.node_energy - before.node_energy).max() < EXACT_EV
    assert np.abs(before.forces.sum(axis=0)).max() < EXACT_EV


def test_permutation_of_atoms(model, atoms):
    order = np.random.default_rng(0).permutation(len(atoms))
    before, after = ours(model, atoms), ours(model, atoms[order])
    assert np.abs(after.node_energy - before.node_energy[order]).max() < EXACT_EV
    assert np.abs(after.forces - before.forces[order]).max() < EXACT_EV
    assert np.abs(after.forces - before.forces).max() > 1e-6


def test_permutation_of_edges_within_a_receiver(model, atoms):
    graph = graph_of(atoms, model.elements, model.r_max)
    rng = np.random.default_rng(1)
    starts = zip(graph.indptr, graph.indptr[1:], strict=False)
    order = np.concatenate([rng.permutation(np.arange(a, b)) for a, b in starts])
    energy, gradient = edge_gradient(model, *graph.arguments())
    shuffled = edge_gradient(
        model, graph.edge_vec[order], graph.indptr, graph.sender[order], graph.species
    )
    assert np.abs(shuffled[0] - energy).max() < EXACT_EV
    assert np.abs(shuffled[1] - gradient[order]).max() < EXACT_EV


def test_chunks_change_nothing(model, atoms, monkeypatch):
    whole = ours(model, atoms)
    monkeypatch.setattr(geometry, "EDGES_PER_CHUNK", 6)
    graph = graph_of(atoms, model.elements, model.r_max)
    made = geometry.make_graph(*map(torch.tensor, graph.arguments()))
    assert len(made.chunks) > 2
    cut = ours(model, atoms)
    assert np.abs(cut.node_energy - whole.node_energy).max() < EXACT_EV
    assert np.abs(cut.forces - whole.forces).max() < EXACT_EV


def test_a_planted_chunk_without_its_last_edge_is_seen(model, atoms):
    whole = ours(model, atoms)
    graph = graph_of(atoms, model.elements, model.r_max)
    indptr = graph.indptr.copy()
    indptr[-1] -= 1
    energy, _ = edge_gradient(model, graph.edge_vec[:-1], indptr, graph.sender[:-1], graph.species)
    assert np.abs(energy - whole.node_energy).max() > 1e-8


def pair(model, distance):
    """Energy and radial gradient of two atoms, edges in both directions."""
    vec = distance * np.array([[1.0, 2.0, 2.0], [-1.0, -2.0, -2.0]]) / 3
    energy, gradient = edge_gradient(
        model, vec, np.array([0, 1, 2]), np.array([1, 0]), np.array([0, 1])
    )
    return energy.sum(), (gradient * vec).sum() / distance


def test_energy_and_force_vanish_smoothly_at_r_max(model):
    free = pair(model, 2 * model.r_max)[0]
    for distance in (model.r_max, model.r_max + 0.5):
        assert pair(model, distance) == (free, 0.0)
    inside = [pair(model, model.r_max - step) for step in (1e-2, 1e-3, 1e-4)]
    energies = [abs(energy - free) for energy, _ in inside]
    slopes = [abs(slope) for _, slope in inside]
    # The envelope has three vanishing derivatives: E falls as step^3 and its slope as step^2.
    assert energies[0] > 20 * energies[1]
    assert slopes[0] > 20 * slopes[1] > 400 * slopes[2]


def test_a_step_at_r_max_would_be_seen(parts):
    spec, tensors = parts
    early = MACE.from_spec(spec, tensors | {"radial.cutoff.r_max": np.array(spec.r_max * 1.2)})
    inside, outside = pair(early, spec.r_max * 1.1), pair(early, spec.r_max * 1.3)
    assert inside[0] != outside[0]


def test_edges_beyond_r_max_contribute_exactly_nothing(model, atoms):
    tight = graph_of(atoms, model.elements, model.r_max)
    wide = graph_of(atoms, model.elements, model.r_max + 1)
    assert len(wide.sender) > len(tight.sender)
    energy, gradient = edge_gradient(model, *wide.arguments())
    beyond = np.linalg.norm(wide.edge_vec, axis=1) >= model.r_max
    assert np.all(gradient[beyond] == 0)
    assert np.abs(energy - edge_gradient(model, *tight.arguments())[0]).max() < EXACT_EV


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_no_edges_and_no_nodes(parts, dtype):
    model = MACE.from_spec(*parts, dtype=dtype)
    no_vec, no_edges = np.zeros((0, 3)), np.zeros(0, dtype=np.int64)
    energy, gradient = edge_gradient(model, no_vec, np.array([0, 0, 0]), no_edges, np.array([1, 0]))
    assert energy.shape == (2,)
    assert gradient.shape == (0, 3)
    assert np.isfinite(energy).all()
    energy, gradient = edge_gradient(model, no_vec, np.array([0]), no_edges, no_edges)
    assert energy.shape == (0,)
    assert energy.dtype == np.float64


def test_gradcheck(model):
    graph = graph_of(structures("cluster")[0], model.elements, 2.2)
    rest = [torch.tensor(a) for a in (graph.indptr, graph.sender, graph.species)]
    leaf = torch.tensor(graph.edge_vec, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: model(v, *rest)[0], leaf)
    assert torch.autograd.gradgradcheck(lambda v: model(v, *rest)[0], leaf)


def test_ghost_senders_need_a_halo(model, atoms):
    """Two receivers, the others only send: with the owners' features, energies are the same."""
    graph = graph_of(atoms, model.elements, model.r_max)
    rest = [torch.tensor(a) for a in graph.arguments()]
    halo = RecordingHalo()
    whole = model(*rest, halo=halo)[1].detach()
    assert len(halo.seen) == len(model.interactions) - 1
    n_edges = int(graph.indptr[2])
    part = (rest[0][:n_edges], rest[1][:3], rest[2][:n_edges], rest[3])
    owned = model(*part, halo=PlaybackHalo(halo.seen))[1].detach()
    assert np.abs((owned - whole[:2]).numpy()).max() < EXACT_EV


class RecordingHalo:
    def __init__(self):
        self.seen = []

    def forward(self, features):
        self.seen.append(features)
        return features


class PlaybackHalo:
    """Stands in for the other ranks: gives every node the features that its owner computed."""

    def __init__(self, recorded):
        self.recorded = list(recorded)

    def forward(self, features):
        everyone = self.recorded.pop(0)
        assert torch.allclose(features, everyone[: len(features)], atol=1e-12)
        return everyone


def test_interaction_energy_leaves_out_isolated_atoms(model, atoms):
    graph = graph_of(atoms, model.elements, model.r_max)
    with torch.no_grad():
        interaction, nodes = model(*map(torch.tensor, graph.arguments()))
    alone = model.atomic_energies[torch.tensor(graph.species)]
    assert float(interaction) == pytest.approx(float((nodes - alone).sum()), abs=1e-11)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "PolarMACE"}, "architecture: expected one of MACE, ScaleShiftMACE"),
        ({"pair_repulsion": "lj"}, "pair repulsion: expected none or zbl"),
    ],
)
def test_unsupported_models_are_refused(parts, change, message):
    spec, tensors = parts
    with pytest.raises(ValueError, match=message):
        MACE.from_spec(replace(spec, **change), tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": "A"}, "interaction block: expected one of R, RR, D, DR, NL, got 'A'"),
        ({"correlation": 5}, "correlation: expected 1 to 4, got 5"),
        ({"radial_activation": "relu"}, "activation: expected one of"),
        ({"irreps_up": "4x0e+2x1o"}, "one multiplicity"),
    ],
)
def test_unsupported_layers_are_refused(parts, change, message):
    spec, tensors = parts
    layers = (spec.layers[0], replace(spec.layers[1], **change))
    with pytest.raises(ValueError, match=message):
        MACE.from_spec(replace(spec, layers=layers), tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"basis": "jacobi"}, "radial basis: expected one of"),
        ({"transform": "log"}, "radial transform: expected one of"),
    ],
)
def test_unsupported_radial_functions_are_refused(parts, change, message):
    spec, tensors = parts
    with pytest.raises(ValueError, match=message):
        MACE.from_spec(replace(spec, radial=replace(spec.radial, **change)), tensors)


def test_heads_elements_and_tensors_are_named_when_wrong(parts):
    spec, tensors = parts
    two = replace(spec, heads=("a", "b"))
    with pytest.raises(ValueError, match="the model has a, b; none was chosen"):
        MACE.from_spec(two, tensors)
    with pytest.raises(ValueError, match="got 'c'"):
        MACE.from_spec(two, tensors, head="c")
    with pytest.raises(ValueError, match="not 99"):
        MACE.from_spec(spec, tensors, elements=[99])
    lacking = {name: array for name, array in tensors.items() if name != "zbl.c"}
    with pytest.raises(ValueError, match=r"tensor zbl\.c: missing"):
        MACE.from_spec(spec, lacking)


@pytest.mark.parametrize(
    ("index", "name"), list(enumerate(["edge_vec", "indptr", "sender", "species"]))
)
def test_wrong_dtypes_are_named(model, atoms, index, name):
    graph = graph_of(atoms, model.elements, model.r_max)
    arguments = [torch.tensor(a) for a in graph.arguments()]
    arguments[index] = arguments[index].to(torch.int32 if index else torch.float32)
    with pytest.raises(ValueError, match=f"{name}: expected torch"):
        model(*arguments)
