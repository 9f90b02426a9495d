"""The JAX model against mace-torch and the torch model: energies, forces, virial, derivatives."""

import copy
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax_model_support as support
import numpy as np
import pytest
import torch
from jax_model_support import Evaluator, double_precision, evaluators, jax, jnp, sizes_of
from model_support import (
    MACE,
    assert_same,
    is_wrong,
    learned,
    ours,
    small_twin,
    spec_and_tensors,
    structures,
    truth,
)
from test_model_twins import CELLS, EMBEDDINGS, FAMILIES, OPTIONS, planted

from mace_stream import io
from mace_stream.jax import pad_graph
from mace_stream.spec import INPUT_DEFAULTS
from mace_stream.testing import BACKENDS

QUICK_FAMILIES = {"MP-0a large"}
QUICK_OPTIONS = {"soft_transform", "correlation_4"}


def some(cases, quick):
    """All cases, those that are not ``quick`` with the mark slow."""
    marks = {True: (), False: (pytest.mark.slow,)}
    return [pytest.param(*case, marks=marks[key in quick], id=key) for key, *case in cases]


def compare(source, cells, inputs=None):
    """With mace-torch; and with the torch model, whose constants are folded as ours are."""
    spec, tensors = spec_and_tensors(source)
    used = {item.name: INPUT_DEFAULTS[item.name] for item in spec.inputs} | (inputs or {})
    cells = structures(*cells)
    pairs = evaluators(spec, tensors, cells, inputs=inputs)
    for index, (evaluate, graphs) in enumerate(pairs):
        torch_model = MACE.from_spec(spec, tensors, head=spec.heads[index], inputs=inputs)
        for atoms, graph in zip(cells, graphs, strict=True):
            found = evaluate(graph)
            assert_same(found, truth(source, atoms, index, used))
            assert_same(found, ours(torch_model, atoms), BACKENDS)
        assert evaluate.n_traces == 1


FAMILY_CASES = some([(name, name, override) for name, override in FAMILIES], QUICK_FAMILIES)
OPTION_CASES = some(OPTIONS.items(), QUICK_OPTIONS)


@pytest.mark.parametrize(("name", "override"), FAMILY_CASES)
def test_twin_equals_mace_torch(name, override):
    override = {**override, "heads": ("a",)} if name == "MH-1" else override
    compare(learned(small_twin(name, **{**override, "channels": 4})), CELLS)


@pytest.mark.parametrize("override", OPTION_CASES)
def test_option_equals_mace_torch(override):
    compare(small_twin("MP-0a medium", **override), CELLS[:2])


@pytest.mark.parametrize("embedding", some(EMBEDDINGS.items(), {"continuous"}))
def test_charge_and_spin_equal_mace_torch(embedding):
    source = small_twin("MP-0a small", embedding=embedding, embedding_readout=True, channels=4)
    compare(source, CELLS[:1], {"total_charge": -1.0})


@pytest.mark.slow
def test_chebyshev_equals_the_torch_model():
    # Not mace-torch: torch does not differentiate chebyshev_polynomial_t.
    spec, tensors = spec_and_tensors(small_twin("MP-0b small", channels=2, radial_type="chebyshev"))
    atoms = structures(CELLS[0])
    for evaluate, (graph,) in evaluators(spec, tensors, atoms):
        torch_model = MACE.from_spec(spec, tensors)
        assert_same(evaluate(graph), ours(torch_model, atoms[0]), BACKENDS)


# ---- one model, looked at from all sides ----


class Case:
    """A model, two structures, and what mace-torch says of the first."""

    def __init__(self, name, scale, **override):
        self.source = learned(small_twin(name, channels=4, **override))
        self.spec, self.tensors = spec_and_tensors(self.source)
        self.head = self.spec.heads[0]
        self.atoms = structures("triclinic", "cluster")
        self.atoms[0].positions *= scale
        self.atoms[0].cell *= scale
        self.evaluate, self.graphs = next(evaluators(self.spec, self.tensors, self.atoms))
        self.model, self.graph = self.evaluate.model, self.graphs[0]
        self.truth = truth(self.source, self.atoms[0])


@pytest.fixture(scope="module")
def density():
    return Case("MP-0b3 medium", 0.75)  # close enough for the pair repulsion to count


@pytest.fixture(scope="module")
def gated():
    return Case("MH-1", 1.0, heads=("a", "b"))


PLANTS = {
    "density": [
        *("layers.0.density", "layers.0.skip.1o", "layers.1.skip.0e", "layers.1.linear.2e"),
        *("layers.1.radial.2", "layers.0.product.1o.weight.3", "readouts.1.linear_2"),
        *("layers.0.product.linear.0e", "layers.1.linear_up.1o", "node_embedding.weight"),
        *("atomic_energies", "scale"),
    ],
    "gated": [
        *("layers.0.source_embedding", "layers.1.target_embedding", "layers.0.radial.0"),
        *("layers.1.radial.1.norm.bias", "layers.1.radial.2.bias", "layers.0.alpha"),
        *("layers.1.density.0.norm.weight", "layers.1.beta", "layers.1.linear_1.0e"),
        *("layers.1.residual.1o", "layers.0.linear_2.2e", "layers.1.skip.0e"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "name"), [(k, name) for k, names in PLANTS.items() for name in names]
)
def test_the_comparison_rejects_a_planted_mistake(kind, name, request):
    case = request.getfixturevalue(kind)
    assert not is_wrong(case.evaluate(case.graph), case.truth)
    wrong = support.MACE.from_spec(case.spec, planted(case.tensors, name), head=case.head)
    assert is_wrong(case.evaluate(case.graph, wrong.parameters), case.truth)


def test_all_sizes_share_one_trace(density):
    for graph in density.graphs:
        density.evaluate(graph)
    assert len(density.graphs[0].sender) != len(density.graphs[1].sender)
    assert density.evaluate.n_traces == 1


def test_padding_changes_nothing(density):
    energies, gradient = density.evaluate.raw(density.graph)
    bare = Evaluator(density.model, sizes_of([density.graph]))
    bare.sizes = {"n_edges": len(density.graph.sender), "n_receivers": len(density.graph.species)}
    expected, bare_gradient = bare.raw(density.graph)
    n_nodes = len(expected)
    real = np.linalg.norm(density.evaluate.padded(density.graph)[0], axis=1) < density.spec.r_max
    np.testing.assert_allclose(energies[:n_nodes], expected, rtol=1e-14)
    np.testing.assert_allclose(gradient[real], bare_gradient, atol=1e-14 * np.abs(gradient).max())
    assert not energies[n_nodes:].any()


def test_what_fills_an_edge_up_does_not_matter(density):
    padded = density.evaluate.padded(density.graph)
    pads = np.linalg.norm(padded[0], axis=1) >= density.spec.r_max
    with double_precision():
        expected = density.evaluate.function(density.model.parameters, *padded)
        for filling in (1e300, np.inf, density.spec.r_max):
            vec = np.where(pads[:, None], [filling, 0.0, 0.0], padded[0])
            found = density.evaluate.function(density.model.parameters, vec, *padded[1:])
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(a, b)


def test_atoms_on_top_of_each_other_are_no_padding(density):
    padded = density.evaluate.padded(density.graph)
    for wrong in (0.0, np.nan):
        vec = padded[0].copy()
        vec[np.flatnonzero(np.linalg.norm(vec, axis=1) < density.spec.r_max)[0]] = wrong
        with double_precision():
            (energy, _), _ = density.evaluate.function(density.model.parameters, vec, *padded[1:])
        assert np.isnan(energy)


def torch_product(case, direction):
    """The torch model's second derivative times ``direction`` in the space of edge vectors."""
    model = MACE.from_spec(case.spec, case.tensors, head=case.head)
    leaf = torch.tensor(case.graph.edge_vec, requires_grad=True)
    rest = (torch.tensor(array) for array in case.graph.arguments()[1:])
    energy, _ = model(leaf, *rest)
    (gradient,) = torch.autograd.grad(energy, leaf, create_graph=True)
    (product,) = torch.autograd.grad((gradient * torch.tensor(direction)).sum(), leaf)
    return product.numpy()


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("density", "jvp_of_grad"),
        pytest.param("density", "grad_of_grad", marks=pytest.mark.slow),
        pytest.param("gated", "jvp_of_grad", marks=pytest.mark.slow),
        pytest.param("gated", "grad_of_grad", marks=pytest.mark.slow),
    ],
)
def test_second_derivatives_equal_those_of_torch(kind, mode, request):
    case = request.getfixturevalue(kind)
    padded = case.evaluate.padded(case.graph)
    real = np.linalg.norm(padded[0], axis=1) < case.spec.r_max
    direction = np.random.default_rng(0).normal(size=padded[0].shape)

    def gradient(vec):
        return jax.grad(lambda v: case.model(case.model.parameters, v, *padded[1:])[0])(vec)

    def jvp_of_grad(vec):
        return jax.jvp(gradient, (vec,), (direction,))[1]

    def grad_of_grad(vec):
        return jax.grad(lambda v: jnp.sum(gradient(v) * direction))(vec)

    with double_precision():
        function = jax.jit(locals()[mode], compiler_options=support.QUICK)
        found = np.asarray(function(padded[0]))
    expected = torch_product(case, direction[real])
    assert np.abs(found[real] - expected).max() < 1e-11 * np.abs(expected).max()
    assert not found[~real].any()
    assert np.abs(found[real] - torch_product(case, -direction[real])).max() > 1e-3


def test_vmap_over_structures(gated):
    padded = [gated.evaluate.padded(graph) for graph in gated.graphs]
    stacked = [np.stack(arrays) for arrays in zip(*padded, strict=True)]
    with double_precision():
        model = jax.vmap(gated.model, (None, 0, 0, 0, 0))
        energies = jax.jit(model, compiler_options=support.QUICK)(gated.model.parameters, *stacked)
    for k, graph in enumerate(gated.graphs):
        expected, _ = gated.evaluate.raw(graph)
        np.testing.assert_allclose(np.asarray(energies[1])[k], expected, rtol=1e-13)


@pytest.mark.slow
def test_gradient_by_parameters_is_that_of_differences(density):
    """Of the energy, and of a sum of squared forces as training has it."""
    padded, tree = density.evaluate.padded(density.graph), density.model.parameters
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape) * np.abs(x).mean(), tree)

    def loss(tree):
        energy = lambda vec: density.model(tree, vec, *padded[1:])[0]  # noqa: E731
        value, gradient = jax.value_and_grad(energy)(padded[0])
        return value + jnp.sum(gradient**2)

    def moved(step):
        return jax.tree.map(lambda x, d: x + step * d, tree, direction)

    with double_precision():
        compiled = jax.jit(jax.value_and_grad(loss), compiler_options=support.QUICK)
        _, slopes = compiled(tree)
        slope = sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), slopes, direction)))
        up, down = (float(compiled(moved(step))[0]) for step in (1e-5, -1e-5))
    assert abs((up - down) / 2e-5 - slope) < 1e-6 * abs(slope)
    assert abs(slope) > 0.01


@pytest.mark.slow
def test_float32_errs_at_most_twice_as_much_as_mace_torch(density):
    model = support.MACE.from_spec(density.spec, density.tensors, dtype="float32")
    single = Evaluator(model, density.evaluate.sizes)(density.graph).forces
    yardstick = truth(copy.deepcopy(density.source).float(), density.atoms[0]).forces
    errors = [np.sqrt(((f - density.truth.forces) ** 2).mean()) for f in (single, yardstick)]
    assert 0 < errors[0] <= 2 * errors[1]


# ---- refusals and limits ----


def test_the_configuration_is_left_alone(density):
    before = jax.config.jax_enable_x64
    density.evaluate(density.graph)
    assert jax.config.jax_enable_x64 == before
    assert before or jnp.asarray(1.5).dtype == jnp.float32


def test_single_precision_vectors_are_refused(density):
    with pytest.raises(ValueError, match="edge_vec: expected float64, got float32; call, diff"):
        density.model(density.model.parameters, *density.graph.arguments())


@pytest.mark.slow
def test_elements_that_were_left_out_give_nan(density):
    """And parameters that were folded give the same."""
    model = support.MACE.from_spec(density.spec, density.tensors, elements=[14])
    with double_precision():
        folded = model.fold(model.parameters)
    evaluate = Evaluator(model, density.evaluate.sizes)
    silicon = [replace(graph, species=0 * graph.species) for graph in density.graphs]
    found, expected = evaluate.raw(silicon[1], folded)[0], density.evaluate.raw(silicon[1])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert np.isnan(evaluate.raw(density.graph, folded)[0][: len(silicon[0].species)]).all()
    with pytest.raises(ValueError, match=r"elements: the model knows \(14, 6\), not 8"):
        support.MACE.from_spec(density.spec, density.tensors, elements=[8])


def test_padding_that_is_too_small_is_refused(density):
    arguments = density.graph.arguments()
    n_edges, n_nodes = len(density.graph.sender), len(density.graph.species)
    with pytest.raises(ValueError, match=f"n_edges: expected at least {n_edges}, got 3"):
        pad_graph(*arguments, r_max=3.2, n_edges=3, n_receivers=n_nodes)
    with pytest.raises(ValueError, match=f"n_receivers: expected at least {n_nodes}, got 1"):
        pad_graph(*arguments, r_max=3.2, n_edges=n_edges, n_receivers=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": "b"}, "head: the model has Default; got 'b'; name one of them"),
        ({"inputs": {"total_charge": 1.0}}, "inputs: the model does not take total_charge"),
    ],
)
def test_unknown_names_are_refused(density, change, message):
    with pytest.raises(ValueError, match=message):
        support.MACE.from_spec(density.spec, density.tensors, **change)


def test_no_edges_and_no_nodes(density):
    padded = pad_graph(
        np.zeros((0, 3)), np.zeros(1, int), np.zeros(0, int), np.zeros(0, int),
        r_max=density.spec.r_max, **density.evaluate.sizes,
    )  # fmt: skip
    with double_precision():
        found = density.evaluate.function(density.model.parameters, *padded)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(found))


# ---- the page, and what is imported ----


@pytest.mark.slow
def test_the_example_of_the_page_runs(density, tmp_path, monkeypatch):
    page = (Path(__file__).resolve().parents[2] / "docs" / "jax.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    io.save("ti.mace", density.spec, density.tensors)
    graph = density.graph
    names = ("edge_vec", "indptr", "sender", "species")
    given = dict(zip(names, graph.arguments(), strict=True))
    exec(compile(code, "docs/jax.md", "exec"), given)  # noqa: S102
    expected = density.evaluate.raw(graph)[1]
    assert np.abs(np.asarray(given["edge_grad"])).sum() == pytest.approx(np.abs(expected).sum())


WITHOUT_JAX = """
import sys
sys.modules["jax"] = None
from mace_stream.bridge import describe_error
from mace_stream.bridge.session import load_backend
try:
    load_backend("jax")
except ImportError as error:
    print(describe_error(error))
"""


def test_missing_jax_is_said():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.startswith("mace_stream.jax needs JAX (")
    assert "type: pip install 'mace-stream[jax]'" in done.stdout
