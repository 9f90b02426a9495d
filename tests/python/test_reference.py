"""The NumPy oracle against mace-torch, its gradient against central differences, and torch."""

import numpy as np
import pytest
from model_support import (
    MACE,
    edge_gradient,
    graph_of,
    small_twin,
    spec_and_tensors,
    structures,
)
from model_support import truth as mace_torch

from mace_stream import reference
from mace_stream.spec import INPUT_DEFAULTS

CASES = {
    "residual": ("MP-0a large", {"r_max": 2.6, "channels": 2}),
    "agnostic_zbl": ("MP-0b medium", {"r_max": 2.6, "channels": 2}),
    "density": ("MP-0b2 medium", {"r_max": 2.6, "channels": 2}),
    "two_heads": ("MH-0", {"r_max": 2.6, "channels": 2, "heads": ("a", "b")}),
    "soft_gaussian": (
        "MP-0a small",
        {"r_max": 2.6, "distance_transform": "Soft", "radial_type": "gaussian"},
    ),
    # With the transform, as the polynomials of a bare distance in Å grow without bound.
    "chebyshev": ("MP-0b small", {"r_max": 2.6, "channels": 2, "radial_type": "chebyshev"}),
    "three_layers": ("MP-0a medium", {"r_max": 2.2, "channels": 1, "num_interactions": 3}),
    "gated": ("MH-1", {"r_max": 2.6, "channels": 2, "heads": ("a", "b")}),
    "gated_three_layers": ("OMOL-0", {"r_max": 2.2, "channels": 1}),
    "late_cutoff": ("OMAT-0 small", {"r_max": 2.6, "channels": 2, "apply_cutoff": False}),
    "correlation_4": ("MP-0a small", {"r_max": 2.6, "channels": 2, "correlation": 4, "max_ell": 1}),
}


def case(name, structure="cluster"):
    twin, override = CASES[name]
    source = small_twin(twin, **override)
    spec, tensors = spec_and_tensors(source)
    atoms = structures(structure)[0]
    return source, spec, tensors, atoms, graph_of(atoms, spec.elements, spec.r_max)


@pytest.mark.parametrize("name", CASES)
def test_oracle_equals_mace_torch_and_the_torch_model(name):
    source, spec, tensors, atoms, graph = case(name)
    direction = np.random.default_rng(0).normal(size=graph.edge_vec.shape)
    for index, head in enumerate(spec.heads):
        inputs = {item.name: INPUT_DEFAULTS[item.name] for item in spec.inputs}
        chosen = {"head": head, "inputs": inputs}
        energy = reference.node_energy(spec, tensors, *graph.arguments(), **chosen)
        truth = mace_torch(source, atoms, index, inputs)
        assert np.abs(energy - truth.node_energy).max() < 1e-11
        slope = reference.directional_derivative(
            spec, tensors, *graph.arguments(), direction, **chosen
        )
        torch_energy, gradient = edge_gradient(
            MACE.from_spec(spec, tensors, head=head), *graph.arguments()
        )
        assert np.abs(torch_energy - energy).max() < 1e-11
        assert slope == pytest.approx((gradient * direction).sum(), rel=1e-10, abs=1e-12)


def difference(spec, tensors, graph, direction, step=1e-4):
    """Fourth-order central difference of the energy along ``direction``."""
    total = 0.0
    for multiple, weight in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
        vec = graph.edge_vec + multiple * step * direction
        energy = reference.node_energy(spec, tensors, vec, *graph.arguments()[1:])
        total += weight * energy.sum()
    return total / (12 * step)


def test_gradient_equals_central_differences():
    _, spec, tensors, _, graph = case("density")
    direction = np.random.default_rng(1).normal(size=graph.edge_vec.shape)
    exact = reference.directional_derivative(spec, tensors, *graph.arguments(), direction)
    assert difference(spec, tensors, graph, direction) == pytest.approx(exact, rel=1e-7)
    assert difference(spec, tensors, graph, -direction) != pytest.approx(exact, rel=1e-2)


def test_edge_gradient_collects_directional_derivatives():
    _, spec, tensors, _, graph = case("soft_gaussian", "dimer")
    gradient = reference.edge_gradient(spec, tensors, *graph.arguments())
    direction = np.random.default_rng(2).normal(size=gradient.shape)
    along = reference.directional_derivative(spec, tensors, *graph.arguments(), direction)
    assert along == pytest.approx((gradient * direction).sum(), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "factor"), [("layers.1.w3j.1o.1.2e", -1), ("layers.0.radial.1", 1.00001)]
)
def test_a_planted_mistake_is_seen(name, factor):
    source, spec, tensors, atoms, graph = case("density")
    broken = tensors | {name: factor * tensors[name]}
    energy = reference.node_energy(spec, broken, *graph.arguments())
    assert np.abs(energy - mace_torch(source, atoms).node_energy).max() > 1e-11
