"""Which evaluator serves a model: the inference path, or the exact one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
) -> TorchEvaluator | InferenceEvaluator:
    """Return what evaluates a model with these values of the keywords.

    ``radial auto`` takes the inference path, and the exact one where that cannot run the model or
    where ``conv`` asks for a kernel of its own.

    Args:
        spec: Architecture.
        tensors: Parameters, as stored in the file.
        options: Values of ``device``, ``precision``, ``radial``, ``conv``, ``graphs``
            and ``tile``.
        head: Name of the head.
        species: Elements that may occur, as indices into the model's.
        launch: Rank among those of this node, and number of threads on CPU.

    Raises:
        ValueError: The device is not there, or ``radial spline`` cannot serve this model.
    """
    placement = Placement.choose(options["device"], options["precision"], *launch)
    reason = "asked for"
    if options["radial"] == "auto" and options["conv"] != "auto":
        reason = f"conv {options['conv']} is asked for"
    elif options["radial"] != "exact":
        try:
            return InferenceEvaluator(
                *(spec, tensors),
                head=head,
                placement=placement,
                species=species,
                graphs=options["graphs"] == "yes",
                tile=None if options["tile"] == "auto" else int(options["tile"]),
            )
        except (NotImplementedError, TableError) as error:
            if options["radial"] == "spline":
                raise ValueError(f"radial spline cannot serve this model: {error}") from error
            reason = str(error)
    return TorchEvaluator(
        spec, tensors, head=head, placement=placement, conv=options["conv"], reason=reason
    )
