"""The inference path in JAX: the numbers of mace-torch, and those of torch's inference path."""

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from jax_inference_support import (
    ENERGY,
    FORCE,
    Listed,
    assert_close,
    carbide,
    evaluated,
    jax_evaluator,
    torch_evaluator,
)
from model_support import learned, small_twin, spec_and_tensors, truth

from mace_stream.bridge import check_options
from mace_stream.evaluation import TooCloseError
from mace_stream.jax.evaluators import choose_evaluator
from mace_stream.jax.inference import pipeline
from mace_stream.tables import building
from mace_stream.testing.twins import ARCHS

NAMES = ["MP-0a medium", "OMAT-0 medium", pytest.param("MH-1", marks=pytest.mark.slow)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SAME = 1e-10
"""eV and eV/Å between torch and JAX: the same passes on the same tables, up to rounding."""


@pytest.fixture(scope="module")
def sources():
    return {}


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
        yield


def model_of(sources, name):
    """A twin of mace-torch with weights that matter, and what its file would hold."""
    if name not in sources:
        source = learned(small_twin(name, r_max=4.0))
        sources[name] = source, spec_and_tensors(source)
    return sources[name]


def listed_for(model, half=False):
    return Listed.of(carbide(), model[0].elements, model[0].r_max, half)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_equals_mace_torch_and_torch(sources, name, device):
    source, model = model_of(sources, name)
    listed = listed_for(model)
    found = evaluated(jax_evaluator(model, device), listed)
    expected = truth(source, carbide())
    assert np.abs(found.node_energy - expected.node_energy).max() < ENERGY
    assert np.abs(found.forces - expected.forces).max() < FORCE
    assert np.abs(found.virial - expected.virial).max() < FORCE * len(found.forces)
    assert np.abs(found.forces).max() > 1e-2
    assert_close(found, evaluated(torch_evaluator(model), listed), SAME, SAME)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHS)
def test_every_twin_equals_torch(name):
    model = spec_and_tensors(small_twin(name))
    listed = listed_for(model)
    found = evaluated(jax_evaluator(model), listed)
    expected = evaluated(torch_evaluator(model), listed)
    scale = max(1.0, np.abs(expected.forces).max())
    assert_close(found, expected, SAME * scale, SAME * scale)


def test_an_atom_alone(sources):
    """No edges at all; and some elements are not there."""
    model = model_of(sources, "MP-0a medium")[1]
    lone = Atoms("C", [[1.0, 2.0, 3.0]], cell=[15, 15, 15], pbc=True)
    listed = Listed.of(lone, model[0].elements, model[0].r_max)
    expected = evaluated(torch_evaluator(model), listed)
    assert_close(evaluated(jax_evaluator(model), listed), expected, SAME, SAME)


@pytest.mark.parametrize("device", DEVICES)
def test_images_of_receivers_and_tiles(sources, device):
    """Half lists name images as receivers; several tiles share the arrays of all nodes."""
    model = model_of(sources, "OMAT-0 medium")[1]
    expected = evaluated(torch_evaluator(model), listed_for(model))
    listed = listed_for(model, half=True)
    assert len(np.unique(listed.arrays[2])) > len(expected.forces)
    assert_close(evaluated(jax_evaluator(model, device, tile=4), listed), expected, SAME, SAME)


@pytest.mark.parametrize("device", DEVICES)
def test_single_precision_rounds_as_torch_does(sources, device):
    model = model_of(sources, "OMAT-0 medium")[1]
    listed = listed_for(model)
    exact = evaluated(torch_evaluator(model), listed)
    found = evaluated(jax_evaluator(model, device, "single"), listed)
    assert 0 < np.abs(found.forces - exact.forces).max() < 1e-4
    assert np.abs(found.node_energy - exact.node_energy).max() < 1e-5


def test_lists_may_change_without_compilation(sources):
    """Programs are compiled again where something does not fit, and only there."""
    model = model_of(sources, "MP-0a medium")[1]
    evaluator = jax_evaluator(model)
    listed = listed_for(model)
    first = evaluated(evaluator, listed)
    for _ in range(3):
        evaluator.set_topology(*listed.arrays)
        again = evaluator.evaluate(listed.x, False, True)
    np.testing.assert_array_equal(again.forces, first.forces)
    assert evaluator.take_statistics()["compilations"] == 1
    atoms = carbide().repeat((2, 1, 1))
    larger = Listed.of(atoms, model[0].elements, model[0].r_max)
    assert_close(
        evaluated(evaluator, larger), evaluated(torch_evaluator(model), larger), SAME, SAME
    )
    assert evaluator.take_statistics()["compilations"] == 2


def test_too_close_atoms_are_named(sources):
    model = model_of(sources, "MP-0a medium")[1]
    listed = listed_for(model)
    evaluator = jax_evaluator(model)
    evaluator.set_topology(*listed.arrays)
    receiver, sender = listed.arrays[2][0], listed.arrays[3][0]
    x = listed.x.copy()
    x[receiver] = x[sender] + [0.0, 0.0, 0.3]
    with pytest.raises(TooCloseError) as caught:
        evaluator.evaluate(x, False, False)
    assert caught.value.distance == pytest.approx(0.3)
    assert caught.value.nodes in {(0, int(listed.arrays[1][0])), (int(listed.arrays[1][0]), 0)}


def chosen(model, *words, threads=1):
    options = check_options(["backend", "jax", "device", "cpu", *words])
    parts = {"head": model[0].heads[0], "species": [0], "launch": (0, threads)}
    return dict(choose_evaluator(*model, options, **parts).describe())


REASONS = {
    ("radial", "exact"): "asked for",
    ("conv", "standard"): "conv standard is asked for",
    ("deterministic", "yes"): "the fast path of backend jax sums in one order on one thread",
}


@pytest.mark.parametrize("words", REASONS)
def test_the_exact_path_says_why(sources, words):
    model = model_of(sources, "MP-0a medium")[1]
    told = chosen(model, *words, threads=2)["radial part"]
    assert "exact: the radial network is evaluated for every edge" in told
    assert REASONS[words] in told


def test_the_fast_path_is_the_default_and_can_be_asked_for(sources, monkeypatch):
    model = model_of(sources, "MP-0a medium")[1]
    told = chosen(model, "deterministic", "yes")
    assert told["radial part"].startswith("spline: radial tables: quintic")
    assert told["deterministic"] == "yes: all sums in one order"
    with pytest.raises(ValueError, match="radial spline cannot serve this model: deterministic"):
        chosen(model, "radial", "spline", "deterministic", "yes", threads=2)
    monkeypatch.setattr(building, "MAX_BYTES", 1000)
    assert "radial tables of so many pairs" in chosen(model)["radial part"]
    with pytest.raises(ValueError, match="radial spline cannot serve this model: radial tables"):
        chosen(model, "radial", "spline")


def no_skip(step, t, k):
    """Plant: what the skip adds to the cotangent of the features is lost."""
    step.kept[t][k] = replace(step.kept[t][k], skip_bar=None)


def half_a_dot(step, t, k):
    step.dot = step.dot / 2


@pytest.mark.parametrize("plant", [no_skip, half_a_dot])
def test_planted_mistakes_are_seen(sources, monkeypatch, plant):
    model = model_of(sources, "OMAT-0 medium")[1]
    listed = listed_for(model)
    right = pipeline._Step._convolve_backward

    def spoilt(step, t, tile, rows_bar):
        plant(step, t, step.tiles.index(tile))
        right(step, t, tile, rows_bar)

    monkeypatch.setattr(pipeline._Step, "_convolve_backward", spoilt)
    found = evaluated(jax_evaluator(model), listed)
    expected = evaluated(torch_evaluator(model), listed)
    assert np.abs(found.forces - expected.forces).max() > FORCE
