"""``mace-stream bench md`` and ``plot``: whole LAMMPS steps, ours beside others."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

if TYPE_CHECKING:
    from mace_stream.bench.md import Result
    from mace_stream.bench.md_models import ModelFiles

SIZES = "250,1024,5488,16000"
TABLE = Path("docs/benchmarks/md.csv")
WIDTH = 175
"""Columns of text that the widest table needs."""
ROW_COLUMNS = ("impl", "precision", "n_atoms", "edges_per_atom", "ms_per_step", "us_per_atom_step")
MAIN_COLUMNS = (
    *("impl", "precision", "atoms", "edges/atom", "ms/step", "µs/atom", "device MiB", "host MiB"),
    *("first step s", "|dE| eV/atom", "dF rms eV/Å", "dF max eV/Å"),
)


def md(
    sizes: Annotated[str, typer.Option(help="Numbers of atoms, about, with commas.")] = SIZES,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A .model file of mace-torch (trusted: it is unpickled) or a .mace file for Ti. "
            "Without it a random-weight twin of OMAT-0 medium is built; needs mace-torch.",
        ),
    ] = None,
    others: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="PEER[:LARGEST],...",
            help="Peers beside ours: mace, cueq, xl; each up to a number of atoms.",
        ),
    ] = "",
    peers_only: Annotated[bool, typer.Option("--peers-only", help="Leave ours out.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="double, single or both, with a comma.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Timed steps; default: by size.")] = None,
    skin: Annotated[float, typer.Option(help="Of LAMMPS' list, in Å.")] = 2.0,
    temperature: Annotated[float, typer.Option(help="Of displacements and velocities, K.")] = 300.0,
    threads: Annotated[int | None, typer.Option(min=1, help="On a CPU.")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="MPI ranks of LAMMPS.")] = 1,
    options: Annotated[str, typer.Option(help="More keywords of the pair style.")] = "",
    free: Annotated[
        bool, typer.Option("--free", help="Without the springs that hold a random model's crystal.")
    ] = False,
    rebuilds: Annotated[
        bool, typer.Option("--rebuilds", help="Time steps with a new list each, too.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Run ours once more and list its kernels.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, and tables on stderr.")
    ] = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Append each measured row there at once.")
    ] = None,
) -> None:
    """Time whole LAMMPS steps of titanium, results checked, beside other implementations."""
    console = Console(stderr=as_json)
    console.width = max(WIDTH, console.width)
    results = []
    try:
        from mace_stream.bench import md as bench

        place = choose_device(device)
        counts, peers = whole_numbers(sizes), check_peers(words(others), place)
        precisions = check_precisions(precision, place)
        settings = bench.Settings(
            models=find_quietly(model, needs_source=bool(peers)),
            device=place,
            threads=threads,
            steps=steps,
            skin=skin,
            temperature=temperature,
            options=options,
            free=free,
            rebuilds=rebuilds,
            ranks=ranks,
            profile=profile,
        )
        for result in bench.run(counts, peers, precisions, settings, ours=not peers_only):
            results.append(result)
            if csv_file and result.belongs_in_table:
                bench.append_csv(csv_file, result.row)
            console.print(line(result), highlight=False)
    except (ValueError, RuntimeError, OSError) as error:
        typer.echo(f"mace-stream bench md: {error}", err=True)
        raise typer.Exit(2) from None
    show(console, results)
    if as_json:
        typer.echo(json.dumps([result.plain() for result in results], indent=1))
    raise typer.Exit(0 if all(result.status == "ok" for result in results) else 1)


def plot(
    csv_file: Annotated[Path, typer.Option("--csv", help="Table of `bench md`.")] = TABLE,
    folder: Annotated[
        Path | None, typer.Option("--output", help="Folder for the pictures; default: beside it.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Rows of this value only; may be repeated."),
    ] = None,
) -> None:
    """Draw time and memory against the number of atoms: md_time.png and md_memory.png."""
    from mace_stream.bench.md_plot import plot_table

    try:
        chosen = dict(split_once(text) for text in where or ())
        for path in plot_table(csv_file, folder or csv_file.parent, chosen):
            typer.echo(path)
    except (ValueError, OSError) as error:
        typer.echo(f"mace-stream bench plot: {error}", err=True)
        raise typer.Exit(2) from None


# ---- what the user typed ----


def split_once(text: str) -> tuple[str, str]:
    """Split ``COLUMN=VALUE``.

    Raises:
        ValueError: There is no ``=``.
    """
    column, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"--where {text}: expected COLUMN=VALUE")
    return column, value


def words(text: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def whole_numbers(text: str, option: str = "--sizes") -> list[int]:
    """Return the numbers of an option.

    Raises:
        ValueError: One is no whole number, or there is none.
    """
    given = words(text)
    if not given or not all(word.isdigit() for word in given):
        raise ValueError(f"{option}: expected whole numbers with commas, got {text!r}")
    return [int(word) for word in given]


def check_precisions(text: str | None, device: str) -> list[str]:
    """Return the precisions asked for, or the device's own."""
    from mace_stream.bench.md import PRECISIONS

    given = words(text) if text else ["double" if device == "cpu" else "single"]
    for word in given:
        if word not in PRECISIONS:
            raise ValueError(f"--precision: expected {' or '.join(PRECISIONS)}, got {word}")
    return given


def check_peers(given: list[str], device: str) -> dict[str, float]:
    """Return name -> largest size.

    Raises:
        ValueError: A peer is unknown or not installed, or its size is no number.
    """
    from mace_stream.bench.md_peers import check_named

    peers = {}
    for word in given:
        name, colon, largest = word.partition(":")
        check_named(name, device)
        peers[name] = whole_numbers(largest, f"--with {name}:")[0] if colon else float("inf")
    return peers


def choose_device(name: str) -> str:
    """Return ``cpu`` or ``cuda``."""
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--device: expected auto, cpu or cuda, got {name}")
    if name == "cpu":
        return name
    import torch

    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise ValueError(f"--device cuda: torch {torch.__version__} sees no CUDA device")
    return "cuda" if there else "cpu"


def find_quietly(model: Path | None, needs_source: bool) -> ModelFiles:
    """Return the model's files; upstream packages warn about their own internals."""
    from mace_stream.bench.md_models import find_models

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = find_models(model)
    if needs_source and files.source is None:
        raise ValueError(
            f"--with: peers need mace-torch's own file of {files.ours.name}; "
            "give that: --model FILE.model"
        )
    return files


# ---- what is printed ----


def line(result: Result) -> str:
    """Return one measurement in a line."""
    row = result.row
    text = f"{row.impl} {row.precision} {row.n_atoms} atoms: "
    if row.ms_per_step is None:
        return text + result.status
    cells = row.cells()
    text += f"{cells['ms_per_step']} ms, {cells['us_per_atom_step']} µs/atom, "
    text += f"{cells['peak_mib'] or '?'} MiB, first step {cells['first_step_s']} s, "
    return text + f"dE {result.energy_error:.1e} eV/atom, dF {result.force_error:.1e} eV/Å"


def show(console: Console, results: list[Result]) -> None:
    """Print the tables, then what the pair style and the profiler said."""
    if not results:
        return
    console.print(main_table(results))
    ours = [result for result in results if "Pair" in result.measurement.parts]
    if ours:
        console.print(parts_table(ours))
    for result in results:
        for text in (result.measurement.report, result.measurement.profile):
            if text:
                console.print(f"\n{line(result)}\n{text}", markup=False, highlight=False)


def main_table(results: list[Result]) -> Table:
    """Return times, memory and errors of all measurements."""
    first = results[0]
    title = f"{first.row.model}, {first.row.device}; reference: {first.reference}"
    status = Column("status", no_wrap=True, overflow="ellipsis", max_width=20)
    table = Table(*MAIN_COLUMNS, status, title=title)
    for result in results:
        cells = result.row.cells()
        memory = (result.measurement.device_peak_mib, result.measurement.host_peak_mib)
        errors = (result.energy_error, result.force_error, result.force_error_max)
        table.add_row(
            *(cells[name] for name in ROW_COLUMNS),
            *("" if value is None else f"{value:.0f}" for value in memory),
            cells["first_step_s"],
            *("" if value is None else f"{value:.1e}" for value in errors),
            result.status,
        )
    return table


def parts_table(results: list[Result]) -> Table:
    """Return LAMMPS' own account of the steps."""
    names = list(dict.fromkeys(name for result in results for name in result.measurement.parts))
    table = Table(
        "atoms", "precision", *names, title="LAMMPS' account, ms per step (lists: number)"
    )
    for result in results:
        parts = result.measurement.parts
        texts = (f"{parts[name]:.3f}" if name in parts else "" for name in names)
        table.add_row(str(result.row.n_atoms), result.row.precision, *texts)
    return table
