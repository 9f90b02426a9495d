"""The torch model against mace-torch in float64: energies, forces, virial."""

import copy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from model_support import (
    ARCHS,
    ELEMENTS,
    MACE,
    assert_same,
    build_twin,
    is_wrong,
    learned,
    ours,
    small_twin,
    spec_and_tensors,
    structures,
    truth,
)

from mace_stream.convert.source import load_source
from mace_stream.spec import INPUT_DEFAULTS
from mace_stream.testing import structure
from mace_stream.testing.twins import tiny

CELLS = ("triclinic", "one_atom_cell", "cluster")
"""A small triclinic cell, one atom among its own images, a free molecule."""

FAMILIES = [
    ("MP-0a small", {}),
    ("MP-0a medium", {"hidden": "16x0e+16x1o"}),
    ("MP-0a large", {}),
    ("MP-0b medium", {}),
    ("MP-0b2 large", {"channels": 4}),
    ("MPA-0 medium", {}),
    ("OMAT-0 small", {}),
    ("OFF23 medium", {}),
    ("MH-0", {"heads": ("pbe", "scan"), "channels": 4}),
    ("MH-1", {"heads": ("pbe", "omol"), "edge": "6x0e+6x1o"}),
    ("OMOL-0", {"channels": 4, "edge": "6x0e+6x1o+6x2e"}),
]
# Not here but in test_reference.py: the Chebyshev basis. The forces of mace-torch are not the
# gradient of its energy there, because torch does not differentiate chebyshev_polynomial_t.
OPTIONS = {
    "gaussian_basis": {"radial_type": "gaussian"},
    "soft_transform": {"distance_transform": "Soft", "pair_repulsion": True},
    "correlation_1": {"correlation": 1},
    "correlation_2": {"correlation": 2},
    "correlation_4": {"correlation": 4, "max_ell": 2, "channels": 2},
    "one_layer": {"num_interactions": 1},
    "three_layers": {"num_interactions": 3, "channels": 4},
    "no_scale_shift": {"scale_shift": False},
    "tanh_readout": {"gate": "tanh"},
    "l_max_1": {"max_ell": 1},
    "l_max_4": {"max_ell": 4, "correlation": 2, "channels": 4},
    "hidden_l_3": {"hidden": "4x0e+4x1o+4x2e+4x3o", "correlation": 2},
    "cutoff_p_6": {"p": 6},
    "fewer_edge_channels": {"edge": "2x0e+2x1o"},
    "last_readout_only": {"last_readout_only": True, "channels": 4},
    "last_layer_keeps_its_irreps": {"keep_last_layer_irreps": True, "channels": 4},
    "cutoff_of_path_weights": {"apply_cutoff": False},
    "agnostic_product": {"agnostic_product": True},
}
CONTINUOUS = {"type": "continuous", "per": "graph", "in_dim": 1, "emb_dim": 5}
TABLE = {"type": "categorical", "per": "graph", "num_classes": 5, "offset": 2, "emb_dim": 3}
EMBEDDINGS = {
    "charge_and_spin": {"total_charge": TABLE, "total_spin": {**TABLE, "offset": 0}},
    "continuous": {"total_charge": CONTINUOUS, "total_spin": {**CONTINUOUS, "use_bias": False}},
    "charge_alone": {"total_charge": TABLE},
}


def compare(source, cells=CELLS, elements=ELEMENTS, inputs=None):
    spec, tensors = spec_and_tensors(source)
    used = {item.name: INPUT_DEFAULTS[item.name] for item in spec.inputs} | (inputs or {})
    for head_index, head in enumerate(spec.heads):
        model = MACE.from_spec(spec, tensors, head=head, inputs=inputs)
        for atoms in structures(*cells, elements=elements):
            assert_same(ours(model, atoms), truth(source, atoms, head_index, used))


@pytest.mark.parametrize(("name", "override"), FAMILIES, ids=[name for name, _ in FAMILIES])
def test_twin_equals_mace_torch(name, override):
    compare(small_twin(name, **override))


@pytest.mark.parametrize("override", OPTIONS.values(), ids=OPTIONS)
def test_option_equals_mace_torch(override):
    compare(small_twin("MP-0a medium", **override), cells=CELLS[:2])


def test_the_reduced_basis_of_couplings_equals_mace_torch():
    """A file that mace-torch made with cuequivariance installed; see make_data.py."""
    source = load_source(REDUCED)
    compare(source, cells=CELLS[:1])
    _, tensors = spec_and_tensors(source)
    _, full = spec_and_tensors(tiny("MP-0a medium", correlation=3, num_interactions=1))
    name = "layers.0.product.0e.weight.3"
    assert tensors[name].shape[1] < full[name].shape[1]
    spec, _ = spec_and_tensors(source)
    changed = MACE.from_spec(spec, planted(tensors, name))
    atoms = structures("triclinic")[0]
    assert is_wrong(ours(changed, atoms), truth(source, atoms))


@pytest.mark.parametrize("readout", [False, True])
@pytest.mark.parametrize("embedding", EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_charge_and_spin_equal_mace_torch(embedding, readout):
    source = small_twin(
        "MP-0a small", heads=("a", "b"), embedding=embedding, embedding_readout=readout, channels=4
    )
    for inputs in (None, {"total_charge": 2.0}):
        compare(source, cells=CELLS[:1], inputs=inputs)


@cache
def charged():
    source = small_twin("OMOL-0", channels=2)
    return source, *spec_and_tensors(source)


def test_another_charge_or_spin_is_seen():
    source, spec, tensors = charged()
    atoms = structures("cluster")[0]
    right = {"total_charge": 1.0, "total_spin": 2.0}
    expected = truth(source, atoms, inputs=right)
    assert not is_wrong(ours(MACE.from_spec(spec, tensors, inputs=right), atoms), expected)
    for name in right:
        model = MACE.from_spec(spec, tensors, inputs={**right, name: 0.0})
        assert is_wrong(ours(model, atoms), expected)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"total_charge": 0.5}, r"whole numbers from -100 to 100, not 0\.5"),
        ({"total_charge": 101.0}, "from -100 to 100, not 101"),
        ({"total_spin": -1.0}, "from 0 to 100, not -1"),
        ({"field": 1.0}, "does not take field; it takes total_charge, total_spin"),
    ],
)
def test_impossible_inputs_are_refused(inputs, message):
    _, spec, tensors = charged()
    with pytest.raises(ValueError, match=message):
        MACE.from_spec(spec, tensors, inputs=inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHS)
def test_full_size_twin_equals_mace_torch(name):
    elements = (6, 8) if name.startswith("OFF23") else (22, 8)
    compare(build_twin(name), cells=("triclinic", "one_atom_cell"), elements=elements)


REDUCED = Path(__file__).parent / "data" / "reduced.model"
SHARED = Path(__file__).parents[2].parent / "shared" / "models"
TRAINED = ("ti_hcp_meam", "imagdau-Tutorials", "mace-pr325", "mace-tutorials")


def trained(folder):
    files = sorted((SHARED / folder).glob("*.model"))
    if not files:
        pytest.skip(f"no trained model: {SHARED.name}/{folder} is not beside the repository")
    return load_source(files[0]).double()


@pytest.mark.parametrize("folder", TRAINED)
def test_trained_model_equals_mace_torch(folder):
    source = trained(folder)
    compare(source, cells=("triclinic", "cluster"), elements=source.atomic_numbers.tolist())


def planted(tensors, name):
    """The same tensors with a small mistake in one of them."""
    changed = dict(tensors)
    array = np.array(tensors[name], dtype=np.float64)
    changed[name] = array * (1 + 1e-6) if array.size == 1 else np.roll(array, 1)
    return changed


@pytest.mark.parametrize(
    "name",
    [
        "radial.bessel.frequencies",
        "radial.agnesi.a",
        "zbl.a_exp",
        "layers.0.density",
        "layers.0.skip.1o",
        "layers.1.skip.0e",
        "layers.1.w3j.1o.2.1o",
        "layers.1.linear.2e",
        "layers.1.radial.2",
        "layers.0.product.1o.weight.3",
        "layers.0.product.1o.U.2.values",
        "readouts.1.linear_2",
        "scale",
        "shift",
    ],
)
def test_the_comparison_rejects_a_planted_mistake(name, density_twin):
    spec, tensors, atoms, expected = density_twin
    assert not is_wrong(ours(MACE.from_spec(spec, tensors), atoms), expected)
    assert is_wrong(ours(MACE.from_spec(spec, planted(tensors, name)), atoms), expected)


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.source_embedding",
        "layers.1.target_embedding",
        "layers.0.radial.0",
        "layers.1.radial.1.norm.bias",
        "layers.1.radial.2.bias",
        "layers.1.density.0.norm.weight",
        "layers.0.alpha",
        "layers.1.beta",
        "layers.1.linear_1.0e",
        "layers.1.residual.1o",
        "layers.0.linear_2.2e",
        "layers.1.skip.0e",
    ],
)
def test_the_comparison_rejects_a_mistake_in_a_gated_block(name, gated_twin):
    spec, tensors, atoms, expected = gated_twin
    assert not is_wrong(ours(MACE.from_spec(spec, tensors, head="a"), atoms), expected)
    changed = planted(tensors, name)
    assert is_wrong(ours(MACE.from_spec(spec, changed, head="a"), atoms), expected)


@pytest.fixture(scope="module")
def gated_twin():
    source = learned(small_twin("MH-1", channels=4, heads=("a", "b")))
    atoms = structures("triclinic")[0]
    return *spec_and_tensors(source), atoms, truth(source, atoms)


@pytest.fixture(scope="module")
def density_twin():
    source = small_twin("MP-0b3 medium", channels=4)
    atoms = structures("triclinic")[0]
    atoms.positions *= 0.75  # close enough for the pair repulsion to count
    atoms.cell *= 0.75
    return *spec_and_tensors(source), atoms, truth(source, atoms)


def test_a_swapped_head_is_seen():
    source = small_twin("MH-0", heads=("a", "b"), channels=2)
    spec, tensors = spec_and_tensors(source)
    atoms = structures("triclinic")[0]
    assert is_wrong(ours(MACE.from_spec(spec, tensors, head="b"), atoms), truth(source, atoms, 0))


def force_errors(source, atoms):
    """RMS force error in single precision: of the torch model, and of mace-torch itself."""
    spec, tensors = spec_and_tensors(source)
    exact = truth(source, atoms).forces
    single = ours(MACE.from_spec(spec, tensors, dtype=torch.float32), atoms).forces
    yardstick = truth(copy.deepcopy(source).float(), atoms).forces
    return [np.sqrt(((forces - exact) ** 2).mean()) for forces in (single, yardstick)]


@pytest.mark.parametrize("name", ["MP-0a medium", "MPA-0 medium"])
def test_float32_errs_at_most_twice_as_much_as_mace_torch(name):
    source = small_twin(name, hidden="32x0e+32x1o", r_max=4.5)
    single, yardstick = force_errors(source, structures("sic_rattled")[0])
    assert 0 < single <= 2 * yardstick


def test_the_float32_yardstick_sees_weights_of_half_precision():
    source = small_twin("MP-0a medium", r_max=4.5)
    spec, tensors = spec_and_tensors(source)
    atoms = structures("sic_rattled")[0]
    networks = [name for name in tensors if ".radial." in name and name.startswith("layers.")]
    coarse = tensors | {name: tensors[name].astype(np.float16) for name in networks}
    exact = truth(source, atoms).forces
    wrong = ours(MACE.from_spec(spec, coarse, dtype=torch.float32), atoms).forces
    _, yardstick = force_errors(source, atoms)
    assert np.sqrt(((wrong - exact) ** 2).mean()) > 2 * yardstick


def test_float32_of_a_trained_model():
    source = trained("ti_hcp_meam")
    single, yardstick = force_errors(source, structure("hcp_ti_rattled"))
    assert 0 < single <= 2 * yardstick
