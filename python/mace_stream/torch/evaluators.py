"""Which evaluator serves a model: the inference path, or the exact one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mace_stream.spec import ModelSpec
from mace_stream.tables import TableError
from mace_stream.torch.evaluator import TorchEvaluator
from mace_stream.torch.inference.evaluator import InferenceEvaluator
from mace_stream.torch.placement import Placement


def choose_evaluator(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    options: Mapping[str, str],
    *,
    head: str,
    species: Sequence[int],
    launch: tuple[int, int] = (0, 1),
    inputs: Mapping[str, float] | None = None,
) -> TorchEvaluator | InferenceEvaluator:
    """Return what evaluates a model with these values of the keywords.

    ``radial auto`` takes the inference path, and the exact one where that cannot run the model or
    where ``conv`` asks for a kernel of its own.

    Args:
        spec: Architecture.
        tensors: Parameters, as stored in the file.
        options: Values of ``device``, ``precision``, ``radial``, ``conv``, ``graphs``,
            ``deterministic`` and ``tile``.
        head: Name of the head.
        species: Elements that may occur, as indices into the model's.
        launch: Rank among those of this node, and number of threads on CPU.
        inputs: Charge and spin, for models that take them.

    Raises:
        ValueError: The device is not there, the model does not take an input, or ``radial spline``
            cannot serve it.
    """
    deterministic = options["deterministic"] == "yes"
    placement = Placement.choose(options["device"], options["precision"], *launch)
    if deterministic:
        check_deterministic(options, placement)
    reason = "asked for"
    if options["radial"] == "auto" and options["conv"] != "auto":
        reason = f"conv {options['conv']} is asked for"
    elif options["radial"] == "auto" and deterministic and placement.device.type == "cuda":
        reason = "deterministic yes, and the fast path sums atomically on a GPU"
    elif options["radial"] != "exact":
        try:
            return InferenceEvaluator(
                *(spec, tensors),
                head=head,
                inputs=inputs,
                placement=placement,
                species=species,
                graphs=options["graphs"] == "yes",
                tile=None if options["tile"] == "auto" else int(options["tile"]),
                deterministic=deterministic,
            )
        except (NotImplementedError, TableError) as error:
            if options["radial"] == "spline":
                raise ValueError(f"radial spline cannot serve this model: {error}") from error
            reason = str(error)
    return TorchEvaluator(
        *(spec, tensors),
        head=head,
        inputs=inputs,
        placement=placement,
        conv=options["conv"],
        reason=reason,
        deterministic=deterministic,
    )


def exact_evaluator(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    head: str,
    placement: Placement,
    inputs: Mapping[str, float] | None = None,
) -> TorchEvaluator:
    """Return the exact path in double precision on the same device, to compare with."""
    double = replace(placement, precision="double")
    return TorchEvaluator(*(spec, tensors), head=head, inputs=inputs, placement=double, conv="auto")


def check_deterministic(options: Mapping[str, str], placement: Placement) -> None:
    """Raise ``ValueError`` where other keywords rule out ``deterministic yes``."""
    if options["conv"] == "standard":
        raise ValueError(
            "deterministic yes does not go with conv standard, which sums in any order; leave one "
            "of them out"
        )
    if options["radial"] == "spline" and placement.device.type == "cuda":
        raise ValueError(
            "deterministic yes does not go with radial spline on a GPU, where many threads add to "
            "one sum in any order; use radial exact, or leave one of them out"
        )
