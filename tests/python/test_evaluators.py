"""Which evaluator serves a model, and what is checked of what it returns."""

from dataclasses import replace

import numpy as np
import pytest
from model_support import small_twin, spec_and_tensors

from mace_stream.bridge import check_options
from mace_stream.evaluation import Evaluation, check_finite
from mace_stream.tables import building
from mace_stream.torch.evaluator import TorchEvaluator
from mace_stream.torch.evaluators import choose_evaluator
from mace_stream.torch.inference.evaluator import InferenceEvaluator


@pytest.fixture(scope="module")
def model():
    return spec_and_tensors(small_twin("MP-0a medium"))


def choose(model, *words):
    options = check_options(["device", "cpu", *words])
    return choose_evaluator(*model, options, head=model[0].heads[0], species=[0])


def log_of(evaluator):
    return dict(evaluator.describe())["radial part"]


def test_the_default_is_the_inference_path(model):
    assert isinstance(choose(model), InferenceEvaluator)
    assert log_of(choose(model)).startswith("spline: radial tables: quintic")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("radial", "exact"), "asked for"),
        (("conv", "standard"), "conv standard is asked for"),
    ],
)
def test_the_exact_path_says_why(model, words, reason):
    evaluator = choose(model, *words)
    assert isinstance(evaluator, TorchEvaluator)
    assert reason in log_of(evaluator)


def test_tables_that_cannot_be_had(model, monkeypatch):
    monkeypatch.setattr(building, "MAX_BYTES", 1000)
    evaluator = choose(model)
    assert isinstance(evaluator, TorchEvaluator)
    assert "radial tables of so many pairs" in log_of(evaluator)
    with pytest.raises(ValueError, match="radial spline cannot serve this model: radial tables"):
        choose(model, "radial", "spline")


def test_a_total_that_is_not_finite_names_atoms_by_their_energies():
    """Files hold finite numbers only, so that this takes sums that overflow."""
    energies = np.array([0.0, np.inf, 1.0, np.nan])
    result = Evaluation(np.nan, np.zeros((4, 3)), np.zeros((3, 3)))
    told = "although the forces are; the energies of these atoms are not: node 1, node 3$"
    with pytest.raises(ValueError, match=told):
        check_finite(result, "node {}".format, lambda: energies)
    with pytest.raises(ValueError, match=r"although the forces are$"):
        check_finite(result, "node {}".format)
    check_finite(replace(result, energy=0.0), "node {}".format, lambda: energies)
