"""What a validation found: table, JSON and parity plot."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from mace_stream.validation.compare import FrameReport
from mace_stream.validation.frames import Result


@dataclass(frozen=True)
class Report:
    """Comparison of LAMMPS with a reference over all frames."""

    model: str
    model_sha256: str
    reference: str
    precision: str
    frames: tuple[FrameReport, ...]

    @property
    def passed(self) -> bool:
        """Whether there is a frame and every one is within the bounds."""
        return bool(self.frames) and all(frame.passed for frame in self.frames)

    def table(self) -> Table:
        """Return the table for the terminal."""
        title = f"pair_style mace/stream ({self.precision}) against\n{self.reference}"
        table = Table(title=title)
        for column in ("structure", "atoms", "difference in"):
            table.add_column(column)
        for column in ("max", "RMS", "bound", "result"):
            table.add_column(column, justify="right", no_wrap=True)
        for frame in self.frames:
            labels = (frame.name, str(frame.n_atoms))
            for row in frame.differences:
                numbers = (f"{row.max:.1e}", f"{row.rms:.1e}", f"{row.bound:.0e}")
                verdict = "[green]pass[/]" if row.passed else "[bold red]FAIL[/]"
                table.add_row(*labels, f"{row.quantity} ({row.unit})", *numbers, verdict)
                labels = ("", "")
        return table

    def to_json(self) -> str:
        """Return everything but the arrays as JSON text."""
        data = {
            "passed": self.passed,
            "model": self.model,
            "model_sha256": self.model_sha256,
            "reference": self.reference,
            "precision": self.precision,
            "frames": [_frame_data(frame) for frame in self.frames],
        }
        return json.dumps(data, indent=2)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write ``validation.json`` and ``parity.png`` and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        text, plot = folder / "validation.json", folder / "parity.png"
        text.write_text(self.to_json() + "\n")
        _plot_parity(self, plot)
        return text, plot


def _frame_data(frame: FrameReport) -> dict:
    rows = [dataclasses.asdict(row) | {"passed": row.passed} for row in frame.differences]
    return {"name": frame.name, "n_atoms": frame.n_atoms, "passed": frame.passed, "rows": rows}


def _known_forces(frame: FrameReport, side: Result) -> np.ndarray:
    """Return the forces that both sides have."""
    atoms = frame.reference.force_atoms
    return side.forces if atoms is None or side is frame.reference else side.forces[atoms]


def _plot_parity(report: Report, path: Path) -> None:
    """Draw reference against LAMMPS for atom energies, forces and virial per atom."""
    from matplotlib.figure import Figure

    panels = {
        "energy of an atom (eV)": lambda frame, side: side.node_energy,
        "force component (eV/Å)": _known_forces,
        "virial per atom (eV)": lambda frame, side: side.virial / frame.n_atoms,
    }
    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, (label, value) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        expected = np.concatenate([value(f, f.reference).ravel() for f in report.frames])
        found = np.concatenate([value(f, f.lammps).ravel() for f in report.frames])
        axes.axline((expected[0], expected[0]), slope=1, color="0.7", zorder=0)
        axes.locator_params(nbins=5)
        axes.plot(expected, found, ".", markersize=4)
        axes.set(xlabel=f"reference: {label}", ylabel=f"LAMMPS: {label}")
        largest = np.abs(found - expected).max()
        axes.set_title(f"largest difference {largest:.1e}", fontsize="medium")
    figure.suptitle(f"{Path(report.model).name} against {report.reference}", fontsize="medium")
    figure.savefig(path, dpi=150)
