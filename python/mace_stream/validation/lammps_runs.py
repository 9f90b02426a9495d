"""The LAMMPS side: hand frames or a script to the worker process and collect results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase.data import atomic_masses, chemical_symbols

from mace_stream.validation.frames import Frame, LammpsBox, Result, to_lammps_box

MASS_TOLERANCE = 0.02  # relative; isotopes of light elements must be named


@dataclass(frozen=True)
class LammpsSettings:
    """How LAMMPS evaluates the model."""

    model: Path
    style: str
    """Keywords of ``pair_style mace/stream``."""
    newton: str
    """``on`` or ``off``."""
    output: Path | None
    """Folder that keeps the data files and LAMMPS' log."""


def run_frames(settings: LammpsSettings, frames: list[Frame]) -> Iterator[Result]:
    """Evaluate frames one by one in LAMMPS; results come in the frames' own axes."""
    if not frames:
        return
    boxes = [to_lammps_box(frame) for frame in frames]
    with tempfile.TemporaryDirectory(prefix="mace_stream_") as name:
        folder = Path(name)
        for index, (frame, box) in enumerate(zip(frames, boxes, strict=True)):
            _save_frame(folder / f"frame_{index}.npz", frame, box)
        for index in _work(folder, settings, n_frames=len(frames), script=None):
            with np.load(folder / f"result_{index}.npz") as data:
                yield _rotated(data, boxes[index].rotation)
        _keep(folder, settings.output)


def run_script(
    settings: LammpsSettings, script: Path, elements: list[int] | None, known: tuple[int, ...]
) -> tuple[Frame, Result]:
    """Evaluate the configuration that a LAMMPS script leaves.

    Args:
        settings: Only its ``output`` matters, the script sets everything else.
        script: Defines box, atoms and pair style.
        elements: Atomic number of every type; ``None`` takes them from the masses.
        known: The model's elements.
    """
    with tempfile.TemporaryDirectory(prefix="mace_stream_") as name:
        folder = Path(name)
        list(_work(folder, settings, n_frames=0, script=str(script.resolve())))
        with np.load(folder / "result_0.npz") as data:
            kinds = elements or elements_by_mass(data["masses"][1:], known)
            if len(kinds) != len(data["masses"]) - 1:
                raise ValueError(
                    f"elements: the script has {len(data['masses']) - 1} atom types, "
                    f"got {len(kinds)} elements; name one per type"
                )
            numbers = np.array(kinds)[data["types"] - 1]
            frame = Frame(script.name, numbers, data["positions"], data["cell"], data["pbc"])
            result = _rotated(data, np.eye(3))
        _keep(folder, settings.output)
    return frame, result


def elements_by_mass(masses: np.ndarray, known: tuple[int, ...]) -> list[int]:
    """Return the element of ``known`` whose standard mass is each type's.

    The masses, not ``pair_coeff``, say what a type is: so a wrong order there is found.

    Raises:
        ValueError: A mass fits none of the model's elements.
    """
    standard = atomic_masses[list(known)]
    kinds = []
    for kind, mass in enumerate(masses, start=1):
        gaps = np.abs(standard - mass) / standard
        if gaps.min() > MASS_TOLERANCE:
            names = " ".join(chemical_symbols[z] for z in known)
            raise ValueError(
                f"mass {mass:g} of type {kind} is that of no element of the model ({names}); "
                "correct it in the script, or name the elements of all types: --elements"
            )
        kinds.append(known[int(gaps.argmin())])
    return kinds


def _save_frame(path: Path, frame: Frame, box: LammpsBox) -> None:
    """Write what the worker needs; types run from the heaviest element to the lightest."""
    np.savez(
        path,
        kinds=np.unique(frame.numbers)[::-1],
        numbers=frame.numbers,
        positions=box.positions,
        origin=box.origin,
        vectors=box.vectors,
        boundary=box.boundary,
    )


def _rotated(data: np.lib.npyio.NpzFile, rotation: np.ndarray) -> Result:
    return Result(
        energy=float(data["energy"]),
        node_energy=data["node_energy"],
        forces=data["forces"] @ rotation,
        virial=rotation.T @ data["virial"] @ rotation,
    )


def _work(
    folder: Path, settings: LammpsSettings, n_frames: int, script: str | None
) -> Iterator[int]:
    """Run the worker and yield the index of every finished job.

    Raises:
        RuntimeError: LAMMPS refused; the message is LAMMPS' own.
    """
    job = {
        "model": str(settings.model.resolve()),
        "style": settings.style,
        "newton": settings.newton,
        "n_frames": n_frames,
        "script": script,
        "keep_data": settings.output is not None,
    }
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "mace_stream.validation.worker", str(folder)]
    with (
        (folder / "stderr").open("w+") as stderr,
        subprocess.Popen(  # noqa: S603 - our own module
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=_environment()
        ) as worker,
    ):
        for message in map(_parse, worker.stdout):
            if "error" in message:
                raise RuntimeError(f"LAMMPS failed: {message['error']}")
            if "done" in message:
                yield message["done"]
        if worker.wait() != 0:
            stderr.seek(0)
            tail = "".join(stderr.readlines()[-5:])
            raise RuntimeError(
                f"LAMMPS ended with status {worker.returncode}: {tail}\nNext: mace-stream doctor"
            )


def _parse(line: str) -> dict:
    """Return a line's JSON object; other output of the process counts as nothing."""
    try:
        message = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return message if isinstance(message, dict) else {}


def _environment() -> dict[str, str]:
    """Return this process' environment with its import path, so that the worker finds the same."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _keep(folder: Path, output: Path | None) -> None:
    """Copy the log and the data files out of the temporary folder."""
    if output is None:
        return
    output.mkdir(parents=True, exist_ok=True)
    for path in [folder / "log.lammps", *folder.glob("*.data")]:
        if path.exists():
            (output / path.name).write_bytes(path.read_bytes())
