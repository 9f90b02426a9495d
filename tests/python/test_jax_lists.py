"""The order that JAX's inference path brings a neighbor list into, against the list itself."""

from dataclasses import replace

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'mace-stream[jax]'")
pytest.importorskip("mace_stream.jax", exc_type=ImportError)

from mace_stream.jax import double_precision  # noqa: E402
from mace_stream.jax.inference import lists  # noqa: E402
from mace_stream.jax.inference.device_list import Atoms, FoundList  # noqa: E402
from mace_stream.jax.inference.lists import Arrangement, HostList, Sizes  # noqa: E402

N_OWN, N_REMOTE, N_ATOMS, N_SPECIES = 7, 3, 24, 3


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def given(rng):
    """A list with images of senders and, in one row of three, of receivers; the first is empty."""
    lengths = rng.integers(1, 9, N_OWN)
    lengths[0] = 0
    node = np.concatenate([np.arange(N_OWN + N_REMOTE), rng.integers(0, N_OWN, N_ATOMS - 10)])
    sender_atom = rng.integers(0, N_ATOMS, lengths.sum()).astype(np.int32)
    receiver_atom = np.repeat(np.arange(N_OWN, dtype=np.int32), lengths)
    images = np.flatnonzero((receiver_atom % 3 == 0) & (np.arange(len(receiver_atom)) % 2 == 0))
    receiver_atom[images] = N_ATOMS - 1 - receiver_atom[images]
    species = rng.integers(0, N_SPECIES, N_OWN + N_REMOTE)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return HostList(indptr, node[sender_atom].astype(np.int32), receiver_atom, sender_atom, species)


def capacities(given, spare):
    counts = np.bincount(given.species[: given.n_own], minlength=N_SPECIES)
    return (counts + spare).tolist()


def sizes_of(given, x):
    moved = len(given.rows(len(x)).moved)
    return Sizes().fitting(atoms=len(x), slots=given.n_pairs, remote=N_REMOTE, sent=1, moved=moved)


def ordered(given, x, spare=2):
    """The arrangement, positions with the moved senders, and the slots in order."""
    sizes = sizes_of(given, x)
    found = Arrangement(given.rows(len(x)), given.species, capacities(given, spare), sizes, 16)
    long_x = np.zeros((sizes.atoms, 3))
    long_x[: len(x)] = x
    with double_precision():
        places = np.asarray(found.moved.appended(jax.numpy.asarray(long_x)))
        in_order = jax.jit(lists.sort_edges)(long_x, found.slots, found.species, found.moved)
    return found, places, *map(np.asarray, in_order)


def assert_order(given, x):
    found, places, slot_atom, slot_node = ordered(given, x)
    assert found.first[-1] == given.n_pairs
    for row in range(given.n_own):
        node, slots = found.place[row], slice(*given.indptr[row : row + 2])
        mine = slice(found.first[node], found.first[node + 1])
        vec = places[found.node_atom[node]] - places[slot_atom[mine]]
        wanted = x[given.receiver_atom[slots]] - x[given.sender_atom[slots]]
        senders = found.place[given.sender[slots]]
        edges = sorted(zip(slot_node[mine], map(tuple, np.round(vec, 9)), strict=True))
        assert edges == sorted(zip(senders, map(tuple, np.round(wanted, 9)), strict=True))
        lengths = np.linalg.norm(vec, axis=1)
        keys = list(zip(found.species[slot_node[mine]], lengths, strict=True))
        assert keys == sorted(keys)


def test_edges_come_by_receiver_species_and_distance(given, rng):
    assert len(given.rows(N_ATOMS).moved) > 2
    assert_order(given, rng.normal(size=(N_ATOMS, 3)))


def test_what_lies_beyond_the_list_comes_last(given, rng):
    found, _, slot_atom, _ = ordered(given, rng.normal(size=(N_ATOMS, 3)), spare=5)
    assert (np.diff(found.first) >= 0).all()
    assert (slot_atom[given.n_pairs :] == 0).all()


def test_a_list_made_here_is_that_of_lammps(given, rng):
    """Rows of one are told by their atom, of the other by every pair."""
    x = rng.normal(size=(N_ATOMS, 3))
    straight = replace(given, receiver_atom=np.repeat(np.arange(N_OWN), np.diff(given.indptr)))
    node = np.full(N_ATOMS, -1)
    node[given.sender_atom] = given.sender
    atoms = Atoms(N_OWN, node, given.species, 1.0)
    receivers = np.arange(N_OWN, dtype=np.int32)
    made = FoundList(atoms, receivers, given.indptr, given.sender_atom)
    for ours, theirs in zip(ordered(made, x)[2:], ordered(straight, x)[2:], strict=True):
        np.testing.assert_array_equal(ours[: given.n_pairs], theirs[: given.n_pairs])


def test_no_atoms():
    none = np.zeros(0, np.int32)
    empty = HostList(np.zeros(0, np.int64), none, none, none, np.zeros(0, np.int64))
    found = Arrangement(empty.rows(0), empty.species, [16], Sizes(), 16)
    assert found.first[-1] == found.slots.first[-1] == 0


def test_more_runs_than_32_bits_count():
    """Two rows of one edge; the first one's node times the species is more than 2^31."""
    none = np.zeros(0, np.int32)
    rows = np.array([2**25, 3], np.int32)
    slots = lists.Slots(np.arange(3), rows * 0, rows, rows[::-1] % 2, rows * 0, np.int32(89))
    x, species = np.ones((2, 3)), np.zeros(2, np.int32)
    with double_precision():
        order = jax.jit(lists.sort_edges)(x, slots, species, lists.Moved(none, none, none))[0]
    assert order.tolist() == [0, 1]


@pytest.mark.parametrize("plant", ["row", "species"])
def test_a_wrong_order_is_seen(given, rng, monkeypatch, plant):
    honest = lists.sort_edges

    def wrong(x, slots, species, moved):
        if plant == "species":
            return honest(x, slots, species[::-1], moved)
        return honest(x, slots._replace(row_node=slots.row_node[::-1]), species, moved)

    monkeypatch.setattr(lists, "sort_edges", wrong)
    with pytest.raises(AssertionError):
        assert_order(given, rng.normal(size=(N_ATOMS, 3)))
