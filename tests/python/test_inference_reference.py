"""Energies and gradients assembled from the oracle's passes, against the torch model."""

import numpy as np
import pytest
from inference_support import Assembly, Step, edge_arguments, neighbors_of
from model_support import edge_gradient, small_twin, spec_and_tensors, structures

BOUND = 1e-10
"""Of the tables: as for `precision double`. Ten times as much is allowed of what follows."""

CASES = {
    "RR": ("MP-0a medium", {"channels": 4}),
    "RR_17_paths": ("MP-0a large", {"channels": 2}),
    "R_then_RR_zbl": ("MP-0b medium", {"channels": 4}),
    "R_and_R": ("MP-0b medium", {"channels": 3, "rest": "RealAgnosticInteractionBlock"}),
    "D_then_DR": ("MP-0b2 medium", {"channels": 4}),
    "D_and_D": ("OMAT-0 medium", {"channels": 3, "rest": "RealAgnosticDensityInteractionBlock"}),
    "scalars_only": ("OMAT-0 small", {"channels": 4}),
    "three_layers": ("OMAT-0 medium", {"channels": 2, "num_interactions": 3}),
    "one_layer": ("MP-0a medium", {"channels": 4, "num_interactions": 1}),
    "two_heads": ("MH-0", {"channels": 2, "heads": ("a", "b")}),
    "correlation_4": ("MP-0a medium", {"correlation": 4, "max_ell": 1, "channels": 2}),
    "l_max_1": ("MP-0b3 medium", {"max_ell": 1, "channels": 4}),
    "fewer_edge_channels": ("MP-0a medium", {"edge": "2x0e+2x1o"}),
    "last_layer_keeps_its_irreps": (
        "MP-0a medium",
        {"keep_last_layer_irreps": True, "channels": 2},
    ),
}


def errors(assembly, nodes, x, real):
    """Largest errors of the nodes' interaction energies and of dE/d(edge_vec), both relative."""
    step = Step(assembly, nodes, x)
    arguments, slots = edge_arguments(nodes, step.edges, assembly.present)
    energy, gradient = edge_gradient(assembly.model, *arguments)
    energy -= assembly.model.atomic_energies.numpy()[arguments[3]] + assembly.model.shift
    actual = step.energy.detach().numpy() - assembly.model.shift
    assert np.isinf(step.closest)
    return [
        np.abs(actual - energy)[real].max() / np.abs(energy[real]).max(),
        np.abs(step.edges.grad[slots] - gradient).max() / np.abs(gradient).max(),
    ]


@pytest.mark.parametrize("name", CASES)
def test_passes_give_the_torch_model(name):
    twin, override = CASES[name]
    spec, tensors = spec_and_tensors(small_twin(twin, **override))
    assembly = Assembly.build(spec, tensors, (0, 1), bound=BOUND, head=spec.heads[-1])
    for atoms in structures("triclinic", "cluster"):
        found = errors(assembly, *neighbors_of(atoms, spec.elements, spec.r_max))
        print("DIFF", name, found, assembly.tables.text)
        assert max(found) < 10 * BOUND
