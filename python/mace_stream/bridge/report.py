"""What the pair style prints: one block at the start, one table after each run."""

from __future__ import annotations

import platform
import resource
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ase.data import chemical_symbols

import mace_stream
from mace_stream.bridge.options import INPUTS

if TYPE_CHECKING:
    from mace_stream.bridge.committee import Committee
    from mace_stream.bridge.session import Session

RULE = "-" * 78


def start(session: Session, facts: Mapping[str, str], committee: Committee | None = None) -> str:
    """Return the start block: all that decides the numbers of the run.

    Args:
        session: The model, or the first one of the committee.
        facts: What the pair style knows.
        committee: All models, if there are several.
    """
    place = session.evaluator.placement
    places = facts.get("ranks", "").splitlines()
    lines = [
        ("model", f"{session.path} ({session.spec.architecture})"),
        ("SHA-256", session.sha256),
        ("head", f"{session.head} (of: {', '.join(session.spec.heads)})"),
        *_inputs(session),
        *_types(session),
        *_ranks(places),
        *_route(session, max(1, len(places))),
        ("device", place.device_name),
        ("precision", f"{place.precision} ({place.precision_reason})"),
        ("threads", str(place.threads)),
        ("neighbor list", facts["list"]),
        ("graph", f"{facts['atoms']} atoms, {facts['edges']} edges, skin included"),
        ("r_max", f"{session.r_max:g} Å"),
        *_repulsion(session),
        ("skin", f"{facts['skin']} Å, ghost cutoff {facts['ghost_cutoff']} Å"),
        *session.evaluator.describe(),
        *(_committee(committee) if committee else ()),
        ("units", facts["units"]),
        ("versions", f"mace-stream {mace_stream.__version__}, LAMMPS {facts['lammps']}"),
        ("", f"{session.backend_version}, Python {platform.python_version()}"),
    ]
    body = "\n".join(f"  {name:<14} {text}" for name, text in lines)
    models = committee.members if committee else [session]
    repulsion = next(filter(None, (_repulsion_warning(model, facts) for model in models)), "")
    warnings = [session.launch.warning(), repulsion]
    after = "".join(f"WARNING: Pair style mace/stream: {text}\n" for text in warnings if text)
    return f"{RULE}\npair_style mace/stream\n{body}\n{RULE}\n{after}"


def _inputs(session: Session) -> list[tuple[str, str]]:
    return [
        (INPUTS[name], f"{value:g} ({name} of the model; keyword {INPUTS[name]})")
        for name, value in session.inputs.items()
    ]


def _repulsion(session: Session) -> list[tuple[str, str]]:
    kind = session.spec.pair_repulsion
    return [("repulsion", f"{kind}, a part of the model")] if kind != "none" else []


def _repulsion_warning(session: Session, facts: Mapping[str, str]) -> str:
    if session.spec.pair_repulsion == "none" or "zbl" not in facts:
        return ""
    return (
        "the model has a ZBL repulsion of its own, and another pair style with zbl in its name "
        "adds one; leave that style out"
    )


def _committee(committee: Committee) -> list[tuple[str, str]]:
    """The rule, and what decides the numbers of the models after the first."""
    rule = "all are evaluated, and their mean is taken"
    if committee.rule == "first":
        rule = "the first is taken, the others are evaluated for the force deviation only"
    lines = [
        ("committee", f"{committee.n_models} models: {rule}"),
        ("", f"list cutoff {committee.r_max:g} Å; memory above is that of the first"),
    ]
    for number, member in enumerate(committee.members[1:], 2):
        heads = ", ".join(member.spec.heads)
        lines += [
            (f"model {number}", f"{member.path} ({member.spec.architecture})"),
            ("", f"SHA-256 {member.sha256}"),
            ("", f"head {member.head} (of: {heads}), r_max {member.r_max:g} Å"),
            *(("", text) for _, text in _repulsion(member)),
            ("", dict(member.evaluator.describe())["radial part"]),
        ]
    return lines


def _ranks(places: Sequence[str]) -> list[tuple[str, str]]:
    """One line for every run of ranks that are placed alike."""
    lines, first = [], 0
    for place, alike in groupby(places):
        last = first + len(list(alike)) - 1
        name = f"rank {first}" if first == last else f"ranks {first}-{last}"
        lines.append((name, place))
        first = last + 1
    return lines


def _route(session: Session, n_ranks: int) -> list[tuple[str, str]]:
    text = session.route(n_ranks)
    return [("exchange", text)] if text else []


def _types(session: Session) -> list[tuple[str, str]]:
    """One line per atom type: element, index in the model, isolated-atom energy."""
    return [
        (f"type {number}", _type_text(session, species))
        for number, species in enumerate(session.type_species, 1)
    ]


def _type_text(session: Session, species: int) -> str:
    if species < 0:
        return "NULL: served by another style"
    symbol = chemical_symbols[session.spec.elements[species]]
    return f"{symbol}, element {species} of the model, E0 {session.energies[species]:.6f} eV"


def end(total: Mapping[str, float], most: Mapping[str, float], n_ranks: int) -> str:
    """Return the table of a run: where the time of the style went, per evaluation.

    Args:
        total: Timings and statistics, summed over ranks.
        most: The largest of any rank.
        n_ranks: How many there are.
    """
    steps, atoms = most["evaluations"], max(total["atoms"], 1)
    parts = {name: seconds / n_ranks for name, seconds in _parts(total, n_ranks).items()}
    whole = sum(parts.values())
    rows = [
        f"  {name:<14} {1e3 * seconds / steps:12.3f} {100 * seconds / whole:8.1f} %"
        for name, seconds in parts.items()
    ]
    lines = [
        RULE,
        f"pair_style mace/stream: {steps:.0f} evaluations, {most['rebuilds']:.0f} new lists",
        f"  {'part':<14} {'ms per step':>12} {'share':>10}",
        *rows,
        f"  {'total':<14} {1e3 * whole / steps:12.3f}",
        f"  {1e6 * whole / steps / atoms:.2f} µs per atom and step",
        f"  {total['edges'] / steps / atoms:.1f} edges per atom within r_max",
        *_balance(total, most, n_ranks),
        *_compared(most),
        f"  {_memory(most)}",
        *_captures(most),
        *_compilations(most),
        RULE,
        "",
    ]
    return "\n".join(lines)


def _parts(total: Mapping[str, float], n_ranks: int) -> dict[str, float]:
    """Seconds of every part, summed over ranks."""
    names = {
        "arrange_s": "arrangement",
        "model_s": "model",
        "forward_s": "model forward",
        "vjp_s": "model VJP",
    }
    inner = {names[key]: total[key] for key in names if key in total}
    if n_ranks > 1:  # messages come in the middle of the model
        model = sum(seconds for name, seconds in inner.items() if name != "arrangement")
        inner = {name: seconds for name, seconds in inner.items() if name == "arrangement"}
        inner |= {"model": model - total["messages_s"], "exchange": total["exchange_s"]}
    return {
        "list": total["flatten_s"],
        "bridge": total["evaluate_s"] - sum(inner.values()),
        **inner,
        "scatter": total["scatter_s"],
    }


def _balance(total: Mapping[str, float], most: Mapping[str, float], n_ranks: int) -> list[str]:
    if n_ranks == 1:
        return []
    mean, largest = total["own_s"] / n_ranks, most["own_s"]
    return [
        f"  {n_ranks} ranks, mean of all above; without exchange the slowest takes "
        f"{100 * (largest / mean - 1):.1f} % more than the mean"
    ]


def _compared(most: Mapping[str, float]) -> list[str]:
    count = most.get("compared")
    return [] if count is None else [f"  force deviation of the committee: {count:.0f} times"]


def _captures(most: Mapping[str, float]) -> list[str]:
    count = most.get("captures", 0)
    return [f"  CUDA graphs captured so far: {count:.0f}"] if count else []


def _compilations(most: Mapping[str, float]) -> list[str]:
    count = most.get("compilations")
    if count is None:
        return []
    return [f"  programs compiled so far: {count:.0f}, in {most['compile_s']:.1f} s"]


def _memory(most: Mapping[str, float]) -> str:
    text = f"peak memory {most['resident_bytes'] / 2**20:.0f} MiB"
    device = most["device_peak_bytes"]
    return f"{text}, device {device / 2**20:.0f} MiB" if device else text


def resident_bytes() -> int:
    """Return the largest memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
