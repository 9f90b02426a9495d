"""Keywords of ``pair_style mace/stream`` and the values that they accept."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Keyword:
    """One keyword: what it accepts, in words and as a test, and what it is if left out."""

    accepts: str
    is_valid: Callable[[str], bool]
    default: str


def _one_of(*values: str) -> tuple[str, Callable[[str], bool]]:
    return " or ".join(values), lambda value: value in values


_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")

_NUMBER = re.compile(r"[+-]?\d{1,9}(\.\d{1,9})?")

_TILE = re.compile(r"auto|[1-9]\d{0,8}")

KEYWORDS = {
    "device": Keyword("auto, cpu, cuda or cuda:N", lambda v: bool(_DEVICE.fullmatch(v)), "auto"),
    "precision": Keyword(*_one_of("auto", "double", "single"), "auto"),
    "conv": Keyword(*_one_of("auto", "streaming", "standard"), "auto"),
    "radial": Keyword(*_one_of("auto", "spline", "exact"), "auto"),
    "graphs": Keyword(*_one_of("yes", "no"), "yes"),
    "verify": Keyword(*_one_of("yes", "no"), "no"),
    "deterministic": Keyword(*_one_of("yes", "no"), "no"),
    "tile": Keyword("auto or a number of atoms", lambda v: bool(_TILE.fullmatch(v)), "auto"),
    "backend": Keyword(*_one_of("torch", "jax"), "torch"),
    "committee": Keyword(*_one_of("mean", "first"), "mean"),
    "neighbors": Keyword(*_one_of("auto", "full", "half", "device"), "auto"),
    "gpu_aware": Keyword(*_one_of("yes", "no"), "no"),
    "charge": Keyword("a number, in units of e", lambda v: bool(_NUMBER.fullmatch(v)), ""),
    "spin": Keyword("a number, 2S + 1", lambda v: bool(_NUMBER.fullmatch(v)), ""),
    "head": Keyword("the name of a head of the model", lambda value: True, ""),
}
"""Empty ``head`` means: the only head of the file; empty ``charge`` and ``spin``: as
:data:`mace_stream.spec.INPUT_DEFAULTS`, for models that take them."""
INPUTS = {"total_charge": "charge", "total_spin": "spin"}
"""Keyword of every input that a model may take."""


def given_inputs(options: Mapping[str, str]) -> dict[str, float]:
    """Return the value of every input that the keywords give."""
    return {name: float(options[word]) for name, word in INPUTS.items() if options[word]}


def check_options(words: Sequence[str]) -> dict[str, str]:
    """Return a value for every keyword from the words after ``pair_style mace/stream``.

    Raises:
        ValueError: A keyword is unknown, repeated or without value, or its value is not accepted.
    """
    given: dict[str, str] = {}
    for position in range(0, len(words), 2):
        name = words[position]
        if name not in KEYWORDS:
            raise ValueError(
                f"unknown keyword {name}{_hint(name)}; keywords: {', '.join(KEYWORDS)}"
            )
        if position + 1 == len(words):
            raise ValueError(f"keyword {name} has no value; expected {KEYWORDS[name].accepts}")
        if name in given:
            raise ValueError(f"keyword {name} is given twice; leave one of them out")
        given[name] = _checked(name, words[position + 1])
    return {name: given.get(name, keyword.default) for name, keyword in KEYWORDS.items()}


def _checked(name: str, value: str) -> str:
    if not KEYWORDS[name].is_valid(value):
        raise ValueError(f"keyword {name}: expected {KEYWORDS[name].accepts}, got {value}")
    return value


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name, KEYWORDS, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
