"""Keep one head of a model with many."""

from __future__ import annotations

import dataclasses

import numpy as np

from mace_stream.convert.ledger import ConversionError
from mace_stream.spec import ModelSpec


def keep_head(
    spec: ModelSpec, tensors: dict[str, np.ndarray], head: str
) -> tuple[ModelSpec, dict[str, np.ndarray]]:
    """The same model with one head; ``n_heads_source`` stays, since norms count all heads.

    Raises:
        ConversionError: The model has no such head; the message lists those it has.
    """
    if head not in spec.heads:
        raise ConversionError(f"head: expected one of {', '.join(spec.heads)}, got {head}")
    index = spec.heads.index(head)
    one = slice(index, index + 1)
    kept = dict(tensors)
    for name in ("atomic_energies", "scale", "shift"):
        kept[name] = tensors[name][one]
    if spec.embedding_readout:
        kept["embedding.readout"] = tensors["embedding.readout"][:, one]
    for r, readout in enumerate(spec.readouts):
        hidden = slice(index * readout.hidden, (index + 1) * readout.hidden)
        cuts = {"linear": (slice(None), one), "linear_1": (slice(None), hidden)}
        cuts["linear_2"] = (hidden, one)
        for name, cut in cuts.items():
            key = f"readouts.{r}.{name}"
            if key in tensors:
                kept[key] = tensors[key][cut]
    return dataclasses.replace(spec, heads=(head,)), kept
