"""Node embedding: a row per element, and what numbers of the whole system add to it."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from mace_stream.parameters import Parameters
from mace_stream.spec import INPUT_DEFAULTS, InputSpec, ModelSpec


def input_values(spec: ModelSpec, given: Mapping[str, float] | None) -> dict[str, float]:
    """Return the value of every input of a model; those not given have their default.

    Raises:
        ValueError: A value is given that the model does not take.
    """
    names = [item.name for item in spec.inputs]
    odd = sorted(set(given or {}) - set(names))
    if odd:
        taken = ", ".join(names) or "none"
        raise ValueError(f"inputs: the model does not take {', '.join(odd)}; it takes {taken}")
    return {name: float({**INPUT_DEFAULTS, **(given or {})}[name]) for name in names}


def node_embedding(
    spec: ModelSpec, tensors: Mapping[str, np.ndarray], values: Mapping[str, float]
) -> np.ndarray:
    """Return features of every element before the first layer, [Z, C] float64.

    Where the table is a framework's own array, to be differentiated by, so is the result.
    """
    params = Parameters(tensors, np.float64)
    name = "node_embedding.weight"
    given = tensors.get(name)
    table = params.array(name) if given is None or isinstance(given, np.ndarray) else given
    table = table / sqrt(len(spec.elements))
    if not spec.inputs:
        return table
    rows = [_embed(item, values[item.name], params) for item in spec.inputs]
    return table + _silu(np.concatenate(rows) @ params.array("embedding.project"))


def embedding_energy(
    spec: ModelSpec, tensors: Mapping[str, np.ndarray], embedding: np.ndarray, head: int
) -> np.ndarray:
    """Return what is read out of the embedding itself, eV per element, [Z] float64."""
    if not spec.embedding_readout:
        return np.zeros(len(embedding))
    return embedding @ Parameters(tensors, np.float64).linear("embedding.readout")[:, head]


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _embed(item: InputSpec, value: float, params: Parameters) -> np.ndarray:
    params = params.under(f"embedding.{item.name}")
    if item.kind == "categorical":
        return params.array("table")[_row(item, value)]
    hidden = value * params.array("0")[0]
    if item.has_bias:
        hidden = hidden + params.array("0.bias")
    out = _silu(hidden) @ params.array("1")
    return out + params.array("1.bias") if item.has_bias else out


def _row(item: InputSpec, value: float) -> int:
    """The row of a table; only whole numbers that it has are taken."""
    row = value + item.offset
    if row != int(row) or not 0 <= row < item.n_classes:
        first, last = -item.offset, item.n_classes - 1 - item.offset
        raise ValueError(
            f"{item.name}: the model knows whole numbers from {first} to {last}, not {value:g}"
        )
    return int(row)
