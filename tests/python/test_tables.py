"""Radial tables and harmonics as polynomials, against exact functions evaluated apart."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from model_support import learned, small_twin, spec_and_tensors

from mace_stream.couplings import spherical_harmonics
from mace_stream.reference import radial
from mace_stream.tables import (
    RadialGrid,
    TableError,
    Tabulated,
    building,
    harmonic_gradients,
    harmonic_polynomials,
    hermite_coefficients,
    refine,
)
from mace_stream.tables.grid import measure
from mace_stream.torch import MACE
from mace_stream.torch.inference.tables import build_tables

STEP = 1e-100
ACTIVATIONS = {"silu": lambda x: x / (1 + np.exp(-x)), "tanh": np.tanh, "none": lambda x: x}


# ---- exact functions of the distance, in NumPy ----


def exact(spec, tensors, r, sender, receiver):
    """Hidden features, path weights and density of every layer, as functions of complex r."""
    arrays = {name: np.asarray(t, dtype=np.float64) for name, t in tensors.items()}
    z = [np.full(len(r), spec.elements[s]) for s in (sender, receiver)]
    basis, cutoff = radial.features(spec, arrays, r, *z)
    feats, late = (basis * cutoff, 1.0) if spec.apply_cutoff else (basis, cutoff)
    found = {}
    for t, layer in enumerate(spec.layers):
        if layer.block == "NL":
            found |= gated(spec, arrays, t, feats, late, sender, receiver)
            continue
        hidden = network(layer, arrays, t, feats, len(layer.radial_widths) - 2)
        last = arrays[f"layers.{t}.radial.{len(layer.radial_widths) - 2}"] / np.sqrt(
            hidden.shape[1]
        )
        scale = 1.0 if len(layer.radial_widths) == 2 else layer.radial_activation_scale
        weights = (scale * hidden @ last).reshape(len(r), len(layer.paths), -1)
        avg = arrays.get(f"layers.{t}.avg_num_neighbors", 1.0)
        found[f"conv {t}"] = weights / avg * np.reshape(late, (-1, 1, 1))
        if t == 0:
            found["hidden"] = (late * hidden)[:, None]
        if f"layers.{t}.density" in arrays:
            g = feats @ arrays[f"layers.{t}.density"] / np.sqrt(feats.shape[1])
            found[f"density {t}"] = (late * np.tanh(g**2))[:, None]
    return found


def gated(spec, arrays, t, feats, cutoff, sender, receiver):
    """The same of block NL; the last bias belongs to one more hidden feature, which is 1."""
    mine = {k.removeprefix(f"layers.{t}."): a for k, a in arrays.items()}
    species = [
        np.tile(mine[f"{end}_embedding"][index] / np.sqrt(len(spec.elements)), (len(feats), 1))
        for end, index in (("source", sender), ("target", receiver))
    ]
    x = np.concatenate([feats, *species], axis=1)
    weights = radial.normalized_network(mine, "radial", x)
    g = radial.normalized_network(mine, "density", x)
    last = len(spec.layers[t].radial_widths) - 2
    headless = {k: a for k, a in mine.items() if not k.startswith(f"radial.{last}")}
    width = spec.layers[t].radial_widths[-2]
    headless |= {f"radial.{last}": np.eye(width), f"radial.{last}.bias": np.zeros(width)}
    hidden = radial.normalized_network(headless, "radial", x)
    hidden = np.concatenate([hidden, np.ones_like(hidden[:, :1])], axis=1)
    found = {
        f"conv {t}": (cutoff * weights).reshape(len(x), len(spec.layers[t].paths), -1),
        f"density {t}": (mine["beta"] / mine["alpha"] * cutoff * np.tanh(g**2))[:, None],
    }
    return found | ({"hidden": (cutoff * hidden)[:, None]} if t == 0 else {})


def network(layer, arrays, t, x, n_products):
    """Features after ``n_products`` products and activations, without the last one's scale."""
    for k in range(n_products):
        scale = layer.radial_activation_scale if k > 0 else 1.0
        x = scale * x @ arrays[f"layers.{t}.radial.{k}"] / np.sqrt(x.shape[1])
        x = ACTIVATIONS[layer.radial_activation](x)
    return x


def tabulated(tables, pair, r):
    """The same from the tables: value and derivative of pair number ``pair``."""
    kinds = {"hidden": tables.hidden[:, None]}
    kinds |= {f"conv {t}": c for t, c in enumerate(tables.convs) if c is not None}
    kinds |= {
        f"density {t}": d[:, None, :, None] for t, d in enumerate(tables.densities) if d is not None
    }
    return {name: evaluate(tables.grid, table, pair, r) for name, table in kinds.items()}


def evaluate(grid, table, pair, r):
    place = (r - grid.r_0) / grid.h
    knot = np.minimum(place.astype(int), grid.n_knots - 1)
    t = place - knot
    coefficients = np.moveaxis(table[pair * grid.n_knots + knot], -2, 0)
    polynomial = np.polynomial.polynomial
    t = t[:, None, None]
    value = polynomial.polyval(t, coefficients, tensor=False)
    slope = polynomial.polyval(t, polynomial.polyder(coefficients), tensor=False) / grid.h
    return value, slope


def worst_error(spec, tensors, tables, species, seed=0):
    """Largest relative error of value and slope over all pairs, at random distances."""
    grid = tables.grid
    r = np.random.default_rng(seed).uniform(grid.r_0, grid.r_max, 20 * grid.n_knots)
    worst = np.zeros(2)
    for pair in range(len(species) ** 2):
        receiver, sender = species[pair // len(species)], species[pair % len(species)]
        truth = exact(spec, tensors, r + 1j * STEP, sender, receiver)
        for name, found in tabulated(tables, pair, r).items():
            for k, part in enumerate((truth[name].real, truth[name].imag / STEP)):
                error = np.abs(found[k] - part).max(axis=(0, 2)) / np.abs(part).max(axis=(0, 2))
                worst[k] = max(worst[k], error.max())
    return worst


TWINS = {
    "bessel": ("MP-0a small", {}),
    "bessel_agnesi_density": ("OMAT-0 medium", {"channels": 4}),
    "gaussian": ("MP-0a small", {"radial_type": "gaussian"}),
    "gaussian_soft": ("MP-0a small", {"radial_type": "gaussian", "distance_transform": "Soft"}),
    "bessel_soft": ("MP-0b small", {"distance_transform": "Soft"}),
    "chebyshev_agnesi": ("MP-0b2 small", {"radial_type": "chebyshev"}),
    "chebyshev": ("MP-0a small", {"radial_type": "chebyshev", "num_bessel": 4}),
    "three_layers": ("MP-0b2 small", {"num_interactions": 3}),
    "cutoff_p_2": ("MP-0a small", {"p": 2}),
    "cutoff_p_8": ("OFF23 small", {"p": 8, "elements": (6, 1)}),
    "late_cutoff": ("OMAT-0 small", {"apply_cutoff": False}),
    "gated": ("MH-1", {"heads": ("a",)}),
    "no_hidden_layer": ("MP-0a small", {"radial_mlp": ()}),
}


@cache
def twin(name):
    base, override = TWINS[name]
    source = small_twin(base, **{"channels": 4, **override})
    return spec_and_tensors(learned(source) if base == "MH-1" else source)


def tables_of(name, species=(1, 0), n_coef=6, bound=1e-6):
    spec, tensors = twin(name)
    return spec, tensors, build_tables(MACE.from_spec(spec, tensors), species, n_coef, bound)


@pytest.mark.parametrize(
    ("name", "n_coef", "bound"),
    [(name, 6, 1e-6) for name in TWINS]
    + [("bessel_agnesi_density", 4, 1e-5), ("bessel_agnesi_density", 6, 1e-9)],
)
def test_errors_are_within_the_bound_and_as_reported(name, n_coef, bound):
    spec, tensors, tables = tables_of(name, (1, 0), n_coef, bound)
    reported = np.array([tables.value_error, tables.slope_error])
    assert (reported <= bound).all()
    found = worst_error(spec, tensors, tables, (1, 0))
    assert (found <= 1.05 * reported + 1e-13).all()
    assert (found >= 0.8 * reported - 1e-13).all()
    assert f"{reported[1]:.1e}" in tables.text
    assert f"{tables.grid.n_knots} intervals" in tables.text


@pytest.fixture(scope="module")
def density():
    return tables_of("bessel_agnesi_density")


def test_a_planted_mistake_is_seen(density):
    spec, tensors, tables = density
    bound = 1.05 * np.array([tables.value_error, tables.slope_error])
    rows = 2 * tables.grid.n_knots + 7
    wrong = tables.convs[1].copy()
    wrong[rows, 3, 1] += 1e-4 * np.abs(wrong[..., 0, :]).max()
    spoiled = replace(tables, convs=[None, wrong])
    assert (worst_error(spec, tensors, spoiled, (1, 0)) > bound).all()
    assert (worst_error(spec, tensors, tables, (0, 1)) > bound).all()  # pairs the wrong way round


def test_sender_and_receiver_are_told_apart_where_the_network_reads_both():
    spec, tensors, tables = tables_of("gated")
    bound = 1.05 * np.array([tables.value_error, tables.slope_error])
    by_pair = tables.convs[1].reshape(2, 2, tables.grid.n_knots, *tables.convs[1].shape[1:])
    turned = by_pair.swapaxes(0, 1).reshape(tables.convs[1].shape)
    spoiled = replace(tables, convs=[None, turned])
    assert (worst_error(spec, tensors, spoiled, (1, 0)) > bound).all()


def ends_of(table, h):
    """Value, slope and second derivative at both ends of every interval; coefficients first."""
    polynomial = np.polynomial.polynomial
    for k in range(3):
        derivative = polynomial.polyder(table, k) / h**k
        yield polynomial.polyval(0.0, derivative), polynomial.polyval(1.0, derivative)


@pytest.mark.parametrize(("n_coef", "n_smooth"), [(4, 2), (6, 3)])
def test_derivatives_are_continuous_and_vanish_at_the_cutoff(n_coef, n_smooth):
    _, _, tables = tables_of("bessel_agnesi_density", (0, 1), n_coef, 1e-4)
    grid = tables.grid
    for table, axis in ((tables.hidden, 1), (tables.convs[1], 2), (tables.densities[1], 1)):
        by_pair = np.moveaxis(table, axis, 0).reshape(n_coef, 4, grid.n_knots, -1)
        for k, (left, right) in enumerate(ends_of(by_pair, grid.h)):
            largest = np.abs(left).max()
            jump = np.abs(right[:, :-1] - left[:, 1:]).max()
            last = np.abs(right[:, -1]).max()
            if k < n_smooth:
                assert jump < 1e-11 * largest
                assert last < 1e-11 * largest
            else:
                assert jump > 1e-5 * largest


@pytest.mark.parametrize("p", [1, 2, 5])
def test_tables_approach_the_cutoff_as_the_network_does(p):
    spec, tensors = spec_and_tensors(small_twin("MP-0a small", channels=4, p=p))
    tables = build_tables(MACE.from_spec(spec, tensors), (0,), 6, 1e-6)
    near = spec.r_max - np.array([1e-2, 1e-3, 1e-4])
    truth = exact(spec, tensors, near + 1j * STEP, 0, 0)["conv 1"]
    value, slope = tabulated(tables, 0, near)["conv 1"]
    scale = np.abs(tables.convs[1][..., 0, :]).max()
    assert np.abs(value - truth.real).max() < 1e-6 * scale
    assert np.abs(slope - truth.imag / STEP).max() < 1e-6 * scale
    assert np.abs(value[2]).max() < 1e-10 * scale  # third order zero


@pytest.mark.parametrize("activation", ["tanh", "none"])
def test_other_activations_of_the_radial_network(activation):
    spec, tensors = twin("bessel")
    layers = tuple(replace(layer, radial_activation=activation) for layer in spec.layers)
    spec = replace(spec, layers=layers)
    tables = build_tables(MACE.from_spec(spec, tensors), (0,), 6, 1e-6)
    assert worst_error(spec, tensors, tables, (0,)).max() < 1.05e-6
    assert np.abs(tables.hidden[-1].sum(axis=0)).max() < 1e-14


def test_a_network_with_kinks_names_the_exact_path():
    spec, tensors = twin("bessel")
    layers = tuple(replace(layer, radial_activation="abs") for layer in spec.layers)
    model = MACE.from_spec(replace(spec, layers=layers), tensors)
    with pytest.raises(ValueError, match=r"hidden features of elements 14 and 14.*radial exact"):
        build_tables(model, (0,), 6, 1e-6)


def test_single_precision_models_are_refused():
    spec, tensors = twin("bessel")
    with pytest.raises(ValueError, match=r"float64, got torch\.float32"):
        build_tables(MACE.from_spec(spec, tensors, dtype=torch.float32), (0,), 6, 1e-6)


def test_r_0_moves_the_grid():
    spec, tensors = twin("bessel_agnesi_density")
    tables = build_tables(MACE.from_spec(spec, tensors), (0, 1), 6, 1e-6, r_0=0.3)
    assert tables.grid.r_0 == 0.3
    assert worst_error(spec, tensors, tables, (0, 1)).max() < 1.05e-6


# ---- grids and Hermite polynomials ----


@pytest.mark.parametrize("order", [1, 2])
def test_hermite_interpolation_reproduces_polynomials(order):
    rng = np.random.default_rng(0)
    polynomial = np.polynomial.Polynomial(rng.normal(size=2 * order + 2))
    grid = RadialGrid(0.5, 3.0, 7)
    derivatives = [
        polynomial.deriv(k)(grid.knots) if k else polynomial(grid.knots) for k in range(order + 1)
    ]
    coefficients = hermite_coefficients(derivatives, grid.h)
    assert coefficients.shape == (7, 2 * order + 2)
    for t in (0.0, 0.3, 0.9):
        found = np.polynomial.polynomial.polyval(t, coefficients.T)
        assert found == pytest.approx(polynomial(grid.knots[:-1] + t * grid.h), rel=1e-12)


def test_the_grid_ends_at_the_cutoff_exactly():
    for n_knots in (48, 96, 1280):
        grid = RadialGrid(0.5, 5.1, n_knots)
        assert grid.knots[-1] == 5.1
        assert grid.h * grid.inverse_step == pytest.approx(1, rel=1e-15)


def smooth(r, order, k=40):
    """``(r_max - r)^3 sin(k r)`` with r_max = 3: one family of one function."""
    jet = [np.polynomial.Polynomial([3, -1]) ** 3]
    jet += [jet[0].deriv(1), jet[0].deriv(2)]
    cut = [p(r) for p in jet]
    sine = [np.sin(k * r), k * np.cos(k * r), -k * k * np.sin(k * r)]
    product = [
        cut[0] * sine[0],
        cut[1] * sine[0] + cut[0] * sine[1],
        cut[2] * sine[0] + 2 * cut[1] * sine[1] + cut[0] * sine[2],
    ]
    return [p[:, None, None] for p in product[: order + 1]]


@pytest.mark.parametrize(("order", "bound"), [(1, 1e-4), (2, 1e-6), (2, 1e-10)])
def test_the_grid_is_as_coarse_as_the_bound_allows(order, bound):
    fine = refine({"sine": Tabulated(smooth)}, 3.0, order, bound)
    assert max(fine.value_error, fine.slope_error) <= bound
    coarse = refine({"sine": Tabulated(smooth)}, 3.0, order, 20 * bound)
    assert coarse.grid.n_knots < fine.grid.n_knots
    assert max(coarse.value_error, coarse.slope_error) > bound


def test_a_grid_that_is_never_fine_enough():
    def noise(r, order):
        return [np.sin(1e6 * r)[:, None, None] * (1e6) ** k for k in range(order + 1)]

    with pytest.raises(
        ValueError, match=r"noise has a relative error.*4096 intervals.*radial exact"
    ):
        refine({"sine": Tabulated(smooth), "noise": Tabulated(noise)}, 3.0, 2, 1e-6)


def test_errors_are_those_of_what_is_read():
    """Of a slow and a fast function: each alone, both, and one drowned in the other."""

    def two(r, order):
        parts = zip(smooth(r, order, k=4), smooth(r, order), strict=True)
        return [np.concatenate(pair, axis=2) for pair in parts]

    grid, unit = RadialGrid(0.5, 3.0, 64), np.eye(2)
    slow, fast = (measure(Tabulated(two, unit[:, None, k : k + 1]), grid, 2) for k in (0, 1))
    assert (slow < 1e-3 * fast).all()
    assert measure(Tabulated(two, unit[:, :, None]), grid, 2) == pytest.approx(fast, rel=1e-9)
    drowned = measure(Tabulated(two, np.array([[[1e6]], [[1.0]]])), grid, 2)
    assert (drowned < 1e-3 * fast).all()
    assert measure(Tabulated(smooth), grid, 2) == pytest.approx(fast, rel=1e-9)


def test_a_function_without_numbers_is_never_fine_enough():
    def nothing(r, order):
        return [np.full((len(r), 1, 1), np.nan)] * (order + 1)

    with pytest.raises(ValueError, match="radial exact"):
        refine({"nan": Tabulated(nothing)}, 3.0, 2, 1)


# ---- harmonics ----


def polynomial_at(terms, x, y, z):
    return sum((c * x**a * y**b * z**d for (a, b, d), c in terms.items()), np.zeros_like(x))


@pytest.mark.parametrize("l_max", [0, 1, 3, 5])
def test_polynomials_are_the_harmonics_off_the_sphere_too(l_max):
    xyz = np.random.default_rng(1).normal(size=(3, 20))
    for terms, expected in zip(
        harmonic_polynomials(l_max), spherical_harmonics(*xyz, l_max), strict=True
    ):
        assert polynomial_at(terms, *xyz) == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert 0 not in terms.values()


def test_gradients_of_harmonics_are_central_differences():
    xyz, h = np.random.default_rng(2).normal(size=(3, 20)), 1e-5
    gradients = harmonic_gradients(4)
    for axis, step in enumerate(h * np.eye(3)):
        above = spherical_harmonics(*(xyz + step[:, None]), 4)
        below = spherical_harmonics(*(xyz - step[:, None]), 4)
        for gradient, up, down in zip(gradients, above, below, strict=True):
            found = polynomial_at(gradient[axis], *xyz)
            assert found == pytest.approx((up - down) / (2 * h), rel=1e-6, abs=1e-6)
    assert gradients[0] == ({}, {}, {})


def test_tables_that_would_not_fit_are_refused(monkeypatch):
    spec, tensors = spec_and_tensors(small_twin("MP-0a medium"))
    model = MACE.from_spec(spec, tensors)
    size = build_tables(model, (0,), 6, 1e-6).convs[1].nbytes
    monkeypatch.setattr(building, "MAX_BYTES", size)
    build_tables(model, (0,), 6, 1e-6)
    monkeypatch.setattr(building, "MAX_BYTES", size - 1)
    with pytest.raises(TableError, match="radial exact"):
        build_tables(model, (0,), 6, 1e-6)
