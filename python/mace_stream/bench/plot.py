"""The picture of a convolution benchmark: bars per case and pass, with the memory floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mace_stream.bench.conv import PASSES, Row


def plot_rows(rows: list[Row], path: Path) -> None:
    """Draw milliseconds of every implementation; a dash is the time to move the weights."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    done = [row for row in rows if row.median_ms is not None]
    cases = list(dict.fromkeys(row.case for row in done))
    figure, axes = plt.subplots(1, len(cases), figsize=(4 * len(cases), 3.5), squeeze=False)
    for axis, case in zip(axes[0], cases, strict=True):
        _draw_case(axis, case, [row for row in done if row.case == case])
    axes[0][0].set_ylabel("ms")
    figure.suptitle(f"{done[0].device}, {done[0].dtype}, {done[0].graph}; dashed: memory floor")
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=6)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_case(axis: Any, case: str, rows: list[Row]) -> None:
    labels = list(dict.fromkeys(row.label for row in rows))
    for k, label in enumerate(labels):
        bars = {row.pass_name: row.median_ms for row in rows if row.label == label}
        places = [PASSES.index(name) + 0.8 * (k + 0.5) / len(labels) - 0.4 for name in bars]
        axis.bar(places, bars.values(), 0.8 / len(labels), label=label)
    floors = {row.pass_name: row.floor_ms for row in rows if row.floor_ms is not None}
    for name, floor in floors.items():
        place = PASSES.index(name)
        axis.hlines(floor, place - 0.4, place + 0.4, colors="black", linestyles="dashed")
    axis.set_xticks(range(len(PASSES)), PASSES)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    axis.set_ylim(bottom=0.5 * min(floors.values(), default=min(row.median_ms for row in rows)))
    axis.set_title(case)
