"""Molecular dynamics of titanium: LAMMPS with our pair style beside other implementations.

Every result of step 0 is compared in the same run with mace-torch in float64 or, where that is not
installed, with our own exact path in double precision on the CPU.
"""

from __future__ import annotations

import csv
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from functools import cache
from pathlib import Path

import numpy as np

import mace_stream
from mace_stream import io
from mace_stream.bench import md_lammps, md_peer_process, md_profile, md_reference
from mace_stream.bench.md_measurement import Measurement, checked_atoms, cpu_name, device_name
from mace_stream.bench.md_models import ModelFiles
from mace_stream.bench.md_peer_process import Job
from mace_stream.bench.md_peers import peer_version
from mace_stream.bench.md_reference import Reference
from mace_stream.bench.md_system import System, make_system

PRECISIONS = ("double", "single")
EXACT_PATH = "mace-stream's exact path, double precision on the CPU"
WRONG = {"double": 1e-4, "single": 1e-3}
"""Relative error of forces (norm) from which a result counts as wrong, not as rounded."""
WRONG_ENERGY = {"double": 1e-5, "single": 1e-4}
"""Likewise of the energy, in eV/atom."""


@dataclass(frozen=True)
class Settings:
    """What is the same for all measurements of one call."""

    models: ModelFiles
    device: str = "cpu"
    threads: int | None = None
    """``None`` is what the environment says."""
    steps: int | None = None
    """``None`` chooses by the number of atoms."""
    skin: float = 2.0
    temperature: float = 300.0
    options: str = ""
    """More keywords of the pair style."""
    free: bool = False
    """Whether atoms move without springs."""
    rebuilds: bool = False
    """Whether steps with a new list each are timed too."""
    ranks: int = 1
    """MPI ranks of LAMMPS."""
    profile: bool = False
    """Whether ours is run once more under torch's profiler."""

    @property
    def head(self) -> str:
        """The head that the options name, or nothing."""
        return md_lammps.value_of("head", self.options)


@dataclass(frozen=True)
class Row:
    """A line of docs/benchmarks/md.csv."""

    commit: str
    date: str
    device: str
    lammps: str
    model: str
    n_atoms: int
    edges_per_atom: float
    ranks: int
    precision: str
    impl: str
    ms_per_step: float | None
    us_per_atom_step: float | None
    peak_mib: float | None
    first_step_s: float | None

    def cells(self) -> dict[str, str]:
        """Column name -> text; what was not measured is empty."""
        digits = {"edges_per_atom": 1, "ms_per_step": 4, "us_per_atom_step": 4}
        digits |= {"peak_mib": 0, "first_step_s": 2}

        def text(name: str, value: object) -> str:
            if value is None:
                return ""
            return f"{value:.{digits[name]}f}" if name in digits else str(value)

        return {name: text(name, value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Result:
    """A measurement with its row and its errors against the reference."""

    row: Row
    measurement: Measurement
    reference: str
    energy_error: float | None = None
    """eV/atom."""
    force_error: float | None = None
    """Root mean square over components, eV/Å."""
    force_error_max: float | None = None
    """eV/Å."""
    status: str = "ok"

    @property
    def belongs_in_table(self) -> bool:
        """Whether this is a measurement; that a system does not fit is one, a failure is not."""
        return self.status == "ok" or "out of memory" in self.status

    def plain(self) -> dict:
        """Return everything but the forces, for JSON."""
        measurement = {k: v for k, v in vars(self.measurement).items() if k != "forces"}
        return {**vars(self), "row": asdict(self.row), "measurement": measurement}


def run(
    sizes: list[int],
    peers: dict[str, float],
    precisions: list[str],
    settings: Settings,
    ours: bool = True,
) -> Iterator[Result]:
    """Measure ours at every size and precision, then every peer; one process for each of ours.

    Args:
        sizes: Numbers of atoms, about.
        peers: Key of :data:`mace_stream.bench.md_peers.KINDS` -> largest size for it.
        precisions: ``double``, ``single`` or both.
        settings: All the rest.
        ours: Whether LAMMPS runs at all.
    """
    spec, _ = io.load(settings.models.ours)
    systems = [_system(size, settings) for size in sizes]
    edges = {system.n_atoms: system.edges_per_atom(spec.r_max) for system in systems}
    references = exact_results(sizes, settings)

    def finished(measured: Iterator[Measurement]) -> Iterator[Result]:
        for one in measured:
            row = make_row(one, settings, edges[one.n_atoms])
            yield judge(one, row, references[one.n_atoms])

    for precision in precisions:
        if ours:
            yield from finished(_ours(sizes, precision, settings))
        for name, largest in peers.items():
            fitting = [size for size in sizes if size <= largest]
            if fitting:
                yield from finished(_in_folder(_job(name, precision, fitting, settings)))


def exact_results(sizes: list[int], settings: Settings) -> dict[int, Reference]:
    """Return energies and forces of every size's pattern, by number of atoms.

    Raises:
        RuntimeError: The reference itself failed.
    """
    source = settings.models.source
    if source is None:
        return _evaluated(sorted(sizes), settings, EXACT_PATH)
    name = f"{peer_version('mace')}, float64"
    places = {
        size: md_reference.place_of(name, source, settings.head, _system(size, settings))
        for size in sorted(sizes)
    }
    missing = [size for size, place in places.items() if not place.exists()]
    references = _evaluated(missing, settings, name)
    for size, place in places.items():
        count = _system(size, settings).n_atoms
        if size in missing:
            md_reference.keep(place, references[count])
        references[count] = md_reference.read(place, name)
    return references


def _evaluated(sizes: list[int], settings: Settings, name: str) -> dict[int, Reference]:
    """Run the reference on the patterns of these sizes."""
    references = {}
    for size, one in zip(sizes, _exact(sizes, settings), strict=True):
        if one.status != "ok":
            raise RuntimeError(f"reference ({name}) of about {size} atoms: {one.status}")
        references[_system(size, settings).n_atoms] = Reference(name, one.energy, one.forces)
    return references


def _exact(sizes: list[int], settings: Settings) -> Iterator[Measurement]:
    """Evaluate the patterns of these sizes, by mace-torch or by our exact path on the CPU."""
    if not sizes:
        return iter(())
    if settings.models.source:
        return _in_folder(replace(_job("mace", "double", sizes, settings), steps=0, pattern=True))
    options = "radial exact" + (f" head {settings.head}" if settings.head else "")
    exact = replace(settings, device="cpu", steps=0, options=options, profile=False, rebuilds=False)
    return (_one_of_ours(size, "double", exact, alone=True) for size in sizes)


def judge(one: Measurement, row: Row, reference: Reference) -> Result:
    """Compare a measurement with the reference; a wrong result loses its time."""
    if one.status != "ok":
        return Result(row, one, reference.name, status=one.status)
    atoms = checked_atoms(one.n_atoms) % len(reference.forces)
    away = one.forces - reference.forces[atoms]
    energy_error = abs(one.energy - reference.energy)
    rms = float(np.sqrt(np.mean(away**2)))
    scale = float(np.sqrt(np.mean(reference.forces[atoms] ** 2)))
    bounds = WRONG[one.precision] * scale, WRONG_ENERGY[one.precision]
    right = rms <= bounds[0] and energy_error <= bounds[1]  # false for NaN
    if not right:
        row = replace(row, ms_per_step=None, us_per_atom_step=None)
    errors = energy_error, rms, float(np.abs(away).max())
    return Result(row, one, reference.name, *errors, status="ok" if right else "wrong_result")


def make_row(one: Measurement, settings: Settings, edges_per_atom: float) -> Row:
    """Return the line of the table for a measurement."""
    cpu = settings.device == "cpu"
    peak = one.host_peak_mib if cpu else one.device_peak_mib
    us_per_atom = None if one.ms_per_step is None else 1e3 * one.ms_per_step / one.n_atoms
    return Row(
        commit=commit(),
        date=date.today().isoformat(),
        device=cpu_name(settings.threads) if cpu else device_name(),
        lammps=one.version,
        model=settings.models.name,
        n_atoms=one.n_atoms,
        edges_per_atom=edges_per_atom,
        ranks=one.ranks,
        precision=one.precision,
        impl=one.impl,
        ms_per_step=one.ms_per_step,
        us_per_atom_step=us_per_atom,
        peak_mib=peak if one.status == "ok" else None,
        first_step_s=one.first_step_s,
    )


def columns() -> list[str]:
    """Return the columns of the table."""
    return [field.name for field in fields(Row)]


def append_csv(path: Path, row: Row) -> None:
    """Add a row to a table, with a header if the file is new."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns())
        if new:
            writer.writeheader()
        writer.writerow(row.cells())


def steps_for(n_atoms: int, device: str) -> int:
    """Return how many steps take about a second; a few hundred are cut to what needs no springs."""
    least, most, atoms = (5, 50, 8_000) if device == "cpu" else (10, 1000, 800_000)
    steps = max(least, min(most, atoms // n_atoms))
    short = md_lammps.SHORT - md_lammps.WARM_UP
    return min(steps, short) if steps < 5 * short else steps


@cache
def commit() -> str:
    """Return the commit of the source tree, or the version where there is none."""
    source = str(Path(mace_stream.__file__).parent)
    command = ["git", "-C", source, "describe", "--always", "--dirty", "--exclude", "*"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.strip() or mace_stream.__version__


def _ours(sizes: list[int], precision: str, settings: Settings) -> Iterator[Measurement]:
    return (_one_of_ours(size, precision, settings) for size in sizes)


def _one_of_ours(size: int, precision: str, settings: Settings, alone: bool = False) -> Measurement:
    system = _system(size, settings)
    steps = steps_for(system.n_atoms, settings.device) if settings.steps is None else settings.steps
    job = md_lammps.Run(
        system=system.pattern_alone() if alone else system,
        model=settings.models.ours,
        device=settings.device,
        precision=precision,
        steps=steps,
        options=settings.options,
        skin=settings.skin,
        temperature=settings.temperature,
        threads=settings.threads,
        free=settings.free,
        rebuilds=settings.rebuilds,
        ranks=1 if alone else settings.ranks,
    )
    with tempfile.TemporaryDirectory(prefix="mace_stream_") as folder:
        measured = md_lammps.measure(job, Path(folder))
        if settings.profile and measured.status == "ok":
            text = md_profile.measure(job, Path(folder))
            measured = replace(measured, profile=text)
    return measured


def _job(name: str, precision: str, sizes: list[int], settings: Settings) -> Job:
    return Job(
        name=name,
        model=settings.models.source,
        device=settings.device,
        precision=precision,
        sizes=tuple(sorted(sizes)),
        temperature=settings.temperature,
        head=settings.head,
        threads=settings.threads,
        steps=settings.steps,
    )


def _in_folder(job: Job) -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory(prefix="mace_stream_") as folder:
        yield from md_peer_process.measure(job, Path(folder))


def _system(size: int, settings: Settings) -> System:
    return make_system(size, settings.temperature)
