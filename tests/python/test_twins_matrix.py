"""Every architecture, full size, by every path: `pytest -m twins`, which writes a table.

Random weights of the shapes of the foundation models, against mace-torch in float64 on a rattled
crystal of two elements. In single precision the yardstick is mace-torch's own.
"""

from __future__ import annotations

import copy
import csv
import datetime
from functools import cache
from itertools import product
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import torch
from model_support import ARCHS, build_twin, graph_of, learned, spec_and_tensors, truth

from mace_stream.bridge import check_options
from mace_stream.spec import INPUT_DEFAULTS
from mace_stream.testing import EXACT, structure
from mace_stream.torch.evaluators import choose_evaluator

pytestmark = pytest.mark.twins

TABLE = Path(__file__).parents[2] / "docs" / "benchmarks" / "models.csv"
COLUMNS = (
    *("arch", "device", "precision", "radial", "max_dE_ev_per_atom", "max_dF", "rms_dF"),
    *("us_per_atom_step", "status", "date"),
)
SPLINE_FORCE = 1e-7
"""eV/Å in double precision with tables of the radial functions."""
SINGLE_ENERGY = 5e-6
"""Energies of atoms in single precision, RMS error in eV, or twice mace-torch's where that is more.

The error of the total, which the table shows, is a mean of errors of both signs: of 36 atoms it
comes out smaller or larger by chance, in mace-torch by a factor of two from one machine to another.
"""
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
        ],
    ),
]


@cache
def source(arch):
    """The twin, a structure, and the truth; the last one only, as some are large."""
    elements = (6, 8) if arch.startswith("OFF") else (22, 8)
    model = build_twin(arch, elements=elements)
    if "NonLinear" in ARCHS[arch].first:
        learned(model)
    atoms = structure("hcp_ti_rattled", elements=elements)
    used = {item.name: INPUT_DEFAULTS[item.name] for item in spec_and_tensors(model)[0].inputs}
    with_messages_of_one(model, atoms, used)
    exact = truth(model, atoms, 0, used)
    single = truth(copy.deepcopy(model).float(), atoms, 0, used)
    errors = single.node_energy - exact.node_energy, single.forces - exact.forces
    return spec_and_tensors(model), atoms, exact, tuple(map(rms, errors))


def with_messages_of_one(model, atoms, used):
    """Scale every layer's messages to an RMS of 1, as training does; random densities are near 0,
    and energies of 10^8 eV would have bounds of their own."""
    for interaction in model.interactions:
        found = []
        hook = interaction.register_forward_hook(lambda _, __, out, f=found: f.append(out[0]))
        truth(model, atoms, 0, used)
        last = interaction.linear_2 if hasattr(interaction, "linear_2") else interaction.linear
        last.weight.data /= rms(found[-1].detach())
        hook.remove()
    return model


def rms(x):
    return float((x**2).mean() ** 0.5)


def evaluate(spec, tensors, atoms, words):
    """Node energies, forces and seconds of a second evaluation, as a session would get them."""
    graph = graph_of(atoms, spec.elements, spec.r_max)
    n, n_edges = len(atoms), len(graph.sender)
    evaluator = choose_evaluator(
        *(spec, tensors, check_options(words)),
        head=spec.heads[0],
        species=sorted({int(z) for z in graph.species}),
        launch=(0, torch.get_num_threads()),
    )
    images = atoms.positions[graph.sender] + graph.shift @ atoms.cell.array
    positions = np.concatenate([atoms.positions, images])
    arrays = (graph.sender, graph.receiver, n + np.arange(n_edges))
    evaluator.set_topology(
        graph.indptr.astype(np.int64), *(a.astype(np.int32) for a in arrays), graph.species
    )
    evaluator.evaluate(positions, True, False)
    start = perf_counter()
    result = evaluator.evaluate(positions, True, False)
    return result.node_energy, result.forces, perf_counter() - start


@pytest.fixture(scope="session")
def table():
    """Rows of this run; at the end they take the places of older rows of the same cells."""
    rows = {}
    yield rows
    kept = []
    if TABLE.exists():
        with TABLE.open(newline="", encoding="utf-8") as file:
            kept = [row for row in csv.DictReader(file) if key(row) not in rows]
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        order = list(ARCHS)
        rows = [*kept, *rows.values()]
        writer.writerows(sorted(rows, key=lambda row: (order.index(row["arch"]), key(row))))


def key(row):
    return tuple(row[name] for name in ("arch", "device", "precision", "radial"))


@pytest.mark.parametrize(
    ("arch", "radial", "precision", "device"),
    [
        pytest.param(arch, radial, precision, *values, marks=getattr(device, "marks", ()))
        for arch, device, radial, precision in product(
            ARCHS, DEVICES, ("exact", "spline"), ("double", "single")
        )
        for values in [getattr(device, "values", (device,))]
    ],
)
def test_every_architecture_by_every_path(arch, radial, precision, device, table):
    (spec, tensors), atoms, exact, yardstick = source(arch)
    words = ["radial", radial, "precision", precision, "device", device]
    energies, forces, seconds = evaluate(spec, tensors, atoms, words)
    energy = abs(float((energies - exact.node_energy).mean()))
    difference = np.zeros_like(exact.forces)
    difference[:] = forces[: len(atoms)] - exact.forces
    force, error = float(np.abs(difference).max()), rms(difference)
    if precision == "double":
        within = np.abs(energies - exact.node_energy).max() <= EXACT.energy
        within &= force <= (EXACT.force if radial == "exact" else SPLINE_FORCE)
    else:
        atoms_error = rms(energies - exact.node_energy)
        within = atoms_error <= max(SINGLE_ENERGY, 2 * yardstick[0]) and error <= yardstick[1]
    values = (arch, device_name(device), precision, radial)
    numbers = (f"{energy:.1e}", f"{force:.1e}", f"{error:.1e}", f"{1e6 * seconds / len(atoms):.1f}")
    status = "ok" if within else "wrong"
    row = dict(zip(COLUMNS, (*values, *numbers, status, datetime.date.today()), strict=True))
    table[key(row)] = row
    assert within, f"{row}; RMS errors of mace-torch in float32 (dE, dF): {yardstick}"


def device_name(device):
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"cpu, {torch.get_num_threads()} threads"
