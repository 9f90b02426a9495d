"""Second derivatives against mace-torch: its automatic ones, and differences of its forces."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from ase import Atoms
from hessian_support import FAR, autograd_hessian, gap, numerical_product, ours, twin
from model_support import ELEMENTS, truth

import mace_stream
from mace_stream import io, second_derivatives
from mace_stream.convert.model import read_model
from mace_stream.testing import structure
from mace_stream.torch import conv_derivatives, geometry

FAMILIES = [
    "MP-0a medium",
    "MP-0b medium",  # Agnesi transform, ZBL
    "OMAT-0 medium",  # density blocks, Agnesi transform, ZBL
    "MH-1",  # non-linear blocks with a gate
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("MP-0a large", "OFF23 medium", "OMOL-0")),
]
OPTIONS = {
    "one_layer": {"num_interactions": 1},
    "three_layers": {"num_interactions": 3},
    "gaussian_basis": {"radial_type": "gaussian"},
    "soft_transform": {"distance_transform": "Soft", "pair_repulsion": True},
    "correlation_4": {"correlation": 4},
    "no_scale_shift": {"scale_shift": False},
}
NUMERICAL = 1e-8
"""Five-point differences of 3e-4 Å agree to this, relative to the largest value."""


def atoms_of(name):
    """A structure in the two elements of the twins."""
    return structure(name, elements=ELEMENTS)


def random_vectors(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(*shape, 3))


# ---- against mace-torch ----


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("cell", ["triclinic", "cluster"])
def test_equals_mace_torch(name, cell):
    """A cell shorter than the cutoff, and a free molecule."""
    atoms, source = atoms_of(cell), twin(name)
    head = (getattr(source, "heads", None) or ["Default"])[0]
    found = mace_stream.hessian(ours(source, head=head), atoms)
    assert gap(found, autograd_hessian(source, atoms, head)) < FAR


@pytest.mark.slow
@pytest.mark.parametrize("override", OPTIONS.values(), ids=OPTIONS)
def test_option_equals_mace_torch(override):
    atoms, source = atoms_of("triclinic"), twin("MP-0a medium", **override)
    found = mace_stream.hessian(ours(source), atoms)
    assert gap(found, autograd_hessian(source, atoms)) < FAR


@pytest.mark.parametrize("head", ["a", "b"])
def test_heads_equal_mace_torch(head):
    atoms, source = atoms_of("cluster"), twin("MH-0", heads=("a", "b"))
    found = mace_stream.hessian(ours(source, head=head), atoms)
    assert gap(found, autograd_hessian(source, atoms, head)) < FAR


@pytest.mark.slow
def test_charge_and_spin(tmp_path):
    atoms, source, path = atoms_of("cluster"), twin("OMOL-0"), tmp_path / "m.mace"
    io.save(path, *read_model(source))
    plain = mace_stream.hessian(path, atoms, device="cpu")
    atoms.info |= {"charge": 1, "spin": 2}
    inputs = {"total_charge": 1, "total_spin": 2}
    found = mace_stream.hessian(path, atoms, device="cpu", inputs=inputs)
    expected = autograd_hessian(source, atoms)
    assert gap(found, expected) < FAR
    assert gap(plain, expected) > 100 * FAR


@pytest.mark.parametrize("name", ["MP-0a medium", "OMAT-0 medium"])
@pytest.mark.parametrize("cell", ["triclinic", "cluster", "slab"])
def test_product_equals_differences_of_forces(name, cell):
    """The slab is periodic in two directions."""
    atoms, source = atoms_of(cell), twin(name)
    vector = random_vectors(len(atoms))
    found = mace_stream.hvp(ours(source), atoms, vector)
    assert gap(found, numerical_product(source, atoms, vector)) < NUMERICAL


def test_edges_in_several_chunks(monkeypatch):
    """On a CPU long lists are convolved piece by piece."""
    atoms, model = atoms_of("slab"), ours(twin("OMAT-0 medium"))
    whole = mace_stream.hessian(model, atoms)
    start, counts = geometry.make_chunks, []

    def counted(*graph):
        chunks = start(*graph)
        counts.append(len(chunks))
        return chunks

    monkeypatch.setattr(geometry, "EDGES_PER_CHUNK", 32)
    monkeypatch.setattr(geometry, "make_chunks", counted)
    assert gap(mace_stream.hessian(model, atoms), whole) < FAR
    assert counts[0] > 3


def test_atoms_outside_of_the_cell():
    """Images are counted from where the atoms are."""
    atoms, model = atoms_of("triclinic"), ours(twin("MP-0a medium"))
    wrapped = mace_stream.hessian(model, atoms)
    atoms.positions[1] += 2 * atoms.cell.array[0] - atoms.cell.array[2]
    assert gap(mace_stream.hessian(model, atoms), wrapped) < FAR


# ---- what holds for any energy ----


@pytest.mark.parametrize("cell", ["triclinic", "cluster", "slab"])
def test_symmetry(cell):
    atoms = atoms_of(cell)
    size = 3 * len(atoms)
    found = mace_stream.hessian(ours(twin("MP-0b medium")), atoms).reshape(size, size)
    assert gap(found, found.T) < 1e-12


@pytest.mark.parametrize("cell", ["triclinic", "cluster", "one_atom_cell"])
def test_translations_change_nothing(cell):
    atoms, model = atoms_of(cell), ours(twin("MP-0b medium"))
    shift = np.broadcast_to([0.3, -0.7, 0.5], (len(atoms), 3))
    scale = np.abs(mace_stream.hessian(model, atoms)).max()
    assert np.abs(mace_stream.hvp(model, atoms, shift)).max() <= 1e-12 * scale


def test_rotated_molecule():
    """The Hessian turns with the molecule."""
    atoms, model = atoms_of("cluster"), ours(twin("OMAT-0 medium"))
    turn, _ = np.linalg.qr(random_vectors(3, seed=4))
    turned = Atoms(atoms.numbers, atoms.positions @ turn.T)
    expected = np.einsum("ac,icjd,bd->iajb", turn, mace_stream.hessian(model, atoms), turn)
    assert gap(mace_stream.hessian(model, turned), expected) < FAR


def test_rotating_a_molecule_turns_its_forces():
    """H (w x x) = w x g, with the gradient g of mace-torch."""
    atoms, source = atoms_of("cluster"), twin("MP-0a medium")
    axis = np.array([0.3, -0.5, 0.8])
    found = mace_stream.hvp(ours(source), atoms, np.cross(axis, atoms.positions))
    assert gap(found, np.cross(axis, -truth(source, atoms).forces)) < FAR


# ---- arguments ----


def test_rows_and_products_are_parts_of_the_hessian():
    atoms, model = atoms_of("triclinic"), ours(twin("MP-0a medium"))
    whole = mace_stream.hessian(model, atoms)
    np.testing.assert_array_equal(mace_stream.hessian(model, atoms, [3, 0]), whole[[3, 0]])
    assert mace_stream.hessian(model, atoms, []).shape == (0, 3, len(atoms), 3)
    vectors = random_vectors(4, len(atoms))
    products = mace_stream.hvp(model, atoms, vectors)
    assert gap(products, np.einsum("iajb,kjb->kia", whole, vectors)) < FAR
    np.testing.assert_array_equal(mace_stream.hvp(model, atoms, vectors[2]), products[2])
    assert mace_stream.hvp(model, atoms, vectors[:0]).shape == (0, len(atoms), 3)


@pytest.mark.parametrize("name", ["isolated_atom", "hcp_ti"])
def test_atoms_without_neighbors(name):
    atoms = atoms_of(name)
    atoms.set_cell(50 * np.eye(3))
    atoms.positions[:, 0] += 10.0 * np.arange(len(atoms))
    assert not mace_stream.hessian(ours(twin("MP-0b medium")), atoms).any()


def test_no_atoms():
    assert mace_stream.hessian(ours(twin("MP-0a medium")), Atoms()).shape == (0, 3, 0, 3)


def test_a_file_is_loaded(tmp_path):
    """Twice: the second call must find the function, too, and not a module of its name."""
    source, atoms = twin("MP-0a medium"), atoms_of("cluster")
    path = tmp_path / "m.mace"
    io.save(path, *read_model(source))
    vector = random_vectors(len(atoms))
    expected = mace_stream.hvp(ours(source), atoms, vector)
    found = mace_stream.hvp(path, atoms, vector, device="cpu")
    single = mace_stream.hvp(str(path), atoms, vector, device="cpu", dtype="float32")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
    assert 1e-12 < gap(single, expected) < 1e-4


def test_numpy_and_torch_settings_are_left_alone():
    with torch.no_grad():
        mace_stream.hessian(ours(twin("MP-0a medium")), atoms_of("cluster"))
        assert not torch.is_grad_enabled()


def test_import_stays_light():
    code = "import sys, mace_stream; sys.exit(any(m in sys.modules for m in ('torch', 'ase')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- what is refused ----

BAD = {
    "vectors": (lambda m, a: mace_stream.hvp(m, a, np.zeros((3, 2, 3))), r"vectors: .*\[k, 5, 3\]"),
    "flat vectors": (lambda m, a: mace_stream.hvp(m, a, np.zeros(15)), "got \\[15\\]"),
    "index": (lambda m, a: mace_stream.hessian(m, a, [0, 5]), "integers from 0 to 4"),
    "negative": (lambda m, a: mace_stream.hessian(m, a, [-1]), "integers from 0 to 4"),
    "mask": (lambda m, a: mace_stream.hessian(m, a, [True] * 5), "integers from 0 to 4"),
    "head": (lambda m, a: mace_stream.hessian(m, a, head="x"), "head: the model is loaded already"),
    "dtype": (lambda m, a: mace_stream.hessian(m, a, dtype="float64"), "and dtype was chosen then"),
    "precision": (lambda m, a: mace_stream.hessian("x.mace", a, dtype="half"), "expected one of f"),
    "device": (lambda m, a: mace_stream.hessian("x.mace", a, device="cuda:99"), "sees . CUDA dev"),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(ours(twin("MP-0a medium")), atoms_of("cluster"))


def changed(**arrays):
    atoms = atoms_of("triclinic")
    for name, value in arrays.items():
        setattr(atoms, name, value)
    return atoms


ATOMS = {
    "element": (changed(numbers=[22, 8, 6, 14, 6]), "does not know O Ti; it knows"),
    "not a number": (changed(positions=np.full((5, 3), np.nan)), "5 positions are not finite"),
    "no cell": (changed(cell=np.diag([5.0, 0, 5])), "cell vector 1, which is zero"),
    "coincident": (changed(positions=np.zeros((5, 3))), "atoms are on top of each other"),
}


@pytest.mark.parametrize(("atoms", "message"), ATOMS.values(), ids=ATOMS)
def test_bad_atoms_are_named(atoms, message):
    with pytest.raises(ValueError, match=message):
        mace_stream.hessian(ours(twin("MP-0a medium")), atoms, [0])


def test_a_missing_file_is_named():
    with pytest.raises(io.ModelFileError, match=r"none\.mace"):
        mace_stream.hessian("none.mace", atoms_of("cluster"), device="cpu")


def test_out_of_memory_is_explained(monkeypatch):
    def fail(self, vector):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(second_derivatives._Gradient, "differentiate", fail)
    with pytest.raises(MemoryError, match="second derivatives of 5 atoms with 20 edges; take"):
        mace_stream.hessian(ours(twin("MP-0a medium")), atoms_of("cluster"))


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["MP-0a medium", "OMAT-0 medium"])
@pytest.mark.parametrize("cell", ["triclinic", "slab"])
def test_gpu_equals_cpu(name, cell):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    atoms, source = atoms_of(cell), twin(name)
    expected = mace_stream.hessian(ours(source), atoms, [0, 1])
    found = mace_stream.hessian(ours(source, device="cuda"), atoms, [0, 1])
    assert gap(found, expected) < FAR


# ---- planted mistakes ----


def plant_no_images(patch):
    """Edge vectors without their images."""
    start = second_derivatives.neighbor_list

    def without(*arguments):
        receiver, sender, image = start(*arguments)
        return receiver, sender, 0 * image + (receiver == sender)[:, None]

    patch.setattr(second_derivatives, "neighbor_list", without)


def plant_lost_term(patch):
    """The convolution's second derivative without what comes through its nodes."""
    start = conv_derivatives._vjp_of_vjp

    def without(ctx, node_ct, *other_cts):
        return start(ctx, None, *other_cts)

    patch.setattr(conv_derivatives._Backward, "backward", staticmethod(without))


def plant_constant_gradient(patch):
    """A message's cotangent taken for a constant."""
    start = conv_derivatives._vjp_of_vjp

    def without(ctx, *cts):
        grads = list(start(ctx, *cts))
        grads[3] = None
        return tuple(grads)

    patch.setattr(conv_derivatives._Backward, "backward", staticmethod(without))


PLANTED = {f.__name__: f for f in (plant_no_images, plant_lost_term, plant_constant_gradient)}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_planted_mistake_is_found(plant, monkeypatch):
    atoms, source = atoms_of("triclinic"), twin("MP-0a medium")
    vector = random_vectors(len(atoms))
    plant(monkeypatch)
    found = mace_stream.hvp(ours(source), atoms, vector)
    assert gap(found, numerical_product(source, atoms, vector)) > 100 * NUMERICAL
