"""Other implementations of the same model on the same system, without LAMMPS: their best case.

mace-torch is given a prepared graph, which is never built again, and only its model is timed.
Symmetrix-XL is timed as its ASE calculator, whose skin makes lists rare.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from mace_stream.bench.md_system import ATOMIC_NUMBER, System
from mace_stream.convert.source import load_source

XL_SKIN = 0.5
"""Å; the default of Symmetrix-XL."""
DTYPES = {"double": torch.float64, "single": torch.float32}


class Peer(Protocol):
    """One implementation with its model loaded."""

    def prepare(self, system: System, move: np.ndarray) -> None:
        """Take over a system and a move [n_atoms, 3]: all that is done once for many steps."""

    def step(self, sign: int) -> None:
        """Move all atoms by ``sign`` times the move, then compute energy and forces."""

    def finish(self) -> None:
        """Wait until all steps are done."""

    def results(self) -> tuple[float, np.ndarray]:
        """Return energy in eV and forces [n_atoms, 3] in eV/Å of the last step."""


class MaceTorch:
    """mace-torch's model on its own graph; positions stay on the device."""

    def __init__(
        self, model: Path, device: str, precision: str, head: str, accelerated: bool = False
    ) -> None:
        self.device, self.dtype, self.head = device, DTYPES[precision], head
        torch.set_default_dtype(self.dtype)
        self.model = load_source(model).to(self.dtype)
        if accelerated:
            from mace.cli.convert_e3nn_cueq import run

            self.model = run(self.model, device=device)
        self.model = self.model.to(device).eval().requires_grad_(False)

    def prepare(self, system: System, move: np.ndarray) -> None:
        """Build mace-torch's graph of the system and send it to the device."""
        from ase import Atoms
        from mace import data, tools

        numbers = np.full(system.n_atoms, ATOMIC_NUMBER)
        atoms = Atoms(numbers, system.positions(), cell=system.cell, pbc=True)
        heads = list(getattr(self.model, "heads", None) or ["Default"])
        graph = data.AtomicData.from_config(
            data.config_from_atoms(atoms, head_name=self.head or heads[0]),
            z_table=tools.AtomicNumberTable([int(z) for z in self.model.atomic_numbers]),
            cutoff=float(self.model.r_max),
            heads=heads,
        )
        batch = tools.torch_geometric.Batch.from_data_list([graph]).to(self.device)
        self.batch = batch.to_dict()
        self.positions = self.batch["positions"]
        self.move = torch.as_tensor(move, dtype=self.dtype, device=self.device)

    def step(self, sign: int) -> None:
        """Move and evaluate on the device."""
        self.positions = (self.positions + sign * self.move).detach()
        self.output = self.model({**self.batch, "positions": self.positions}, compute_force=True)

    def finish(self) -> None:
        """Wait for the device."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def results(self) -> tuple[float, np.ndarray]:
        """Bring forces to the host, and sites' energies, which are added up in double precision.

        mace-torch's own sum in float32 is off by 0.1 meV per atom from some 10,000 atoms on.
        """
        forces = self.output["forces"].detach().cpu().double().numpy()
        return float(self.output["node_energy"].detach().double().sum()), forces


class SymmetrixXL:
    """Symmetrix-XL's calculator as a user of ASE calls it, positions changed before each call."""

    def __init__(self, model: Path, device: str, precision: str, head: str) -> None:
        import symmetrix

        if device == "cpu":  # where there is a GPU, that would be chosen
            symmetrix.load_backend("cpu")
        from symmetrix import Symmetrix, selected_backend

        self.calculator = Symmetrix(
            str(model),
            dtype={"double": "float64", "single": "float32"}[precision],
            execution_profile="speed",
            neighbor_skin=XL_SKIN,
            head=head or None,
        )
        backend = selected_backend() or {}
        if (backend.get("backend") == "cpu") != (device == "cpu"):
            raise RuntimeError(
                f"symmetrix-xl chose its backend {backend.get('selector')}, not one for {device}"
            )

    def prepare(self, system: System, move: np.ndarray) -> None:
        """Hand over the atoms; the list is part of the first step."""
        from ase import Atoms

        numbers = np.full(system.n_atoms, ATOMIC_NUMBER)
        self.atoms = Atoms(numbers, system.positions(), cell=system.cell, pbc=True)
        self.atoms.calc = self.calculator
        self.move = move

    def step(self, sign: int) -> None:
        """Move and ask for forces."""
        self.atoms.positions += sign * self.move
        self.atoms.get_forces()

    def finish(self) -> None:
        """Do nothing: every call returns arrays of the host."""

    def results(self) -> tuple[float, np.ndarray]:
        """Return the last results."""
        return self.atoms.get_potential_energy(), self.atoms.get_forces()


@dataclass(frozen=True)
class Kind:
    """A peer by its name on the command line."""

    impl: str
    """Its name in the table."""
    package: str
    """Whose version is recorded."""
    modules: tuple[str, ...]
    """What it imports."""
    make: Callable[[Path, str, str, str], Peer]
    install: str
    on_cpu: bool = True


def _accelerated(model: Path, device: str, precision: str, head: str) -> Peer:
    import cuequivariance_ops_torch  # noqa: F401 - without it slow substitutes would run

    return MaceTorch(model, device, precision, head, accelerated=True)


KINDS = {
    "mace": Kind("mace_torch_e3nn", "mace-torch", ("mace",), MaceTorch, "mace-torch"),
    "cueq": Kind(
        "mace_torch_cueq",
        "mace-torch",
        ("mace", "cuequivariance_torch", "cuequivariance_ops_torch"),
        _accelerated,
        "cuequivariance-torch cuequivariance-ops-torch-cu13",
        on_cpu=False,
    ),
    "xl": Kind(
        "symmetrix_xl",
        "symmetrix-xl",
        ("symmetrix", "mace"),
        SymmetrixXL,
        "symmetrix-xl mace-torch, and on a GPU its symmetrix-xl-cuda… package",
    ),
}
"""By name of ``--with``."""


def check_named(name: str, device: str) -> None:
    """Make sure that a peer is known and its packages are there.

    Raises:
        ValueError: It is not; the message says what to do.
    """
    if name not in KINDS:
        raise ValueError(f"--with {name}: expected one of {', '.join(KINDS)}")
    kind = KINDS[name]
    if device == "cpu" and not kind.on_cpu:
        raise ValueError(f"--with {name}: {kind.impl} needs a GPU; leave {name} out")
    missing = [module for module in kind.modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ValueError(
            f"--with {name}: the package of the module {missing[0]} is not installed; "
            f"pip install {kind.install}, or leave {name} out"
        )


def peer_version(name: str) -> str:
    """Return the package and its version."""
    package = KINDS[name].package
    return f"{package} {version(package)}"
