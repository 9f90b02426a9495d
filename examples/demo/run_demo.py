"""Run examples/demo/in.demo in LAMMPS, show its progress and plot what came out.

``make demo`` calls this. ``MACE_STREAM_DEMO_STEPS`` sets the number of MD steps; the log, the
numbers and the plot go to ``demo/`` in the repository's root.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
INPUT = Path("examples/demo/in.demo")  # relative: LAMMPS variables cannot hold spaces
OUT = Path("demo")
COLUMNS = ("step", "time", "temp", "pe", "ke", "etotal", "press")
DEFAULT_STEPS = 200


def main() -> int:
    """Run, plot, and print where everything lies; return the exit status."""
    steps = int(os.environ.get("MACE_STREAM_DEMO_STEPS", DEFAULT_STEPS))
    os.chdir(ROOT)
    OUT.mkdir(exist_ok=True)
    lines = run_lammps(steps)
    thermo = thermo_table(lines)
    loop = re.search(r"Loop time of (\S+) .* for (\d+) steps with (\d+) atoms", "".join(lines))
    if loop is None or len(thermo) < 3:
        print("".join(lines[-30:]), file=sys.stderr)
        print(
            "The demo failed: LAMMPS did not finish. Its last lines stand above, the rest in "
            f"{ROOT / OUT / 'log.lammps'}. Next: .venv/bin/mace-stream doctor",
            file=sys.stderr,
        )
        return 1
    if int(loop[2]) < steps:
        print(f"Stopped after {loop[2]} of {steps} steps: the time limit in {INPUT} was reached.")
    report(thermo, seconds=float(loop[1]), steps=int(loop[2]), n_atoms=int(loop[3]))
    return 0


def run_lammps(steps: int) -> list[str]:
    """Run the input with a progress bar and return all lines of its screen output."""
    command = [lmp(), "-in", str(INPUT), "-log", str(OUT / "log.lammps"), "-var", "steps", steps]
    lines = []
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with process, Progress(*columns) as progress:
        task = progress.add_task("Loading the model ...", total=steps)
        for line in process.stdout:
            lines.append(line)
            for row in rows([line]):
                text = f"step {row[0]:.0f} of {steps}  T = {row[2]:5.0f} K"
                progress.update(task, completed=row[0], description=text)
    return lines


def lmp() -> Path:
    """Return the ``lmp`` script that belongs to this Python."""
    return Path(sys.executable).with_name("lmp")


def rows(lines: list[str]) -> Iterator[list[float]]:
    """Yield the numbers of every thermo line."""
    for line in lines:
        words = line.split()
        if len(words) == len(COLUMNS) and re.fullmatch(r"\d+", words[0]):
            try:
                yield [float(word) for word in words]
            except ValueError:
                continue


def thermo_table(lines: list[str]) -> np.ndarray:
    """Return the thermo output [n_rows, columns] in LAMMPS metal units."""
    return np.array(list(rows(lines))).reshape(-1, len(COLUMNS))


def drift_per_atom(thermo: np.ndarray, n_atoms: int) -> float:
    """Return the slope of the total energy in eV/atom/ps, without the first quarter of the run."""
    settled = thermo[len(thermo) // 4 :]
    return float(np.polyfit(settled[:, 1], settled[:, 5] / n_atoms, 1)[0])


def report(thermo: np.ndarray, *, seconds: float, steps: int, n_atoms: int) -> None:
    """Write the numbers and the plot; print their places and one line of results."""
    drift = drift_per_atom(thermo, n_atoms)
    np.savetxt(OUT / "thermo.csv", thermo, delimiter=",", header=",".join(COLUMNS), comments="")
    plot(thermo, n_atoms, drift)
    print(f"Log:  {ROOT / OUT / 'log.lammps'}")
    print(f"Plot: {ROOT / OUT / 'demo.png'}")
    print(
        f"{steps / seconds:.2f} steps/s, {n_atoms} atoms, drift {drift:+.1e} eV/atom/ps, "
        f"mean T {thermo[len(thermo) // 4 :, 2].mean():.0f} K"
    )


def plot(thermo: np.ndarray, n_atoms: int, drift: float) -> None:
    """Draw energies, temperature and the total energy's drift against time."""
    time = thermo[:, 1]
    fig, axes = plt.subplots(3, 1, sharex=True, figsize=(7, 8), layout="constrained")
    for column, label in ((3, "potential"), (5, "total")):
        axes[0].plot(time, thermo[:, column] / n_atoms, label=label)
    axes[0].set_ylabel("energy (eV/atom)")
    axes[0].legend()
    axes[0].set_title(f"{n_atoms} titanium atoms, NVE, pair_style mace/stream")
    axes[1].plot(time, thermo[:, 2], color="tab:red")
    axes[1].set_ylabel("temperature (K)")
    axes[2].plot(time, (thermo[:, 5] - thermo[0, 5]) / n_atoms * 1e6, color="tab:green")
    axes[2].set_ylabel("total energy - start (µeV/atom)")
    axes[2].set_title(f"drift {drift:+.1e} eV/atom/ps", fontsize="medium")
    axes[2].set_xlabel("time (ps)")
    fig.savefig(OUT / "demo.png", dpi=150)
    plt.close(fig)


if __name__ == "__main__":
    sys.exit(main())
