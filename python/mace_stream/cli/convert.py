"""``mace-stream convert``: a mace-torch model file becomes a ``.mace`` file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Model file of mace-torch.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.mace")],
    head: Annotated[
        str | None, typer.Option(metavar="NAME", help="Keep this head only; default: keep all.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="float32|float64", help="Of the weights; default: the source's."),
    ] = None,
) -> None:
    """Convert a mace-torch model file and compare the result with mace-torch.

    Opening FILE runs code that it contains: convert only files of people you trust. Needs the
    extra: pip install 'mace-stream[convert]'.
    """
    try:
        # Upstream packages warn about their own internals; nothing a user could act on.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mace_stream.convert import convert as run

            spec = run(source, output, head=head, dtype=dtype, say=typer.echo)
    except (ValueError, OSError) as error:
        typer.echo(f"mace-stream convert: {error}", err=True)
        raise typer.Exit(1) from None
    heads = f", heads {', '.join(spec.heads)}" if len(spec.heads) > 1 else ""
    typer.echo(f"wrote {output}: {spec.architecture}, {spec.dtype}{heads}")
    typer.echo(f"look at it with: mace-stream info {output}")
