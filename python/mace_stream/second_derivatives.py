"""Second derivatives of the energy with respect to positions, for one structure of ASE.

The Hessian ``H[i, a, j, b] = d2E / dx[i, a] dx[j, b]`` is never built to be multiplied: the
gradient ``g`` of the energy is computed once, in a form that can be differentiated again, and
every product costs one more backward pass (Pearlmutter, Neural Comput. 6, 147 (1994)),

    sum over j, b of H[i, a, j, b] v[j, b] = d(g . v) / dx[i, a].

Nothing is displaced, so there is no step to choose. All is the exact path of
:mod:`mace_stream.torch`; radial tables take no part.

Example:
    hessian = mace_stream.hessian("ti.mace", atoms)
    curvature = mace_stream.hvp("ti.mace", atoms, direction)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols
from ase.neighborlist import neighbor_list
from torch import Tensor

from mace_stream.evaluation import is_out_of_memory
from mace_stream.torch import MACE
from mace_stream.torch.placement import choose_device

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def hvp(
    model: str | Path | MACE,
    atoms: Atoms,
    vectors: np.ndarray,
    *,
    head: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    inputs: Mapping[str, float] | None = None,
) -> np.ndarray:
    """Multiply the Hessian with vectors.

    Memory is that of one force evaluation on the exact path, kept for its derivative, and of one
    double-backward pass, whatever the number of vectors.

    Args:
        model: A ``.mace`` file, or a :class:`mace_stream.torch.MACE` to use as it is. Loading
            takes longer than a product: load once to call often.
        atoms: Positions in Å; cell and periodicity as they are, in any combination. Constraints
            and masses are not looked at.
        vectors: ``[k, n_atoms, 3]``, or ``[n_atoms, 3]`` for one.
        head: Head of a file with several.
        device: ``auto`` (the default: CUDA where torch sees one), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: ``float64`` (the default) or ``float32``.
        inputs: Numbers of the whole system, such as ``{"total_charge": 1}``, for models that take
            them.

    Returns:
        ``H v`` for every vector in the shape of ``vectors``, in eV/Å² times their unit.

    Raises:
        ValueError: An argument does not fit, an element is not the model's, or the result is not
            finite.
        MemoryError: The device has too little memory.
        mace_stream.io.ModelFileError: ``model`` cannot be read.
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.shape[-2:] != (len(atoms), 3) or vectors.ndim not in (2, 3):
        raise ValueError(
            f"vectors: expected shape [k, {len(atoms)}, 3] or [{len(atoms)}, 3], "
            f"got {list(vectors.shape)}"
        )
    ready = _load(model, head, device, dtype, inputs)
    stacked = torch.from_numpy(vectors.reshape(-1, len(atoms), 3))
    return _products(ready, atoms, stacked).reshape(vectors.shape)


def hessian(
    model: str | Path | MACE,
    atoms: Atoms,
    atom_indices: Sequence[int] | None = None,
    *,
    head: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    inputs: Mapping[str, float] | None = None,
) -> np.ndarray:
    """Compute the Hessian, or its rows for some atoms.

    One product of :func:`hvp` per row, one row at a time. Rows of the atoms of one unit cell in a
    supercell are the force constants of a crystal: ``transpose(0, 2, 1, 3)`` of the result is
    phonopy's compact array.

    Args:
        model: As in :func:`hvp`.
        atoms: As in :func:`hvp`.
        atom_indices: Atoms whose rows are wanted, in the order of the result; None: all.
        head: As in :func:`hvp`.
        device: As in :func:`hvp`.
        dtype: As in :func:`hvp`.
        inputs: As in :func:`hvp`.

    Returns:
        ``d2E / dx[i, a] dx[j, b]`` as ``[n_indices, 3, n_atoms, 3]`` in eV/Å². It is symmetric up
        to rounding; nothing is symmetrized.

    Raises:
        ValueError: As :func:`hvp`.
        MemoryError: As :func:`hvp`.
        mace_stream.io.ModelFileError: ``model`` cannot be read.
    """
    rows = _check_indices(atom_indices, len(atoms))
    ready = _load(model, head, device, dtype, inputs)
    units = torch.zeros(len(rows), 3, len(atoms), 3, dtype=torch.float64)
    for k, atom in enumerate(rows.tolist()):
        units[k, :, atom] = torch.eye(3, dtype=torch.float64)
    return _products(ready, atoms, units.flatten(0, 1)).reshape(tuple(units.shape))


def _products(model: MACE, atoms: Atoms, vectors: Tensor) -> np.ndarray:
    """Products with ``vectors`` [k, n_atoms, 3] on the host, one after the other."""
    _check_atoms(atoms, model.elements)
    gradient = None
    results = np.zeros(tuple(vectors.shape))
    try:
        with torch.enable_grad():
            gradient = _Gradient(model, atoms)
            for k, vector in enumerate(vectors):
                results[k] = gradient.differentiate(vector)
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(_no_room(atoms, gradient)) from error
        raise
    if not np.isfinite(results).all():
        raise ValueError(
            "second derivatives are not finite: atoms are on top of each other, or a vector is not"
            " finite; look at the positions and at vectors"
        )
    return results


class _Gradient:
    """Gradient of the energy at one configuration, ready to be differentiated any number of times.

    Args:
        model: Its device and dtype are used.
        atoms: Checked before.
    """

    def __init__(self, model: MACE, atoms: Atoms) -> None:
        self.device = model.atomic_energies.device
        receiver, sender, image = neighbor_list("ijS", atoms, model.r_max)  # sorted by receiver
        self.n_edges = len(sender)
        indptr = np.searchsorted(receiver, np.arange(len(atoms) + 1))
        species = [model.elements.index(z) for z in atoms.numbers.tolist()]
        self.x = self._put(atoms.positions).requires_grad_()
        offset = self._put(image.reshape(-1, 3) @ atoms.cell.array)
        ends = self._put(receiver), self._put(sender)
        edge_vec = self.x.index_select(0, ends[0]) - self.x.index_select(0, ends[1]) - offset
        species = torch.tensor(species, dtype=torch.int64, device=self.device)
        energy, _ = model(edge_vec, self._put(indptr), ends[1], species)
        (self.gradient,) = torch.autograd.grad(energy, self.x, create_graph=True)

    def _put(self, array: np.ndarray) -> Tensor:
        return torch.tensor(array, device=self.device)

    def differentiate(self, vector: Tensor) -> np.ndarray:
        """Derivative of gradient times ``vector`` [n_atoms, 3], the same shape, on the host."""
        if not self.gradient.requires_grad:  # no edges
            return np.zeros(tuple(vector.shape))
        (product,) = torch.autograd.grad(
            self.gradient, self.x, vector.to(self.device), retain_graph=True
        )
        return product.cpu().numpy()


def _load(
    model: str | Path | MACE,
    head: str | None,
    device: str | None,
    dtype: str | None,
    inputs: Mapping[str, float] | None,
) -> MACE:
    """Return the model, loaded if it is a path."""
    if not isinstance(model, MACE):
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype}")
        place = choose_device(device or "auto")
        precision = DTYPES[dtype or "float64"]
        return MACE.from_file(model, head, precision, place, inputs=inputs)
    given = {"head": head, "device": device, "dtype": dtype, "inputs": inputs}
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name}: the model is loaded already, and {name} was chosen then; leave {name} "
                "out, or give the path of the .mace file"
            )
    return model


def _check_atoms(atoms: Atoms, known: Sequence[int]) -> None:
    """Raise ``ValueError`` where the model or the neighbor list could not take these atoms."""
    unknown = sorted(set(atoms.numbers.tolist()) - set(known))
    if unknown:
        names = " ".join(chemical_symbols[z] for z in unknown)
        has = " ".join(chemical_symbols[z] for z in known)
        raise ValueError(f"atoms: the model does not know {names}; it knows {has}")
    bad = np.flatnonzero(~np.isfinite(atoms.positions).all(axis=1))
    if bad.size:
        raise ValueError(f"atoms: {bad.size} positions are not finite, the first is atom {bad[0]}")
    flat = [axis for axis in range(3) if atoms.pbc[axis] and not atoms.cell.array[axis].any()]
    if flat:
        raise ValueError(
            f"atoms: periodic along cell vector {flat[0]}, which is zero; set atoms.cell, or "
            "atoms.pbc = False"
        )


def _check_indices(atom_indices: Sequence[int] | None, n_atoms: int) -> np.ndarray:
    """Return the rows asked for as integers [n]."""
    if atom_indices is None:
        return np.arange(n_atoms)
    rows = np.asarray(atom_indices)
    if rows.size == 0:
        return np.zeros(0, dtype=np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= n_atoms:
        raise ValueError(
            f"atom_indices: expected a list of integers from 0 to {n_atoms - 1}, got {atom_indices}"
        )
    return rows


def _no_room(atoms: Atoms, gradient: _Gradient | None) -> str:
    edges = "" if gradient is None else f" with {gradient.n_edges} edges"
    return (
        f"out of memory for second derivatives of {len(atoms)} atoms{edges}; take fewer atoms, a "
        "device with more memory, or dtype float32"
    )
