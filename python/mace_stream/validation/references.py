"""The independent side: mace-torch in float64, or this package's NumPy oracle."""

from __future__ import annotations

import contextlib
import importlib.metadata
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from mace_stream import io
from mace_stream.embedding import input_values
from mace_stream.reference import directional_derivative, node_energy
from mace_stream.validation.frames import Frame, Result


class MaceTorchReference:
    """A mace-torch model file, evaluated by mace-torch itself in float64.

    The file is unpickled, which runs code from it: give only files you trust.
    """

    def __init__(self, path: Path, head: str | None) -> None:
        from mace_stream.convert.source import load_source

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of mace-torch, about TorchScript and old sources
            model = load_source(path)
        version = importlib.metadata.version("mace-torch")
        self.model = model.double().eval()
        self.head = _choose_head(getattr(model, "heads", None) or ["Default"], head)
        self.name = f"mace-torch {version}, float64, {path.name}"

    def __call__(self, frame: Frame) -> Result:
        """Evaluate one configuration."""
        with _float64():
            output = self.model(self._batch(frame), compute_force=True, compute_virials=True)
        arrays = {k: output[k].detach().numpy() for k in ("node_energy", "forces", "virials")}
        return Result(
            energy=float(output["energy"].detach()),
            node_energy=arrays["node_energy"],
            forces=arrays["forces"],
            virial=arrays["virials"][0],
        )

    def _batch(self, frame: Frame) -> dict:
        """Return the model's input with mace-torch's own neighbor list."""
        from mace import data, tools

        config = data.config_from_atoms(frame.to_atoms(), head_name=self.head)
        graph = data.AtomicData.from_config(
            config,
            z_table=tools.AtomicNumberTable([int(z) for z in self.model.atomic_numbers]),
            cutoff=float(self.model.r_max),
            heads=list(getattr(self.model, "heads", None) or ["Default"]),
        )
        loader = tools.torch_geometric.dataloader.DataLoader([graph], batch_size=1, shuffle=False)
        return next(iter(loader)).to_dict()


class OracleReference:
    """This package's slow NumPy model in float64, which shares no code with the torch model.

    It differentiates by complex steps, one evaluation per component: so in large frames only
    the forces on :attr:`force_atoms` atoms, spread over the frame, are computed.
    """

    force_atoms = 8

    def __init__(self, path: Path, head: str | None) -> None:
        self.spec, self.tensors = io.load(path)
        self.head = _choose_head(list(self.spec.heads), head)
        self.name = f"mace-stream's NumPy oracle, float64, {path.name}"

    def __call__(self, frame: Frame) -> Result:
        """Evaluate one configuration."""
        sender, receiver, edge_vec = edges(frame, self.spec.r_max)
        indptr = np.searchsorted(receiver, np.arange(len(frame.numbers) + 1))
        species = np.array([self.spec.elements.index(z) for z in frame.numbers])
        model = (self.spec, self.tensors, edge_vec, indptr, sender, species)

        def slope(direction: np.ndarray) -> float:
            return directional_derivative(*model, direction, self.head, inputs)

        inputs = input_values(self.spec, None)
        node = node_energy(*model, self.head, inputs)
        atoms = np.unique(np.linspace(0, len(node) - 1, self.force_atoms).astype(int))
        moves = [(receiver == i).astype(float) - (sender == i) for i in atoms]
        axes = np.eye(3)
        forces = [[-slope(np.outer(move, axis)) for axis in axes] for move in moves]
        virial = np.empty((3, 3))
        for a, b in zip(*np.triu_indices(3), strict=True):  # symmetric, as energy does not rotate
            virial[a, b] = virial[b, a] = -slope(np.outer(edge_vec[:, a], axes[b]))
        return Result(float(node.sum()), node, np.array(forces), virial, atoms)


def edges(frame: Frame, r_max: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (sender, receiver, edge_vec in Å) sorted by receiver; ASE finds the neighbors."""
    from ase.neighborlist import neighbor_list

    receiver, sender, away = neighbor_list("ijD", frame.to_atoms(), r_max)
    return sender, receiver, -away  # ASE's D points from receiver to sender


def make_reference(model: Path, reference: Path | None, head: str | None) -> Callable:
    """Return the reference that the user asked for."""
    if reference is not None:
        return MaceTorchReference(Path(reference), head)
    return OracleReference(model, head)


def _choose_head(heads: list[str], head: str | None) -> str:
    """Return the head to use.

    Raises:
        ValueError: It does not exist, or none was named and there are several.
    """
    if head is None and len(heads) == 1:
        return heads[0]
    if head not in heads:
        raise ValueError(f"head: expected one of {heads}, got {head}; name it with --head")
    return head


@contextlib.contextmanager
def _float64() -> Iterator[None]:
    """Let mace-torch build its tensors in float64, and restore the default afterwards."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
