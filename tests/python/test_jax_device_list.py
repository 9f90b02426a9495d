"""Neighbor lists that JAX's inference path makes itself, against all pairs."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from emulation_support import emulate
from test_device_list import SHAPES, all_pairs, random_atoms

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'mace-stream[jax]'")
pytest.importorskip("mace_stream.jax", exc_type=ImportError)

from mace_stream.jax import double_precision  # noqa: E402
from mace_stream.jax.inference import device_list  # noqa: E402
from mace_stream.jax.inference.device_list import Atoms, PairFinder  # noqa: E402
from mace_stream.kernels import cell_list  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("emulated")


@pytest.fixture
def without_gpu(monkeypatch, folder):
    emulate(monkeypatch, cell_list, folder)
    monkeypatch.setattr(device_list, "primary_context", lambda number: nullcontext())
    monkeypatch.setattr(device_list, "page_locked", np.zeros)
    monkeypatch.setattr(device_list, "synchronize", lambda: None)
    cpu = jax.local_devices(backend="cpu")[0]
    monkeypatch.setattr(jax, "device_put", lambda arrays, _: _kept(arrays))
    return SimpleNamespace(local_hardware_id=0, compute_capability="9.0", cpu=cpu)


def _kept(arrays):
    """JAX may copy small arrays; their addresses are what is asked for."""
    return [
        SimpleNamespace(array=a, unsafe_buffer_pointer=lambda a=a: a.ctypes.data)
        for a in map(np.ascontiguousarray, arrays)
    ]


def assert_all_pairs(finder, shape, cutoff):
    x, node, n_local = random_atoms(shape, seed=3, n_local=60, n_images=100)
    species = np.zeros(int(node.max()) + 1, np.int64)
    with double_precision():
        found = finder(Atoms(n_local, node, species, cutoff), x).as_list()
    receiver, sender = found.receiver_atom.tolist(), found.sender_atom.tolist()
    expected = all_pairs(x, node, n_local, cutoff)
    assert len(receiver) == len(expected)
    assert set(zip(receiver, sender, strict=True)) == expected
    assert found.sender.tolist() == node[sender].tolist()
    rows = np.repeat(np.arange(len(species)), np.diff(found.indptr))
    assert rows.tolist() == node[receiver].tolist()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_cells_lead_to_all_pairs(without_gpu, shape):
    finder = PairFinder(without_gpu)
    for cutoff in (1.7, 6.5):
        assert_all_pairs(finder, shape, cutoff)


def test_a_neighbor_left_out_is_noticed(without_gpu, monkeypatch, folder):
    plant = "cell_list.cuh", "square <= cells", "square < 0.9 * cells"
    emulate(monkeypatch, cell_list, folder / "planted", plant)
    with pytest.raises(AssertionError):
        assert_all_pairs(PairFinder(without_gpu), SHAPES["dense"], 6.5)


def test_a_cell_that_is_too_small_is_noticed(without_gpu, monkeypatch):
    monkeypatch.setattr(cell_list, "REACH", 3)
    with pytest.raises(AssertionError):
        assert_all_pairs(PairFinder(without_gpu), SHAPES["dense"], 6.5)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("cutoff", [1.7, 6.5])
def test_a_gpu_finds_all_pairs(shape, cutoff):
    assert_all_pairs(PairFinder(jax.local_devices(backend="cuda")[0]), shape, cutoff)


def test_no_atoms(without_gpu):
    nothing = np.zeros(0, np.int64)
    found = PairFinder(without_gpu)(Atoms(0, nothing, nothing, 3.0), np.zeros((0, 3)))
    assert found.indptr.tolist() == [0]
    assert len(found.sender_atom) == 0
