"""Compare what LAMMPS computes with an independent evaluation of the same model.

import mace_stream
report = mace_stream.validate("ti.mace", ["ti.xyz"], reference="ti.model")
assert report.passed, report.to_json()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ase.data import chemical_symbols

from mace_stream import io
from mace_stream.validation.bounds import BOUNDS, Bounds
from mace_stream.validation.compare import Difference, FrameReport, compare
from mace_stream.validation.frames import Frame, Result, read_frames
from mace_stream.validation.lammps_runs import LammpsSettings, run_frames, run_script
from mace_stream.validation.references import make_reference
from mace_stream.validation.report import Report

__all__ = ["BOUNDS", "Bounds", "Difference", "Frame", "FrameReport", "Report", "Result", "validate"]


def validate(
    model: str | Path,
    structures: Sequence[str | Path] = (),
    *,
    reference: str | Path | None = None,
    script: str | Path | None = None,
    elements: Sequence[str] | None = None,
    head: str | None = None,
    precision: str = "double",
    style: str = "",
    newton: str = "on",
    output: str | Path | None = None,
    progress: Callable[[str, int], None] = lambda stage, total: None,
) -> Report:
    """Evaluate structures in LAMMPS and by a reference, and compare.

    Args:
        model: A ``.mace`` file.
        structures: Files that ASE reads, every frame of which is compared.
        reference: The mace-torch file that ``model`` was converted from; it is evaluated by
            mace-torch in float64. Without it the package's NumPy oracle evaluates ``model``.
        script: A LAMMPS input that defines box, atoms and pair style itself. It is run as it
            stands, then ``run 0``; the configuration it leaves is read back and compared.
        elements: Symbol of every atom type of ``script``; otherwise the masses tell.
        head: Head of a model with several.
        precision: ``double`` or ``single``: the style's keyword for ``structures``, and which of
            :data:`BOUNDS` hold.
        style: Further keywords of ``pair_style mace/stream`` for ``structures``.
        newton: ``on`` or ``off``, for ``structures``.
        output: Folder that gets LAMMPS' log and data files.
        progress: Called as ``progress(stage, total)`` after each of ``total`` evaluations.

    Returns:
        The comparison; ``report.passed`` says whether all is within the bounds.

    Raises:
        ValueError: An argument does not fit.
        RuntimeError: LAMMPS refused or failed.
        mace_stream.io.ModelFileError: ``model`` cannot be read.
    """
    if precision not in BOUNDS:
        raise ValueError(f"precision: expected one of {list(BOUNDS)}, got {precision}")
    if not structures and script is None:
        raise ValueError("nothing to validate: name a structure file, or a script with --input")
    spec, _ = io.load(model)
    frames = read_frames(structures)
    _check_elements(frames, spec.elements)
    evaluate = make_reference(Path(model), reference and Path(reference), head)
    words = [f"precision {precision}", style, f"head {head}" if head else ""]
    settings = LammpsSettings(
        Path(model), " ".join(filter(None, words)), newton, output and Path(output)
    )
    total = 2 * (len(frames) + (script is not None))

    pairs = []
    if script is not None:
        numbers = elements and [chemical_symbols.index(symbol) for symbol in elements]
        pairs.append(run_script(settings, Path(script), numbers, spec.elements))
        progress(f"LAMMPS: {script}", total)
    for frame, result in zip(frames, run_frames(settings, frames), strict=True):
        pairs.append((frame, result))
        progress(f"LAMMPS: {frame.name}", total)
    reports = []
    for frame, result in pairs:
        reports.append(compare(frame.name, result, evaluate(frame), BOUNDS[precision]))
        progress(f"reference: {frame.name}", total)
    return Report(str(model), io.sha256(model), evaluate.name, precision, tuple(reports))


def _check_elements(frames: list[Frame], known: tuple[int, ...]) -> None:
    """Raise ``ValueError`` if a frame has an element that the model lacks."""
    for frame in frames:
        unknown = sorted(set(frame.numbers.tolist()) - set(known))
        if unknown:
            names = " ".join(chemical_symbols[z] for z in unknown)
            has = " ".join(chemical_symbols[z] for z in known)
            raise ValueError(f"{frame.name}: the model does not know {names}; it knows {has}")
