"""Conversion of every supported architecture, proven against mace-torch."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from convert_support import DATA, SHIPPED, TRAINED, assert_same_tensors, twin, write

from mace_stream import io
from mace_stream.cli.info import parameter_count
from mace_stream.convert import ConversionError, convert
from mace_stream.convert.selftest import TOLERANCE_EV, probes, source_energies
from mace_stream.convert.source import load_source
from mace_stream.testing.twins import build_twin

pytest.importorskip("mace", reason="needs mace-torch: pip install 'mace-stream[test]'")
SWITCH = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def converted(model, tmp_path, **options):
    """Specification and tensors of the model's conversion, self-test included."""
    source = write(model, tmp_path / "twin.model")
    said = []
    spec = convert(source, tmp_path / "twin.mace", say=said.append, **options)
    assert float(said[0].split()[-2]) < TOLERANCE_EV
    again, tensors = io.load(tmp_path / "twin.mace")
    assert again == spec
    return spec, tensors


VARIANTS = {
    "residual": ("MP-0a medium", {}),
    "agnostic then residual, Agnesi, ZBL": ("MP-0b small", {}),
    "density, l = 2": ("MP-0b2 large", {}),
    "two heads": ("OMAT-0 small", {"heads": ("b", "a")}),
    "plain MACE": ("OFF23 small", {"scale_shift": False}),
    "three layers, correlation 1": ("OFF23 medium", {"num_interactions": 3, "correlation": 1}),
    "one layer": ("MP-0a medium", {"num_interactions": 1, "scale_shift": False}),
    "correlation 4": ("OFF23 small", {"max_ell": 1, "correlation": 4}),
    "Gaussian, Soft": (
        "MP-0a small",
        {"radial_type": "gaussian", "distance_transform": "Soft"},
    ),
    "Chebyshev": ("MP-0b small", {"radial_type": "chebyshev"}),
    "narrow edges": ("MP-0b medium", {"edge": "2x0e+2x1o", "edge_irreps_first": True}),
    "last readout only": ("MP-0a small", {"last_readout_only": True}),
    "last layer keeps l > 0": ("MP-0a medium", {"keep_last_layer_irreps": True}),
    "irrep without a path of order 1": (
        "MP-0a small",
        {"hidden": "4x0e+4x1o+4x2e", "max_ell": 1, "correlation": 3},
    ),
    "tanh readout": ("MP-0a small", {"gate": "tanh"}),
    "float32": ("MP-0b2 medium", {"dtype": "float32"}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_twin_converts_and_passes_its_self_test(variant, tmp_path):
    name, override = VARIANTS[variant]
    model = twin(name, **override)
    spec, tensors = converted(model, tmp_path)
    assert spec.dtype == override.get("dtype", "float64")
    assert parameter_count(tensors) == sum(p.numel() for p in model.parameters())


def test_specification_says_what_the_model_is(tmp_path):
    spec, tensors = converted(twin("MP-0b2 medium", heads=("b", "a")), tmp_path)
    assert spec.architecture == "ScaleShiftMACE"
    assert spec.elements == (14, 6)
    assert (spec.r_max, spec.l_max, spec.pair_repulsion) == (5.0, 2, "zbl")
    assert spec.heads == ("b", "a")
    assert (spec.radial.basis, spec.radial.transform) == ("bessel", "agnesi")
    assert [layer.block for layer in spec.layers] == ["D", "DR"]
    assert [layer.use_sc for layer in spec.layers] == [False, True]
    assert [layer.irreps_out for layer in spec.layers] == ["4x0e+4x1o", "4x0e"]
    assert [r.kind for r in spec.readouts] == ["linear", "nonlinear"]
    np.testing.assert_array_equal(tensors["scale"], [0.9, 1.0])


def test_raw_numbers_are_kept(tmp_path):
    model = twin("MP-0a medium")
    _, tensors = converted(model, tmp_path)
    raw = model.interactions[1].linear_up.weight.detach().numpy()
    kept = [tensors[f"layers.1.linear_up.{ir}"].reshape(-1) for ir in ("0e", "1o")]
    np.testing.assert_array_equal(np.concatenate(kept), raw)
    w3j = model.interactions[1].conv_tp._compiled_main_left_right._w3j_1_2_1
    np.testing.assert_array_equal(tensors["layers.1.w3j.1o.2.1o"], w3j)


@pytest.mark.parametrize("head", ["a", "b", "c"])
def test_keeping_one_head_gives_that_head(head, tmp_path):
    model = twin("OMAT-0 small", heads=("b", "c", "a"))
    spec, tensors = converted(model, tmp_path, head=head)
    assert (spec.heads, spec.n_heads_source) == ((head,), 3)
    index = ["b", "c", "a"].index(head)
    expected = model.atomic_energies_fn.atomic_energies[index]
    np.testing.assert_array_equal(tensors["atomic_energies"][0], expected)


def test_an_unknown_head_lists_the_known_ones(tmp_path):
    source = write(twin("OMAT-0 small", heads=("b", "c", "a")), tmp_path / "twin.model")
    with pytest.raises(ConversionError, match="head: expected one of b, c, a, got nope"):
        convert(source, tmp_path / "twin.mace", head="nope")


@pytest.mark.parametrize("source_dtype", ["float32", "float64"])
@pytest.mark.parametrize("dtype", [None, "float32", "float64"])
def test_dtype_is_the_sources_or_the_one_asked_for(source_dtype, dtype, tmp_path):
    model = twin("MP-0b small", dtype=source_dtype)
    model.atomic_energies_fn.atomic_energies += 1e4 + 1 / 3
    spec, tensors = converted(model, tmp_path, dtype=dtype)
    assert spec.dtype == (dtype or source_dtype)
    assert tensors["layers.0.linear.0e"].dtype == spec.dtype
    exact = model.atomic_energies_fn.atomic_energies.double().numpy()
    np.testing.assert_array_equal(tensors["atomic_energies"], exact)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_the_default_dtype_does_not_matter_and_stays(default, tmp_path):
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(default)
        converted(twin("MP-0b2 medium"), tmp_path)
        assert torch.get_default_dtype() == default
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("value", [None, "0"])
def test_no_environment_variable_is_needed_or_left(value, tmp_path, monkeypatch):
    if value is None:
        monkeypatch.delenv(SWITCH, raising=False)
    else:
        monkeypatch.setenv(SWITCH, value)
    converted(twin("MP-0a small"), tmp_path)
    assert os.environ.get(SWITCH) == value


def test_a_fresh_process_needs_no_variable_and_no_terminal(tmp_path):
    source = write(twin("MP-0a small"), tmp_path / "twin.model")
    clean = {name: value for name, value in os.environ.items() if name != SWITCH}
    code = (
        "import sys, os; from mace_stream.convert import convert;"
        f"convert(*sys.argv[1:]); assert {SWITCH!r} not in os.environ"
    )
    subprocess.run(
        [sys.executable, "-c", code, source, tmp_path / "twin.mace"],
        check=True,
        stdin=subprocess.DEVNULL,
        env=clean,
    )
    assert io.load(tmp_path / "twin.mace")[0].elements == (14, 6)


def test_provenance_names_the_source(tmp_path):
    source = write(twin("MP-0a small"), tmp_path / "mace-mpa-0-medium.model")
    provenance = convert(source, tmp_path / "twin.mace").provenance
    assert provenance["source"] == "mace-mpa-0-medium.model"
    assert provenance["source_sha256"] == io.sha256(source)
    assert provenance["source_class"] == "mace.modules.models.ScaleShiftMACE"
    assert provenance["torch"] == torch.__version__
    assert provenance["licence"] == "MIT (judged by the file's name)"
    assert set(provenance) >= {"mace_torch", "mace_stream"}


def test_an_unknown_licence_is_called_unknown(tmp_path):
    spec, _ = converted(twin("MP-0a small"), tmp_path)
    assert spec.provenance["licence"] == "unknown"


def test_an_existing_target_is_replaced(tmp_path):
    (tmp_path / "twin.mace").write_text("old")
    converted(twin("MP-0a small"), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["twin.mace", "twin.model"]


def test_probes_hold_all_elements_many_edges_and_short_ones():
    elements = tuple(range(1, 90))
    crystal, molecule = probes(elements)
    assert set(crystal.numbers) == set(elements)
    assert crystal.pbc.all()
    assert not molecule.pbc.any()
    assert molecule.get_all_distances()[0, 1] < 2


def test_source_energies_match_mace_torchs_own_calculator(tmp_path, monkeypatch):
    """The self-test's way of calling mace-torch is the ordinary one."""
    monkeypatch.setenv(SWITCH, "1")
    from mace.calculators import MACECalculator

    source = write(twin("MP-0b2 medium"), tmp_path / "twin.model")
    atoms = probes((14, 6))[0]
    atoms.calc = MACECalculator(str(source), device="cpu", default_dtype="float64")
    expected = atoms.get_potential_energies()
    np.testing.assert_allclose(
        source_energies(load_source(source), atoms, 0, {}), expected, rtol=0, atol=1e-10
    )


@pytest.mark.skipif(not TRAINED, reason="needs the folder shared/models beside the repository")
@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("source", TRAINED, ids=lambda path: path.stem)
def test_a_trained_model_converts(source, dtype, tmp_path):
    spec = convert(source, tmp_path / "trained.mace", dtype=dtype)
    assert spec.provenance["licence"] == "MIT"


@pytest.mark.skipif(not TRAINED, reason="needs the folder shared/models beside the repository")
def test_the_shipped_model_is_what_conversion_gives(tmp_path):
    (source,) = (path for path in TRAINED if path.stem == SHIPPED.stem)
    convert(source, tmp_path / "again.mace")
    assert_same_tensors(io.load(tmp_path / "again.mace")[1], io.load(SHIPPED)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "published"), [("MP-0a medium", 4_688_656), ("MPA-0 medium", 9_063_204)]
)
def test_a_full_size_twin_has_the_published_number_of_parameters(name, published, tmp_path):
    _, tensors = converted(build_twin(name, dtype="float32"), tmp_path)
    assert parameter_count(tensors) == published


def test_a_model_in_cuequivariance_layout_gives_the_same_file(tmp_path):
    """The two files of tests/python/make_data.py; cuEquivariance itself is not needed."""
    convert(DATA / "cueq.model", tmp_path / "cueq.mace")
    assert_same_tensors(io.load(tmp_path / "cueq.mace")[1], io.load(DATA / "cueq.mace")[1])
