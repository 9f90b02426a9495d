"""``mace-stream info``: everything that a ``.mace`` file says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from mace_stream import io
from mace_stream.spec import LayerSpec, ModelSpec


def info(file: Annotated[Path, typer.Argument(metavar="FILE.mace")]) -> None:
    """Print architecture, elements, heads, energies per atom and origin of a .mace file."""
    try:
        spec, tensors = io.load(file)
        digest = io.sha256(file)
    except (ValueError, OSError) as error:
        typer.echo(f"mace-stream info: {error}", err=True)
        raise typer.Exit(1) from None
    console = Console(markup=False, highlight=False)
    console.print(_model_table(file, digest, spec, tensors))
    console.print(_layer_table(spec))
    console.print(_energy_table(spec, tensors))
    console.print(_pairs("origin", spec.provenance))


def parameter_count(tensors: dict[str, np.ndarray]) -> int:
    """Number of trained weights: constants, couplings and energies per atom are not counted."""
    weights = ("node_embedding.", "readouts.")
    parts = (".linear_up.", ".radial.", ".linear.", ".density", ".skip.", ".weight.")
    return sum(
        array.size
        for name, array in tensors.items()
        if name.startswith(weights)
        or (name.startswith("layers.") and any(part in name for part in parts))
    )


def _pairs(title: str, rows: dict[str, object]) -> Table:
    # Without lines, so that a SHA-256 fits on one line of 80 characters.
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def _model_table(file: Path, digest: str, spec: ModelSpec, tensors: dict[str, np.ndarray]) -> Table:
    from ase.data import chemical_symbols

    kept = "" if len(spec.heads) == spec.n_heads_source else f" (of {spec.n_heads_source})"
    transform = "" if spec.radial.transform == "none" else f", {spec.radial.transform} transform"
    rows = {
        "file": file,
        "size": f"{file.stat().st_size:,} bytes",
        "SHA-256": digest,
        "format version": spec.format_version,
        "class": spec.architecture,
        "dtype": spec.dtype,
        "parameters": f"{parameter_count(tensors):,}",
        "r_max": f"{spec.r_max:g} Å",
        "elements": " ".join(chemical_symbols[z] for z in spec.elements),
        "heads": ", ".join(spec.heads) + kept,
        "harmonics": f"l = 0 to {spec.l_max}",
        "radial basis": f"{spec.radial.n_basis} {spec.radial.basis}{transform}",
        "cutoff": f"polynomial, p = {float(tensors['radial.cutoff.p']):g}",
        "pair repulsion": spec.pair_repulsion,
        "readouts": ", ".join(f"{r.kind} of layer {r.layer + 1}" for r in spec.readouts),
    }
    return _pairs("model", rows)


def _layer_table(spec: ModelSpec) -> Table:
    table = Table(title="layers", title_justify="left", show_lines=True)
    for header in ("", *(str(t + 1) for t in range(len(spec.layers)))):
        table.add_column(header, overflow="fold")
    columns = [_layer_rows(layer) for layer in spec.layers]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _layer_rows(layer: LayerSpec) -> dict[str, str]:
    activation = f"{layer.radial_activation} x {layer.radial_activation_scale:.6g}"
    return {
        "interaction": layer.block,
        "irreps in": layer.irreps_in,
        "irreps of the convolution": layer.irreps_up,
        "irreps of the message": layer.irreps_message,
        "irreps out": layer.irreps_out,
        "convolution paths": str(len(layer.paths)),
        "radial network": "-".join(map(str, layer.radial_widths)),
        "activation": activation,
        "correlation": str(layer.correlation),
        "skip connection": "yes" if layer.use_sc else "no",
    }


def _energy_table(spec: ModelSpec, tensors: dict[str, np.ndarray]) -> Table:
    """E0 of every element and the scale and shift, one column per head."""
    from ase.data import chemical_symbols

    table = Table(title="energies (eV)", title_justify="left")
    for header in ("", *spec.heads):
        table.add_column(header)
    for species, z in enumerate(spec.elements):
        energies = tensors["atomic_energies"][:, species]
        table.add_row(f"E0 {chemical_symbols[z]}", *(f"{energy:.8g}" for energy in energies))
    for name in ("scale", "shift"):
        table.add_row(name, *(f"{value:.8g}" for value in tensors[name]))
    return table
