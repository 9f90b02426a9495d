"""What the pair style prints: one block at the start, one table after each run."""

from __future__ import annotations

import platform
import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ase.data import chemical_symbols

import mace_stream

if TYPE_CHECKING:
    from mace_stream.bridge.session import Session

RULE = "-" * 78


def start(session: Session, facts: Mapping[str, str], n_edges: int) -> str:
    """Return the start block: all that decides the numbers of the run.

    Args:
        session: Has taken over its first list.
        facts: What LAMMPS knows.
        n_edges: Of the list.
    """
    place = session.evaluator.placement
    lines = [
        ("model", f"{session.path} ({session.spec.architecture})"),
        ("SHA-256", session.sha256),
        ("head", f"{session.head} (of: {', '.join(session.spec.heads)})"),
        *_types(session),
        ("device", place.device_name),
        ("precision", f"{place.precision} ({place.precision_reason})"),
        ("threads", str(place.threads)),
        ("neighbor list", facts["list"]),
        ("graph", f"{facts['atoms']} atoms, {n_edges} edges, skin included"),
        ("r_max", f"{session.r_max:g} Å"),
        ("skin", f"{facts['skin']} Å, ghost cutoff {facts['ghost_cutoff']} Å"),
        *session.evaluator.describe(),
        ("units", facts["units"]),
        ("versions", f"mace-stream {mace_stream.__version__}, LAMMPS {facts['lammps']}"),
        ("", f"{session.backend_version}, Python {platform.python_version()}"),
    ]
    body = "\n".join(f"  {name:<14} {text}" for name, text in lines)
    return f"{RULE}\npair_style mace/stream\n{body}\n{RULE}\n"


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


def end(timings: Mapping[str, float], statistics: Mapping[str, float]) -> str:
    """Return the table of a run: where the time of the style went, per evaluation."""
    steps, atoms = timings["evaluations"], max(timings["atoms"], 1)
    names = {
        "arrange_s": "arrangement",
        "model_s": "model",
        "forward_s": "model forward",
        "vjp_s": "model VJP",
    }
    inner = {names[key]: statistics[key] for key in names if key in statistics}
    parts = {
        "list": timings["flatten_s"],
        "bridge": timings["evaluate_s"] - sum(inner.values()),
        **inner,
        "scatter": timings["scatter_s"],
    }
    total = sum(parts.values())
    rows = [
        f"  {name:<14} {1e3 * seconds / steps:12.3f} {100 * seconds / total:8.1f} %"
        for name, seconds in parts.items()
    ]
    lines = [
        RULE,
        f"pair_style mace/stream: {steps:.0f} evaluations, {timings['rebuilds']:.0f} new lists",
        f"  {'part':<14} {'ms per step':>12} {'share':>10}",
        *rows,
        f"  {'total':<14} {1e3 * total / steps:12.3f}",
        f"  {1e6 * total / steps / atoms:.2f} µs per atom and step",
        f"  {statistics['edges'] / steps / atoms:.1f} edges per atom within r_max",
        f"  {_memory(statistics)}",
        *_captures(statistics),
        RULE,
        "",
    ]
    return "\n".join(lines)


def _captures(statistics: Mapping[str, float]) -> list[str]:
    count = statistics.get("captures", 0)
    return [f"  CUDA graphs captured so far: {count:.0f}"] if count else []


def _memory(statistics: Mapping[str, float]) -> str:
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = f"peak memory {resident:.0f} MiB"
    device = statistics["device_peak_bytes"]
    return f"{text}, device {device / 2**20:.0f} MiB" if device else text
