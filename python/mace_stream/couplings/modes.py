"""Which kernels run a convolution: one decision for every framework."""

from __future__ import annotations

from mace_stream.couplings.plan import ConvPlan

MODES = ("auto", "streaming", "standard")


def resolve_mode(mode: str, plan: ConvPlan | None = None) -> tuple[str, str]:
    """Return the mode that will run and the reason.

    Args:
        mode: ``auto``, ``streaming`` or ``standard``.
        plan: The convolution; None stands for one whose paths keep their channels.

    Raises:
        ValueError: The mode is unknown, or cannot serve this convolution.
    """
    if mode not in MODES:
        raise ValueError(f"conv mode: expected one of {', '.join(MODES)}, got {mode!r}")
    refusal = plan.refusal if plan is not None else ""
    if refusal and mode == "streaming":
        raise ValueError(
            f"conv mode: expected auto or standard, got 'streaming': {refusal}, so sums cannot be"
            " kept in registers"
        )
    asked = "asked for" if mode != "auto" else "chosen"
    if refusal:
        return "standard", f"{asked}: {refusal}; batched products in plain torch"
    if mode == "standard":
        return "standard", "asked for: edges in any order, sums by atomics"
    kept = "" if mode == "streaming" else ": every path keeps its channels (uvu)"
    return "streaming", f"{asked}{kept}; a receiver's edges are summed in registers"
