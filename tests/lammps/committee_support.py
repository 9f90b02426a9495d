"""Committees of tiny models, their separate results, and the deviation in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from ase import Atoms
from lammps_cells import triclinic_cell
from lammps_models import Model, Result
from lammps_support import Setup, by_id, evaluate, opened, prepare

from mace_stream import io

DEVIATION = "compute dev all mace/stream/deviation"
MOVE = ("velocity all create 300 4711", "timestep 0.0005", "fix move all nve")
FAST = "radial exact committee first"
"""No tables are made when it is loaded."""
NAMES = ("plain", "one_layer", "binary")
"""Other elements in another order, another number of layers, with and without ZBL."""


def carbide() -> Atoms:
    """Two elements in a sheared cell thinner than the cutoff."""
    atoms = triclinic_cell()
    atoms.symbols = ["Si", "C"] * 6
    return atoms


def relative(model: Model, seed: int, r_max: float | None = None) -> Model:
    """The same model with other readouts, and perhaps another cutoff."""
    spec, tensors = io.load(model.path)
    rng = np.random.default_rng(seed)
    for name in (name for name in tensors if name.startswith("readouts")):
        tensors[name] = tensors[name] * rng.normal(1.0, 0.2, tensors[name].shape)
    if r_max is not None:
        spec = replace(spec, r_max=r_max)
        tensors["radial.cutoff.r_max"] = np.full_like(tensors["radial.cutoff.r_max"], r_max)
    path = model.path.with_name(f"{model.path.stem}_{seed}_{r_max}.mace")
    io.save(path, spec, tensors)
    return replace(model, path=path)


def make_alike(model: Callable[[str], Model]) -> tuple[Model, ...]:
    """Three that differ a little, as models of one training set do; the second sees less far."""
    plain = model("plain")
    return plain, relative(plain, 1, 4.0), relative(plain, 2)


def setup_of(models: tuple[Model, ...], atoms: Atoms, style: str = "", **changes) -> Setup:
    return replace(Setup(atoms, models[0], style, others=models[1:]), **changes)


def separately(setup: Setup) -> list[Result]:
    """One LAMMPS for each model."""
    alone = replace(setup, others=())
    return [evaluate(replace(alone, model=one)) for one in (setup.model, *setup.others)]


def average(results: list[Result]) -> Result:
    names = ("energy", "forces", "virial", "node_energy", "node_virial", "centroid_virial")
    return Result(*(np.mean([getattr(r, name) for r in results], axis=0) for name in names))


def deviation_of(forces: list[np.ndarray]) -> np.ndarray:
    """The formula, in NumPy: sqrt(<|F - <F>|^2>) of every atom."""
    off = np.array(forces) - np.mean(forces, axis=0)
    return np.sqrt(np.mean(np.sum(off**2, axis=-1), axis=0))


def ask(setup: Setup, *lines: str) -> np.ndarray:
    """The deviation of every atom at the end of ``lines``."""
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.command(DEVIATION)
        lmp.commands_list([*lines] or ["run 0 post no"])
        return peratom(lmp)


def peratom(lmp, name: str = "dev") -> np.ndarray:
    return lmp.numpy.extract_compute(name, 1, 1)[by_id(lmp)].copy()


def summary(lmp, name: str = "dev") -> np.ndarray:
    return np.array(lmp.numpy.extract_compute(name, 0, 1))
