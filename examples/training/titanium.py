"""Titanium to train on: structures, a small model to begin with, and batches. NumPy and ASE.

Labels come from a model that is at hand, examples/models/ti_hcp_meam.mace, so that nothing has to
be downloaded; the student has its architecture with fewer channels, and random weights.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.neighborlist import neighbor_list

from mace_stream import io
from mace_stream.spec import LayerSpec, ModelSpec
from mace_stream.tensors import tensor_rules, trainable_names

TEACHER = Path(__file__).resolve().parents[1] / "models" / "ti_hcp_meam.mace"
Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Batch:
    """Several structures as one graph; arrays of all batches of a set have the same shapes.

    Edges that only fill the arrays up are longer than any cutoff, and contribute exactly nothing.
    """

    positions: np.ndarray
    """[n_atoms, 3] Å, like ``forces`` [n_atoms, 3] eV/Å the structures one after the other."""
    forces: np.ndarray
    energies: np.ndarray
    """[n_structures] eV."""
    structure: np.ndarray
    """Structure of every atom [n_atoms]."""
    receiver: np.ndarray
    sender: np.ndarray
    """Atoms at both ends of every edge, [n_edges]."""
    offset: np.ndarray
    """Image of the sender, [n_edges, 3] Å."""
    indptr: np.ndarray
    """Edges of atom i are ``indptr[i]:indptr[i + 1]``."""
    species: np.ndarray

    @property
    def atoms_per_structure(self) -> float:
        """The same for all structures of a set."""
        return len(self.positions) / len(self.energies)


def structures(count: int, repeat: tuple[int, int, int], seed: int = 0) -> list[Atoms]:
    """Supercells of the HCP crystal, strained by some percent, atoms displaced by 0.1 Å or so."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        atoms = bulk("Ti", "hcp", a=2.934, c=4.676).repeat(repeat)
        atoms.set_cell(atoms.cell @ (np.eye(3) + random.normal(0, 0.01, (3, 3))), scale_atoms=True)
        atoms.positions += random.normal(0, random.uniform(0.03, 0.15), atoms.positions.shape)
        found.append(atoms)
    return found


def make_batches(
    frames: Sequence[Atoms], energies: np.ndarray, forces: np.ndarray, r_max: float, size: int
) -> list[Batch]:
    """Cut structures with the same number of atoms into batches of ``size``.

    Args:
        frames: All with the model's one element.
        energies: [n_frames] eV.
        forces: [n_frames, n_atoms, 3] eV/Å.
        r_max: Cutoff in Å.
        size: Structures in a batch; what is left over is left out.
    """
    edges = [neighbor_list("ijS", atoms, r_max) for atoms in frames]
    groups = [slice(k, k + size) for k in range(0, len(frames) - size + 1, size)]
    n_edges = max(sum(len(found[0]) for found in edges[group]) for group in groups)
    return [
        _batch(frames[group], edges[group], energies[group], forces[group], n_edges)
        for group in groups
    ]


def _batch(
    frames: Sequence[Atoms], edges: list, energies: np.ndarray, forces: np.ndarray, n_edges: int
) -> Batch:
    n_atoms, n_frames = len(frames[0]), len(frames)
    positions = np.concatenate([atoms.positions for atoms in frames])
    receiver = np.concatenate([found[0] + k * n_atoms for k, found in enumerate(edges)])
    sender = np.concatenate([found[1] + k * n_atoms for k, found in enumerate(edges)])
    offset = np.concatenate(
        [found[2] @ atoms.cell.array for atoms, found in zip(frames, edges, strict=True)]
    )
    fill, last = n_edges - len(sender), len(positions) - 1
    receiver = np.append(receiver, np.full(fill, last))
    return Batch(
        positions=positions,
        forces=forces.reshape(-1, 3),
        energies=energies,
        structure=np.repeat(np.arange(n_frames), n_atoms),
        receiver=receiver,
        sender=np.append(sender, np.zeros(fill, dtype=np.int64)),
        offset=np.concatenate([offset, np.tile([0.0, 0.0, 1e4], (fill, 1))]),
        indptr=np.searchsorted(receiver, np.arange(len(positions) + 1)),
        species=np.zeros(len(positions), dtype=np.int64),
    )


def student(channels: int, width: int, seed: int = 1) -> tuple[ModelSpec, Tensors]:
    """The teacher's architecture with so many channels and hidden radial features, untrained.

    Weights are drawn as mace-torch draws them: normal numbers, divided by the number of couplings
    in the product basis.
    """
    teacher, tensors = io.load(TEACHER)
    spec = replace(
        teacher,
        layers=tuple(_thin(layer, channels, width) for layer in teacher.layers),
        provenance={"source": "examples/training"},
    )
    random, rules = np.random.default_rng(seed), tensor_rules(spec)
    for name in trainable_names(spec):
        pairs = zip(rules[name].shape, tensors[name].shape, strict=True)
        weights = random.normal(size=[known if size is None else size for size, known in pairs])
        is_product = re.search(r"\.product\..*\.weight", name)
        tensors[name] = weights / weights.shape[1] if is_product else weights
    return spec, tensors


def _thin(layer: LayerSpec, channels: int, width: int) -> LayerSpec:
    """Give a layer other numbers of channels and of hidden radial features."""
    names = ("irreps_in", "irreps_up", "irreps_message", "irreps_out")
    irreps = {name: re.sub(r"\d+x", f"{channels}x", getattr(layer, name)) for name in names}
    first, *hidden, _ = layer.radial_widths
    widths = (first, *[width] * len(hidden), len(layer.paths) * channels)
    return replace(layer, **irreps, radial_widths=widths)


def with_statistics(tensors: Tensors, batches: Sequence[Batch]) -> Tensors:
    """Set shift and scale to the mean energy per atom and the size of forces, as mace-torch does,
    and the mean number of neighbors.
    """
    energies = np.concatenate([batch.energies for batch in batches])
    forces = np.concatenate([batch.forces for batch in batches])
    n_neighbors = len(batches[0].sender) / len(batches[0].positions)
    changed = {
        "shift": np.array([energies.mean() / batches[0].atoms_per_structure]),
        "scale": np.array([np.sqrt(np.mean(forces**2))]),
        "atomic_energies": np.zeros((1, 1)),
    }
    for name in tensors:
        if name.endswith("avg_num_neighbors"):
            changed[name] = np.array(n_neighbors)
    return {**tensors, **changed}
