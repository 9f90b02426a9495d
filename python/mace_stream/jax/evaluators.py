"""Which evaluator serves a model with ``backend jax``: the inference path, or the exact one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mace_stream.jax.evaluator import JaxEvaluator
from mace_stream.jax.inference.evaluator import InferenceEvaluator
from mace_stream.jax.placement import Placement
from mace_stream.spec import ModelSpec
from mace_stream.tables import TableError


def choose_evaluator(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    options: Mapping[str, str],
    *,
    head: str,
    species: Sequence[int],
    launch: tuple[int, int] = (0, 1),
    inputs: Mapping[str, float] | None = None,
) -> JaxEvaluator | InferenceEvaluator:
    """Return what evaluates a model; arguments as of the function of this name for torch.

    Raises:
        ValueError: The device is not there, a keyword asks for what only ``backend torch`` has, or
            ``radial spline`` cannot serve the model.
    """
    placement = Placement.choose(options["device"], options["precision"], *launch)
    deterministic = options["deterministic"] == "yes"
    if deterministic:
        check_deterministic(options, placement)
    reason = _reason_for_exact(options, placement)
    if not reason:
        try:
            return InferenceEvaluator(
                *(spec, tensors),
                head=head,
                inputs=inputs,
                placement=placement,
                species=species,
                tile=None if options["tile"] == "auto" else int(options["tile"]),
                deterministic=deterministic,
            )
        except (NotImplementedError, TableError) as error:
            reason = str(error)
    if options["radial"] == "spline":
        raise ValueError(f"radial spline cannot serve this model: {reason}")
    return JaxEvaluator(
        *(spec, tensors),
        head=head,
        inputs=inputs,
        placement=placement,
        conv=options["conv"],
        elements=[spec.elements[index] for index in species],
        reason=reason,
        deterministic=deterministic,
    )


def _reason_for_exact(options: Mapping[str, str], placement: Placement) -> str:
    """Why the exact path is taken, or nothing."""
    if options["radial"] == "exact":
        return "asked for"
    if options["radial"] == "auto" and options["conv"] != "auto":
        return f"conv {options['conv']} is asked for"
    if options["deterministic"] == "yes" and placement.threads > 1:
        return "deterministic yes, and the fast path of backend jax sums in one order on one thread"
    return ""


def exact_evaluator(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    head: str,
    placement: Placement,
    inputs: Mapping[str, float] | None = None,
) -> JaxEvaluator:
    """Return the exact path in double precision on the same device, to compare with."""
    double = replace(placement, precision="double")
    return JaxEvaluator(*(spec, tensors), head=head, inputs=inputs, placement=double, conv="auto")


def check_deterministic(options: Mapping[str, str], placement: Placement) -> None:
    """Raise ``ValueError`` where other keywords rule out ``deterministic yes``."""
    if placement.on_gpu:
        raise ValueError(
            "deterministic yes does not go with backend jax on a GPU, where XLA sums in any order; "
            "use backend torch, or leave one of them out"
        )
    if options["conv"] == "standard":
        raise ValueError(
            "deterministic yes does not go with conv standard, which sums in any order; leave one "
            "of them out"
        )
