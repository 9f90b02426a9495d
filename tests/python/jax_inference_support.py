"""One structure through the inference paths of torch and JAX, without LAMMPS."""

from dataclasses import dataclass

import numpy as np
import pytest
from ase.build import bulk
from model_support import graph_of

pytest.importorskip("mace_stream.jax", exc_type=ImportError)

from mace_stream.jax.inference.evaluator import InferenceEvaluator
from mace_stream.jax.placement import Placement
from mace_stream.torch.inference.evaluator import InferenceEvaluator as TorchEvaluator
from mace_stream.torch.placement import Placement as TorchPlacement

ENERGY, FORCE = 1e-9, 1e-7
"""eV/atom and eV/Å between tables and the exact network, both in float64."""


def carbide():
    """Sixteen atoms of two elements, pushed out of their places."""
    atoms = bulk("SiC", "zincblende", a=4.4, cubic=True).repeat((1, 1, 2))
    atoms.rattle(0.1, seed=0)
    return atoms


@dataclass(frozen=True)
class Listed:
    """Positions with images, and the list as the pair style hands it over."""

    x: np.ndarray
    arrays: tuple

    @classmethod
    def of(cls, atoms, elements, r_max, half=False):
        """List all pairs; ``half`` lets some rows see their receiver as an image."""
        graph = graph_of(atoms, elements, r_max)
        x, images = [*atoms.positions], {}

        def row(node, shift):
            key = (node, *shift)
            if any(shift) and key not in images:
                images[key] = len(x)
                x.append(atoms.positions[node] + shift @ atoms.cell.array)
            return images.get(key, node)

        ends = []
        for k, (receiver, sender) in enumerate(zip(graph.receiver, graph.sender, strict=True)):
            shift = graph.shift[k]
            moved = shift if half and k % 3 == 0 else 0 * shift
            ends.append((row(receiver, -moved), row(sender, shift - moved)))
        receiver_atom, sender_atom = np.array(ends, np.int32).reshape(-1, 2).T.copy()
        sender, species = graph.sender.astype(np.int32), graph.species.astype(np.int32)
        indptr = graph.indptr.astype(np.int64)
        return cls(np.array(x), (indptr, sender, receiver_atom, sender_atom, species))


def jax_evaluator(model, device="cpu", precision="double", tile=None, species=(0, 1)):
    spec, tensors = model
    place = Placement.choose(device, precision, 0, 1)
    return InferenceEvaluator(
        spec, tensors, head=spec.heads[0], placement=place, species=species, tile=tile
    )


def torch_evaluator(model, tile=None, species=(0, 1)):
    spec, tensors = model
    place = TorchPlacement.choose("cpu", "double", 0, 1)
    return TorchEvaluator(
        *(spec, tensors),
        head=spec.heads[0],
        placement=place,
        species=species,
        graphs=False,
        tile=tile,
    )


def evaluated(evaluator, listed):
    evaluator.set_topology(*listed.arrays)
    return evaluator.evaluate(listed.x, True, True)


def assert_close(found, expected, energy, force):
    """Everything that an evaluation holds."""
    n = len(expected.node_energy)
    assert abs(found.energy - expected.energy) <= energy * n
    assert np.abs(found.node_energy - expected.node_energy).max() <= energy
    assert np.abs(found.forces - expected.forces).max() <= force
    assert np.abs(found.virial - expected.virial).max() <= force * n
    for name in ("receiver_virial", "sender_virial"):
        assert np.abs(getattr(found, name) - getattr(expected, name)).max() <= 10 * force
