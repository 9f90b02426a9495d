"""Node embedding: a row per element, and what numbers of the whole system add to it."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor

from mace_stream.spec import INPUT_DEFAULTS, InputSpec, ModelSpec
from mace_stream.torch.folding import Parameters


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


def node_embedding(spec: ModelSpec, params: Parameters, values: Mapping[str, float]) -> Tensor:
    """Return features of every element before the first layer, [Z, C] float64."""
    table = params.tensor("node_embedding.weight") / sqrt(len(spec.elements))
    if not spec.inputs:
        return table
    rows = [_embed(item, values[item.name], params) for item in spec.inputs]
    return table + torch.nn.functional.silu(torch.cat(rows) @ params.tensor("embedding.project"))


def embedding_energy(spec: ModelSpec, params: Parameters, embedding: Tensor, head: int) -> Tensor:
    """Return what is read out of the embedding itself, eV per element, [Z] float64."""
    if not spec.embedding_readout:
        return torch.zeros(len(embedding), dtype=torch.float64)
    return embedding @ params.linear("embedding.readout")[:, head]


def _embed(item: InputSpec, value: float, params: Parameters) -> Tensor:
    params = params.under(f"embedding.{item.name}")
    if item.kind == "categorical":
        return params.tensor("table")[_row(item, value)]
    hidden = value * params.tensor("0")[0]
    if item.has_bias:
        hidden = hidden + params.tensor("0.bias")
    out = torch.nn.functional.silu(hidden) @ params.tensor("1")
    return out + params.tensor("1.bias") if item.has_bias else out


def _row(item: InputSpec, value: float) -> int:
    """The row of a table; only whole numbers that it has are taken."""
    row = value + item.offset
    if row != int(row) or not 0 <= row < item.n_classes:
        first, last = -item.offset, item.n_classes - 1 - item.offset
        raise ValueError(
            f"{item.name}: the model knows whole numbers from {first} to {last}, not {value:g}"
        )
    return int(row)
