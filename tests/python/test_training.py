"""examples/training: gradients against mace-torch and differences, torch against JAX."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from mace_stream import io
from mace_stream.spec import InputSpec, ModelSpec
from mace_stream.tensors import trainable_names
from mace_stream.torch import conv_derivatives

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "training"
sys.path.insert(0, str(FOLDER))

import fit_torch  # noqa: E402
import titanium  # noqa: E402
from train_titanium import label  # noqa: E402

SAME = 1e-6
"""Largest relative difference of two loss curves; 1e-13 is typical."""
NUMERICAL = 1e-7
"""Largest relative error of a five-point difference here; 1e-9 is typical."""
RATE = 0.02


@pytest.fixture(scope="module")
def task():
    """A student of two channels, and two batches of two structures of four atoms.

    So small a model has messages that matter only if its weights are large.
    """
    spec, tensors = titanium.student(2, 8)
    tensors |= {name: 2 * tensors[name] for name in trainable_names(spec)}
    frames = titanium.structures(4, (1, 2, 1))
    batches = titanium.make_batches(frames, *label(frames), spec.r_max, 2)
    return spec, titanium.with_statistics(tensors, batches), batches


@pytest.fixture(scope="module")
def torch_curve(task):
    return curve(fit_torch.fit, task)


def curve(fit, task, n_epochs: int = 3) -> np.ndarray:
    return np.array([value for value, _ in fit(*task, RATE, n_epochs)])


def gap(found: np.ndarray, expected: np.ndarray) -> float:
    return np.abs(found / expected - 1).max()


# ---- both frameworks ----


def test_jax_and_torch_have_the_same_curve(task, torch_curve, monkeypatch):
    import fit_jax
    from jax_model_support import QUICK, jax

    monkeypatch.setattr(fit_jax.jax, "jit", partial(jax.jit, compiler_options=QUICK))
    assert gap(curve(fit_jax.fit, task), torch_curve) < SAME


def test_loss_falls(task):
    losses = curve(fit_torch.fit, task, 15)
    assert losses[-2:].mean() < 0.5 * losses[:2].mean()


def plant_forgotten_row(patch):
    """The derivative by one row of one tensor is forgotten."""
    start = fit_torch.loss_and_slopes

    def without(*arguments):
        value, slopes = start(*arguments)
        slopes["layers.1.radial.0"][3] = 0
        return value, slopes

    patch.setattr(fit_torch, "loss_and_slopes", without)


def plant_lost_term(patch):
    """The convolution's second derivative without what comes through its nodes."""
    start = conv_derivatives._vjp_of_vjp

    def without(ctx, node_ct, *other_cts):
        return start(ctx, None, *other_cts)

    patch.setattr(conv_derivatives._Backward, "backward", staticmethod(without))


PLANTED = {f.__name__: f for f in (plant_forgotten_row, plant_lost_term)}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_planted_mistake_bends_the_curve(plant, task, torch_curve, monkeypatch):
    plant(monkeypatch)
    assert gap(curve(fit_torch.fit, task), torch_curve) > 10 * SAME


# ---- gradients of the loss ----


def loss_at(task, changed: dict) -> float:
    spec, tensors, batches = task
    model = fit_torch.MACE.from_spec(spec, {**tensors, **changed})
    return fit_torch.loss(model, batches[0]).item()


def slopes_of(spec, tensors, batch) -> dict[str, np.ndarray]:
    names = trainable_names(spec)
    weights = {name: torch.tensor(tensors[name], requires_grad=True) for name in names}
    _, slopes = fit_torch.loss_and_slopes(spec, tensors, weights, batch)
    return {name: slope.numpy() for name, slope in slopes.items()}


@pytest.fixture(scope="module")
def direction(task):
    """Random numbers in the shape of every tensor."""
    random = np.random.default_rng(6)
    spec, tensors, _ = task
    return {name: random.normal(size=tensors[name].shape) for name in trainable_names(spec)}


@pytest.fixture(scope="module")
def numerical(task, direction) -> np.ndarray:
    """Derivative along ``direction``, tensor by tensor, from five points of the loss."""
    step, found = 1e-3, []
    for name, arrow in direction.items():
        values = {
            k: loss_at(task, {name: task[1][name] + k * step * arrow}) for k in (-2, -1, 1, 2)
        }
        found.append((values[-2] - 8 * values[-1] + 8 * values[1] - values[2]) / (12 * step))
    return np.array(found)


def analytic(task, direction) -> np.ndarray:
    spec, tensors, batches = task
    slopes = slopes_of(spec, tensors, batches[0])
    return np.array([(slopes[name] * arrow).sum() for name, arrow in direction.items()])


def test_slopes_are_those_of_the_loss(task, direction, numerical):
    assert gap(analytic(task, direction), numerical) < NUMERICAL


def test_differences_find_a_lost_term(task, direction, numerical, monkeypatch):
    plant_lost_term(monkeypatch)
    assert gap(analytic(task, direction), numerical) > 100 * NUMERICAL


TWINS = ("MP-0a medium", "OMAT-0 medium", "MH-1")


def twin(name: str):
    """A small model of mace-torch, the same as a file holds it, and a batch for it."""
    pytest.importorskip("mace", reason="needs mace-torch: pip install 'mace-stream[test]'")
    from mace_stream.convert.model import read_model
    from mace_stream.testing.twins import tiny

    source = tiny(name, elements=(22,), pair_repulsion=False, heads=("Default",))
    spec, tensors = read_model(source)
    frames = titanium.structures(2, (1, 2, 1))
    random = np.random.default_rng(7)
    labels = random.normal(-20, 1, 2), random.normal(0, 0.5, (2, 4, 3))
    return source, spec, tensors, titanium.make_batches(frames, *labels, spec.r_max, 2)[0]


def assert_same_slopes(found: dict, expected: dict) -> None:
    largest = max(np.abs(slope).max() for slope in found.values())
    for key, slope in found.items():
        np.testing.assert_allclose(slope, expected[key], rtol=1e-9, atol=1e-12 * largest)


@pytest.mark.parametrize("name", TWINS)
def test_slopes_are_those_of_mace_torch(name):
    """mace-torch's gradients, in the place of its weights, are read as a model is."""
    source, spec, tensors, batch = twin(name)
    from mace_stream.convert.model import read_model

    _, expected = read_model(with_slopes(source, batch))
    assert_same_slopes(slopes_of(spec, tensors, batch), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_slopes_of_jax_are_those_of_torch(name):
    import fit_jax
    from jax_model_support import double_precision, jnp

    _, spec, tensors, batch = twin(name)
    with double_precision():
        weights = {key: jnp.asarray(tensors[key]) for key in trainable_names(spec)}
        _, found = fit_jax.compile_loss_and_slopes(spec, tensors)(weights, batch)
    assert_same_slopes(slopes_of(spec, tensors, batch), found)


def with_slopes(source: torch.nn.Module, batch: titanium.Batch) -> torch.nn.Module:
    """A copy of a mace-torch model whose parameters are derivatives of its loss by them."""
    n_atoms, n_structures = len(batch.positions), len(batch.energies)
    data = {
        "positions": batch.positions,
        "node_attrs": np.ones((n_atoms, 1)),
        "edge_index": np.stack([batch.sender, batch.receiver]),
        "shifts": -batch.offset,
        "unit_shifts": np.zeros_like(batch.offset),
        "cell": np.zeros((3 * n_structures, 3)),
        "batch": batch.structure,
        "ptr": np.arange(n_structures + 1) * (n_atoms // n_structures),
    }
    found = source({key: torch.tensor(array) for key, array in data.items()}, training=True)
    per_atom = (found["energy"] - torch.tensor(batch.energies)) / batch.atoms_per_structure
    lack = found["forces"] - torch.tensor(batch.forces)
    ((per_atom**2).mean() + fit_torch.FORCE_WEIGHT * (lack**2).mean()).backward()
    slopes = copy.deepcopy(source)
    for mine, theirs in zip(slopes.parameters(), source.parameters(), strict=True):
        if theirs.grad is not None:
            mine.data = theirs.grad
    return slopes


# ---- what is trained, saved and refused ----


def test_trainable_are_the_parameters_of_mace_torch():
    spec, tensors = io.load(titanium.TEACHER)
    assert sum(tensors[name].size for name in trainable_names(spec)) == 72_848  # its README


def test_trained_tensors_are_a_file(task, tmp_path):
    """What is saved and read again gives the loss that training ended with."""
    spec, _, batches = task
    *_, (_, trained) = fit_torch.fit(*task, RATE, 1)
    io.save(tmp_path / "trained.mace", spec, trained)
    model = fit_torch.MACE.from_file(tmp_path / "trained.mace")
    assert fit_torch.loss(model, batches[0]).item() == loss_at(task, trained)
    assert loss_at(task, trained) != loss_at(task, {})


def test_constants_are_refused(task):
    spec, tensors, _ = task
    for name in ("scale", "layers.0.avg_num_neighbors", "radial.bessel.prefactor"):
        leaf = torch.tensor(tensors[name], requires_grad=True)
        with pytest.raises(ValueError, match=f"tensor {name}: a constant.*trainable_names lists"):
            fit_torch.MACE.from_spec(spec, {**tensors, name: leaf})


def test_models_that_are_not_ready_are_refused(task):
    spec: ModelSpec = task[0]
    charge = InputSpec("total_charge", "categorical", 4, 3, 1, has_bias=False)
    with pytest.raises(ValueError, match="one that takes total_charge; train it with mace-torch"):
        trainable_names(replace(spec, inputs=(charge,)))


# ---- the programs ----


@pytest.mark.slow
def test_memory_is_measured():
    """Less with the operator than with messages of all edges in memory."""
    command = [sys.executable, FOLDER / "memory.py", "--frameworks", "torch"]
    command += ["--repeat", "2", "2", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split("  ") for line in done.stdout.splitlines()]
    peaks = {(row[4], row[7]): float(row[8]) for row in rows}
    assert len(peaks) == 8
    assert 0 < peaks["streaming", "training"] < 0.8 * peaks["plain", "training"]


# ---- docs/training.md ----


def programs() -> list[str]:
    page = (FOLDER.parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def run_program(source: str, folder: Path) -> dict[str, np.ndarray]:
    """What it calls ``slopes``."""
    found: dict = {}
    source = source.replace('"softer.mace"', f"{str(folder / 'softer.mace')!r}")
    exec(source.replace('"examples/', f'"{FOLDER.parents[1]}/examples/'), found)  # noqa: S102
    return {name: np.array(slope) for name, slope in found["slopes"].items()}


def test_first_program_of_the_page(tmp_path):
    """A loss on the forces of three atoms has a derivative by every tensor."""
    slopes = run_program(programs()[0], tmp_path)
    assert len(slopes) == len(trainable_names(io.load(tmp_path / "softer.mace")[0]))
    assert all(np.isfinite(slope).all() for slope in slopes.values())


@pytest.mark.slow
def test_programs_of_the_page_agree(tmp_path):
    pytest.importorskip("jax", reason="needs JAX: pip install 'mace-stream[jax]'")
    expected, found = (run_program(source, tmp_path) for source in programs())
    for name, slope in expected.items():
        np.testing.assert_allclose(found[name], slope, atol=1e-12 * np.abs(slope).max())
