"""The optimiser, the same lines for both frameworks."""

from __future__ import annotations

from typing import Any

Arrays = dict[str, Any]
"""Arrays of one framework by name."""


def start(weights: Arrays) -> dict[str, Any]:
    """What :func:`advance` remembers, before the first step."""
    zeros = {name: 0 * weight for name, weight in weights.items()}
    return {"step": 0.0, "mean": zeros, "square": dict(zeros)}


def advance(weights: Arrays, slopes: Arrays, state: dict, rate: float) -> tuple[Arrays, dict]:
    """One step of Adam, Kingma and Ba, arXiv:1412.6980, with its usual constants.

    Args:
        weights: What is trained.
        slopes: Derivatives of the loss by them.
        state: As :func:`start` or the step before returned it.
        rate: Step of a weight whose derivative stays the same.

    Returns:
        Weights and state after the step.
    """
    step, moved, mean, square = state["step"] + 1, {}, {}, {}
    for name, slope in slopes.items():
        mean[name] = 0.9 * state["mean"][name] + 0.1 * slope
        square[name] = 0.999 * state["square"][name] + 0.001 * slope * slope
        size = (square[name] / (1 - 0.999**step)) ** 0.5 + 1e-8
        moved[name] = weights[name] - rate * (mean[name] / (1 - 0.9**step)) / size
    return moved, {"step": step, "mean": mean, "square": square}
