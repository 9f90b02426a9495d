"""Which evaluator serves a model with ``backend jax``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mace_stream.jax.evaluator import JaxEvaluator
from mace_stream.jax.placement import Placement
from mace_stream.spec import ModelSpec


def choose_evaluator(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    options: Mapping[str, str],
    *,
    head: str,
    species: Sequence[int],
    launch: tuple[int, int] = (0, 1),
    inputs: Mapping[str, float] | None = None,
) -> JaxEvaluator:
    """Return what evaluates a model; arguments as of the function of this name for torch.

    Raises:
        ValueError: The device is not there, or a keyword asks for what only ``backend torch`` has.
    """
    check_options(options)
    placement = Placement.choose(options["device"], options["precision"], *launch)
    deterministic = options["deterministic"] == "yes"
    if deterministic and placement.on_gpu:
        raise ValueError(
            "deterministic yes does not go with backend jax on a GPU, where XLA sums in any order; "
            "use backend torch, or leave one of them out"
        )
    return JaxEvaluator(
        *(spec, tensors),
        head=head,
        inputs=inputs,
        placement=placement,
        conv=options["conv"],
        elements=[spec.elements[index] for index in species],
        deterministic=deterministic,
    )


def check_options(options: Mapping[str, str]) -> None:
    """Raise ``ValueError`` where a keyword asks for what only ``backend torch`` has."""
    if options["radial"] == "spline":
        raise ValueError(
            "radial spline does not go with backend jax, which has no radial tables; use radial "
            "exact, or backend torch"
        )
    if options["verify"] == "yes":
        raise ValueError(
            "verify yes compares the fast path with the exact one, and backend jax has the exact "
            "one only; leave it out, or compare with a run 0 of backend torch"
        )
    if options["deterministic"] == "yes" and options["conv"] == "standard":
        raise ValueError(
            "deterministic yes does not go with conv standard, which sums in any order; leave one "
            "of them out"
        )
