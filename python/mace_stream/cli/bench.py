"""``mace-stream bench``: measurements of the kernels on this machine."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mace_stream.cli import bench_md

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)
WIDTH = 110
"""Columns of text that the table needs; where the output is no terminal, it would get 80."""


@app.callback()
def _group() -> None:
    """Measure on this machine."""


app.command()(bench_md.md)
app.command()(bench_md.plot)


@app.command()
def conv(
    case: Annotated[
        list[str] | None, typer.Option(help="first, medium, large or wide; may be repeated.")
    ] = None,
    others: Annotated[
        str, typer.Option("--with", help="Peers beside ours: oeq, cueq, plain; with commas.")
    ] = "",
    device: Annotated[
        str, typer.Option(help="cuda or cpu; auto: cuda where there is one.")
    ] = "auto",
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    graph: Annotated[str, typer.Option(help="uniform or hcp_ti.")] = "uniform",
    nodes: Annotated[int, typer.Option(help="Number of nodes, about.")] = 5000,
    repeats: Annotated[int, typer.Option(min=2, help="Timed runs of each pass.")] = 15,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows there.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Append the rows there.")] = None,
    jax: Annotated[bool, typer.Option(help="Measure our operator in JAX too.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture there (PNG).")] = None,
) -> None:
    """Time the convolution: forward, VJP and Hessian-vector product, each result checked."""
    import torch

    from mace_stream.bench import conv as bench
    from mace_stream.bench.cases import CASES, GRAPHS
    from mace_stream.bench.peers import PEERS

    names = [name for name in others.split(",") if name]
    cases = case or list(CASES)
    for given, known in ((cases, CASES), (names, PEERS), ([graph], GRAPHS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise typer.BadParameter(f"{unknown[0]}: expected one of {', '.join(known)}")
    place = device if device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    settings = {"device": place, "dtype": getattr(torch, dtype), "graph": graph}
    settings |= {"n_nodes": nodes, "repeats": repeats}
    console = Console()
    rows = []
    measured = [bench.run(cases, names, **settings)]
    if jax:
        from mace_stream.bench import conv_jax

        measured.append(conv_jax.run(cases, **settings))
    with console.status("measuring"):
        for row in chain(*measured):
            rows.append(row)
            if csv_file:
                bench.append_csv(csv_file, row)
            console.log(f"{row.case} {row.impl} {row.pass_name} {row.median_ms} {row.status}")
    console.width = max(console.width, WIDTH)
    console.print(_table(rows))
    if json_file:
        json_file.write_text(json.dumps([row.cells() for row in rows], indent=1))
    if plot:
        from mace_stream.bench.plot import plot_rows

        plot_rows(rows, plot)


def _table(rows: list) -> Table:
    columns = ("case", "pass", "impl", "median_ms", "floor_ms", "peak_mib", "rel_err", "status")
    first = rows[0]
    table = Table(
        *columns, title=f"{first.device}, {first.dtype}, {first.graph}, {first.n_nodes} nodes"
    )
    for row in rows:
        cells = row.cells() | {"impl": row.label}
        table.add_row(*(cells[name] for name in columns))
    return table
