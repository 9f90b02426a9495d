"""A small MACE model of titanium trained in torch and in JAX, from one file and one set of data.

    python examples/training/train_titanium.py prepare run     data and run/initial.mace
    python examples/training/train_titanium.py torch run       run/torch.mace and run/torch.csv
    python examples/training/train_titanium.py jax run         the same from JAX
    python examples/training/train_titanium.py compare run     loss curves and models of the two

``run`` is a folder of any name. JAX has to be installed for the third (pip install
'mace-stream[jax]'). Docs: docs/training.md.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path

import numpy as np
from titanium import TEACHER, Batch, make_batches, structures, student, with_statistics

from mace_stream import io

COLUMNS = ("step", "loss")


def label(frames: list) -> tuple[np.ndarray, np.ndarray]:
    """Energies [n_frames] and forces [n_frames, n_atoms, 3] of the teacher."""
    import fit_torch

    from mace_stream.torch import MACE

    model = MACE.from_file(TEACHER)
    unlabelled = np.zeros(len(frames)), np.zeros((len(frames), len(frames[0]), 3))
    parts = [
        fit_torch.energies_and_forces(model, batch)
        for batch in make_batches(frames, *unlabelled, model.r_max, 1)
    ]
    energies, forces = zip(*parts, strict=True)
    return (
        np.concatenate([part.detach().numpy() for part in energies]),
        np.stack([part.detach().numpy() for part in forces]),
    )


def prepare(folder: Path, options: argparse.Namespace) -> None:
    """Write ``initial.mace``, and structures with the teacher's energies and forces."""
    frames = structures(options.structures, (2, 2, 2))
    energies, forces = label(frames)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "data.npz",
        positions=[atoms.positions for atoms in frames],
        cells=[atoms.cell.array for atoms in frames],
        energies=energies,
        forces=forces,
    )
    spec, tensors = student(options.channels, options.width)
    batches = load_batches(folder, spec.r_max, options.batch)
    io.save(folder / "initial.mace", spec, with_statistics(tensors, batches))
    n_edges = len(batches[0].sender)
    print(f"{len(frames)} structures, {len(batches)} batches of {n_edges} edges")
    print(f"forces: {1000 * np.sqrt(np.mean(forces**2)):.0f} meV/Å")


def load_batches(folder: Path, r_max: float, size: int) -> list[Batch]:
    """Read the structures that :func:`prepare` wrote."""
    from ase import Atoms

    data = np.load(folder / "data.npz")
    frames = [
        Atoms(f"Ti{len(x)}", positions=x, cell=cell, pbc=True)
        for x, cell in zip(data["positions"], data["cells"], strict=True)
    ]
    return make_batches(frames, data["energies"], data["forces"], r_max, size)


def train(framework: str, folder: Path, options: argparse.Namespace) -> None:
    """Train in one framework; only that one is imported."""
    if framework == "torch":
        from fit_torch import fit
    else:
        from fit_jax import fit
    spec, tensors = io.load(folder / "initial.mace")
    batches = load_batches(folder, spec.r_max, options.batch)
    losses, trained, start = [], tensors, time.perf_counter()
    for value, after in fit(spec, tensors, batches, options.rate, options.epochs):
        losses.append(value)
        trained = after
        if len(losses) % len(batches) == 0:
            mean = np.mean(losses[-len(batches) :])
            seconds = time.perf_counter() - start
            print(f"epoch {len(losses) // len(batches):3}  loss {mean:.6e}  {seconds:6.1f} s")
    io.save(folder / f"{framework}.mace", spec, trained)
    with (folder / f"{framework}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *enumerate(map(repr, losses))])


def compare(folder: Path, options: argparse.Namespace) -> None:
    """Print how far the two loss curves and the two models are apart."""
    del options
    curves = [read_losses(folder / f"{name}.csv") for name in ("torch", "jax")]
    gap = np.abs(curves[1] / curves[0] - 1)
    print(f"loss: from {curves[0][0]:.3e} to {curves[0][-1]:.3e} in {len(gap)} steps")
    print(f"largest relative difference of the loss, JAX to torch: {gap.max():.1e}")
    tensors = [io.load(folder / f"{name}.mace")[1] for name in ("torch", "jax")]
    gaps = [np.abs(tensors[0][name] - tensors[1][name]).max() for name in tensors[0]]
    print(f"largest difference of a trained weight: {max(gaps):.1e}")


def read_losses(path: Path) -> np.ndarray:
    """Loss before every step."""
    with path.open(newline="") as file:
        return np.array([float(row["loss"]) for row in csv.DictReader(file)])


def main(words: list[str]) -> None:
    """Run one of the four commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["prepare", "torch", "jax", "compare"])
    parser.add_argument("folder", type=Path)
    sizes = {"structures": 32, "batch": 4, "channels": 8, "width": 16, "epochs": 10}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--rate", type=float, default=0.01, help="default 0.01")
    options = parser.parse_args(words)
    if options.command in ("torch", "jax"):
        train(options.command, options.folder, options)
    else:
        {"prepare": prepare, "compare": compare}[options.command](options.folder, options)


if __name__ == "__main__":
    main(sys.argv[1:])
