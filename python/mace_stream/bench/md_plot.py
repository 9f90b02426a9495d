"""Pictures of docs/benchmarks/md.csv: time and memory against the number of atoms."""

from __future__ import annotations

import csv
from pathlib import Path

Curves = dict[str, dict[int, float]]
"""Label -> number of atoms -> value."""
PICTURES = {
    "md_time.png": ("us_per_atom_step", "µs per atom and step"),
    "md_memory.png": ("peak_mib", "peak memory, MiB"),
}


def plot_table(table: Path, folder: Path, where: dict[str, str] | None = None) -> list[Path]:
    """Draw both pictures, and return their paths.

    Args:
        table: What ``bench md`` has written.
        folder: Gets the pictures.
        where: Column -> value; other rows are left out.

    Raises:
        ValueError: The table has no such column, or no measurement.
    """
    where = where or {}
    with table.open(newline="") as file:
        reader = csv.DictReader(file)
        unknown = set(where) - set(reader.fieldnames or ())
        if unknown:
            names = ", ".join(reader.fieldnames or ())
            raise ValueError(f"--where {', '.join(unknown)}: no such column; there are {names}")
        rows = [row for row in reader if row["us_per_atom_step"] and where.items() <= row.items()]
    if not rows and where:
        raise ValueError(f"{table}: no measurements where {where}")
    if not rows:
        raise ValueError(f"{table}: no measurements; type: mace-stream bench md --csv {table}")
    return [
        _draw(curves(rows, column), label, folder / name)
        for name, (column, label) in PICTURES.items()
    ]


def curves(rows: list[dict[str, str]], column: str) -> Curves:
    """Return one curve per device, model, implementation and precision; later rows win.

    What all rows share is left out of the labels.
    """
    told = ("impl", "precision", "model", "device", "ranks")
    varied = [name for name in told if name == "impl" or len({row[name] for row in rows}) > 1]
    found: Curves = {}
    for row in rows:
        if row[column]:
            label = ", ".join(_told(name, row[name]) for name in varied)
            found.setdefault(label, {})[int(row["n_atoms"])] = float(row[column])
    return found


def _told(column: str, value: str) -> str:
    return f"{column}: {value}" if column == "ranks" else value


def _draw(drawn: Curves, label: str, path: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 4.5 + 0.2 * len(drawn)))
    for name, points in drawn.items():
        sizes = sorted(points)
        axis.loglog(sizes, [points[size] for size in sizes], "o-", label=name)
    axis.set_xlabel("atoms")
    axis.set_ylabel(label)
    axis.grid(visible=True, which="both", alpha=0.3)
    axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15))
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
