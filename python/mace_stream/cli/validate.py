"""``mace-stream validate``: LAMMPS against mace-torch (or the NumPy oracle), with a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def validate(
    model: Annotated[Path, typer.Argument(metavar="FILE.mace")],
    structures: Annotated[
        list[Path] | None,
        typer.Argument(metavar="STRUCTURE", help="Files that ASE reads; all their frames."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.model",
            help="The mace-torch file the model was converted from (trusted: it is unpickled). "
            "Without it, this package's own NumPy oracle is the reference.",
        ),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="in.lammps",
            help="Your own LAMMPS input. It must define box, atoms and pair style; it is run as "
            "it stands, then `run 0`, and the configuration it leaves is compared.",
        ),
    ] = None,
    elements: Annotated[
        str | None,
        typer.Option(help="Elements of the types of --input, e.g. 'Ti O'; default: by mass."),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR")] = Path("validation"),
    head: Annotated[str | None, typer.Option(help="Head of a model with several.")] = None,
    precision: Annotated[str, typer.Option(help="double or single: which bounds hold.")] = "double",
    style: Annotated[
        str, typer.Option(help="More keywords of pair_style mace/stream, for STRUCTURE.")
    ] = "",
    newton: Annotated[str, typer.Option(help="on or off, for STRUCTURE.")] = "on",
) -> None:
    """Run structures through LAMMPS and through a reference, and compare energies and forces.

    Prints a table, writes validation.json and parity.png, and fails if a bound is exceeded.
    """
    from mace_stream.validation import validate as run

    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
            task = bar.add_task("starting", total=None)
            report = run(
                model,
                structures or [],
                reference=reference,
                script=script,
                elements=elements.split() if elements else None,
                head=head,
                precision=precision,
                style=style,
                newton=newton,
                output=output,
                progress=lambda stage, total: bar.update(
                    task, description=stage, total=total, advance=1
                ),
            )
        text, plot = report.write(output)
    except (ValueError, RuntimeError, OSError) as error:
        typer.echo(f"mace-stream validate: {error}", err=True)
        raise typer.Exit(2) from None
    console.print(report.table())
    console.print(f"{text}\n{plot}", highlight=False, soft_wrap=True)
    console.print("PASS" if report.passed else "FAIL: a difference exceeds its bound")
    raise typer.Exit(0 if report.passed else 1)
