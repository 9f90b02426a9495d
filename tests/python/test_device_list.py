"""Neighbor lists made on the device, against all pairs."""

import numpy as np
import pytest
import torch

from mace_stream.kernels.cell_list import compile_cell_list
from mace_stream.torch.inference.device_list import Atoms, cell_list, find_topology

pytest.importorskip("cuda.bindings", reason="needs NVRTC: pip install 'mace-stream[test]'")

SHAPES = {
    "dense": (12.0, 12.0, 12.0),
    "smaller_than_a_cell": (2.0, 2.5, 3.0),
    "slab": (30.0, 25.0, 4.0),
    "wire": (90.0, 1.0, 1.0),
    "far_apart": (4000.0, 4000.0, 4000.0),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_compiles_without_a_gpu(arch, tmp_path, monkeypatch):
    monkeypatch.setenv("MACE_STREAM_CACHE", str(tmp_path))
    assert compile_cell_list(arch).cubin


def all_pairs(x, node, n_local, cutoff):
    pairs = set()
    for i in np.flatnonzero(node[:n_local] >= 0):
        inside = np.square(x - x[i]).sum(1) <= cutoff**2
        pairs |= {(i, j) for j in np.flatnonzero(inside & (node >= 0)) if j != i}
    return pairs


def random_atoms(shape, seed, n_local=150, n_images=250):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (n_local + n_images, 3)) * shape
    local = np.where(rng.uniform(size=n_local) < 0.1, -1, 0)
    local[local == 0] = np.arange((local == 0).sum())
    node = np.concatenate([local, local[rng.integers(n_local, size=n_images)]])
    return x, node, n_local


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("cutoff", [1.7, 6.5])
def test_equals_all_pairs(shape, cutoff):
    device = torch.device("cuda")
    x, node, n_local = random_atoms(shape, seed=3)
    species = torch.zeros(int(node.max()) + 1, dtype=torch.int64, device=device)
    atoms = Atoms(n_local, torch.tensor(node, device=device), species, cutoff)
    found = find_topology(atoms, torch.tensor(x, device=device), cell_list(device))
    receiver, sender = found.receiver_atom.tolist(), found.sender_atom.tolist()
    expected = all_pairs(x, node, n_local, cutoff)
    assert len(receiver) == len(expected)
    assert set(zip(receiver, sender, strict=True)) == expected
    assert found.sender.tolist() == node[sender].tolist()
    rows = torch.repeat_interleave(torch.arange(len(species)), found.indptr.diff().cpu())
    assert rows.tolist() == node[receiver].tolist()
    assert set(zip(receiver[1:], sender[1:], strict=True)) != expected or not expected


@pytest.mark.gpu
def test_no_atoms():
    device = torch.device("cuda")
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    x = torch.zeros(0, 3, dtype=torch.float64, device=device)
    found = find_topology(Atoms(0, nothing, nothing, 3.0), x, cell_list(device))
    assert found.indptr.tolist() == [0]
    assert len(found.sender_atom) == 0
