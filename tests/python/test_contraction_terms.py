"""Contraction terms against the torch model's contraction, and mace-torch's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from model_support import MACE, small_twin, spec_and_tensors

from mace_stream.couplings import FeatureLayout
from mace_stream.kernels.inference import Setup
from mace_stream.reference import ReferencePasses
from mace_stream.tables import contraction_terms
from mace_stream.torch.linear import SpeciesGroups

N = 12
CASES = {
    "degree_1": {"correlation": 1},
    "degree_2": {"correlation": 2},
    "degree_3": {},
    "degree_3_three_outputs": {"hidden": "4x0e+4x1o+4x2e"},
    "degree_4": {"correlation": 4, "max_ell": 1, "channels": 2},
    "degree_4_l_2": {"correlation": 4, "max_ell": 2, "channels": 2},
    "three_elements": {"elements": (14, 6, 22)},
}


def terms_of(spec, tensors, t, species):
    return contraction_terms(spec.layers[t], tensors, f"layers.{t}.product.", species)


def evaluate(contraction, coefs, species, message):
    """Polynomials at messages [n, dim, C]; ``species`` count the elements that are present."""
    setup = Setup("float64", len(coefs), 0, 0, 0.5, 1.0, 1, 6, 1, (None,), (contraction,))
    out = ReferencePasses(setup).contract(
        0, (0, len(message)), species, coefs, message.transpose(1, 0, 2)
    )
    return out.transpose(1, 0, 2)


def messages(spec, t, n_present, seed=0):
    """Random messages and species of nodes."""
    layout = FeatureLayout.parse(spec.layers[t].irreps_message)
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, layout.dim, layout.channels)), rng.integers(n_present, size=N)


def mace_contraction(source, t, message, elements, layout_out):
    """mace-torch's own result, [n, dim_out, C]."""
    attrs = torch.eye(len(source.atomic_numbers), dtype=torch.float64)[torch.tensor(elements)]
    module = source.products[t].symmetric_contractions
    flat = module(torch.tensor(message.transpose(0, 2, 1)), attrs).detach().numpy()
    parts, start = [], 0
    for irrep in layout_out.irreps:
        stop = start + irrep.dim * layout_out.channels
        parts.append(flat[:, start:stop].reshape(N, layout_out.channels, irrep.dim))
        start = stop
    return np.concatenate(parts, axis=2).transpose(0, 2, 1)


@pytest.mark.parametrize("name", CASES)
def test_terms_are_the_contraction(name):
    source = small_twin("MP-0a medium", **{"channels": 4, **CASES[name]})
    spec, tensors = spec_and_tensors(source)
    model = MACE.from_spec(spec, tensors)
    present = tuple(range(len(spec.elements)))[::-1][:2]
    for t, layer in enumerate(spec.layers):
        message, species = messages(spec, t, len(present))
        elements = np.array(present)[species]
        actual = evaluate(*terms_of(spec, tensors, t, present), species, message)
        groups = SpeciesGroups.build(torch.tensor(elements), len(spec.elements))
        ours = model.products[t].contraction(torch.tensor(message), groups).numpy()
        theirs = mace_contraction(
            source, t, message, elements, FeatureLayout.parse(layer.irreps_out)
        )
        scale = np.abs(theirs).max()
        assert np.abs(actual - ours).max() < 1e-13 * scale
        assert np.abs(actual - theirs).max() < 1e-12 * scale
        wrong = evaluate(*terms_of(spec, tensors, t, present[::-1]), species, message)
        assert np.abs(wrong - theirs).max() > 1e-2 * scale


@pytest.fixture(scope="module")
def medium():
    return spec_and_tensors(small_twin("OMAT-0 medium"))


def test_terms_of_a_medium_model(medium):
    """Per output row and degree: 12 cubic couplings of 290 cancel between permutations."""
    contraction, coefs = terms_of(*medium, 0, (0, 1))
    degree = (contraction.terms[:, 1:] >= 0).sum(axis=1)
    counts = [np.bincount(degree[contraction.terms[:, 0] == row]).tolist()[1:] for row in range(4)]
    assert counts == [[1, 16, 77], [1, 13, 98], [1, 9, 82], [1, 13, 98]]
    assert (contraction.dim, contraction.dim_out) == (16, 4)
    assert coefs.shape == (2, 410, 8)
    assert contraction.terms.dtype == np.int32
    assert coefs.dtype == np.float64


def test_terms_are_sorted_and_unique(medium):
    contraction, _ = terms_of(*medium, 0, (0, 1))
    rows = contraction.terms.tolist()
    assert rows == sorted(rows)
    assert len({tuple(row) for row in rows}) == len(rows)
    for row in rows:
        factors = [factor for factor in row[1:] if factor >= 0]
        assert factors == sorted(factors) == row[1 : 1 + len(factors)]


def test_a_file_in_single_precision_has_the_same_terms(medium):
    spec, tensors = medium
    single = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in tensors.items()}
    exact, coefs = terms_of(spec, tensors, 0, (0, 1))
    rounded, coefs_32 = terms_of(spec, single, 0, (0, 1))
    assert np.array_equal(exact.terms, rounded.terms)
    assert np.abs(coefs - coefs_32).max() < 1e-6 * np.abs(coefs).max()


def test_weights_without_elements_serve_all(medium):
    spec, tensors = medium
    shared = {n: a[1:] if ".product." in n and ".weight." in n else a for n, a in tensors.items()}
    contraction, coefs = terms_of(spec, shared, 0, (0, 1))
    alone, expected = terms_of(spec, tensors, 0, (1,))
    assert np.array_equal(contraction.terms, alone.terms)
    assert np.array_equal(coefs, np.concatenate([expected, expected]))


def test_a_planted_mistake_is_seen(medium):
    spec, tensors = medium
    contraction, coefs = terms_of(spec, tensors, 0, (0,))
    message, species = messages(spec, 0, 1)
    right = evaluate(contraction, coefs, species, message)
    terms = contraction.terms.copy()
    terms[100, 1] += 1
    wrong = evaluate(replace(contraction, terms=terms), coefs, species, message)
    assert np.abs(wrong - right).max() > 1e-6 * np.abs(right).max()
