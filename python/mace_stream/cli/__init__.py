"""The command ``mace-stream``. Commands import what is heavy only when they run."""

import typer

from mace_stream.cli.bench import app as bench
from mace_stream.cli.convert import convert
from mace_stream.cli.doctor import doctor
from mace_stream.cli.info import info
from mace_stream.cli.validate import validate

app = typer.Typer(
    help="MACE potentials in stock LAMMPS: pair_style mace/stream.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (convert, info, validate, doctor):
    app.command()(command)
app.add_typer(bench, name="bench")
