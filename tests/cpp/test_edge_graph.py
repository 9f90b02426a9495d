"""The flattening of neighbor lists, in C++ alone, against brute force over all pairs of atoms."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

ROOM = Path(__file__).parents[2] / "pair_mace_stream"
FULL, HALF_NEWTON_ON, HALF_NEWTON_OFF = KINDS = range(3)
CUTOFF = 3.1
FLAGS = np.array([0, 1 << 30, 2 << 30, 3 << 30, 1 << 29], dtype=np.uint32)
"""Special-bond and history flags that LAMMPS keeps above the 29 bits of the index."""


# ---- atoms and lists in the manner of LAMMPS ----


@dataclass(frozen=True)
class Atoms:
    """Local atoms, then ghosts, which are images of local ones."""

    positions: np.ndarray  # [n_all, 3] Å
    owner: np.ndarray  # [n_all]
    kind: np.ndarray  # [n_all], 1-based
    n_local: int
    type_species: tuple[int, ...] = (-1, 0, 1)  # [0] unused
    n_remote: int = 0  # owners of other ranks, which follow the local ones


@dataclass(frozen=True)
class Rows:
    """A neighbor list: neighbors of each local atom, and the order of the central atoms."""

    ilist: np.ndarray
    neighbors: list[np.ndarray]  # [n_local] of atoms, flags included


def make_atoms(n_local: int, seed: int, side: float = 4.0) -> Atoms:
    """Random atoms in a cube with the ghosts of all 26 image cells that lie near enough."""
    rng = np.random.default_rng(seed)
    local = rng.uniform(0, side, (n_local, 3))
    kinds = rng.integers(1, 3, n_local)
    positions, owner = [local], [np.arange(n_local)]
    for shift in product((-1, 0, 1), repeat=3):
        moved = local + side * np.array(shift)
        near = np.all((moved > -CUTOFF) & (moved < side + CUTOFF), axis=1) & any(shift)
        positions.append(moved[near])
        owner.append(np.flatnonzero(near))
    owners = np.concatenate(owner)
    return Atoms(np.concatenate(positions), owners, kinds[owners], n_local)


def near_pairs(atoms: Atoms, chosen: np.ndarray) -> list[tuple[int, int]]:
    """All (local, any) pairs of different atoms within the cutoff whose owners are chosen."""
    x = atoms.positions
    distance = np.linalg.norm(x[: atoms.n_local, None] - x[None], axis=2)
    near = distance < CUTOFF
    near[np.arange(atoms.n_local), np.arange(atoms.n_local)] = False
    near &= chosen[: atoms.n_local, None] & chosen[None]
    return [(int(i), int(j)) for i, j in np.argwhere(near)]


def make_list(atoms: Atoms, kind: int, seed: int, chosen: np.ndarray | None = None) -> Rows:
    """A list of this kind, rows and neighbors shuffled, with flags in the upper bits.

    With newton on a pair of a local atom and a ghost stands once among its two copies; LAMMPS
    decides by coordinates, here the smaller of (owner, shift) decides.
    """
    rng = np.random.default_rng(seed)
    chosen = np.ones(len(atoms.owner), dtype=bool) if chosen is None else chosen
    kept: list[list[int]] = [[] for _ in range(atoms.n_local)]
    for i, j in near_pairs(atoms, chosen):
        if kind == FULL or is_kept(atoms, kind, i, j):
            kept[i].append(j)
    flagged = [
        (rng.permutation(row).astype(np.uint32) | rng.choice(FLAGS, len(row))).view(np.int32)
        for row in kept
    ]
    ilist = rng.permutation(np.flatnonzero(chosen[: atoms.n_local])).astype(np.int32)
    return Rows(ilist, flagged)


def is_kept(atoms: Atoms, kind: int, i: int, j: int) -> bool:
    """Whether a half list holds the pair in the row of ``i``."""
    if j < atoms.n_local:
        return i < j
    if kind == HALF_NEWTON_OFF:
        return True
    vector = atoms.positions[j] - atoms.positions[i]
    return tuple(vector) > tuple(-vector)


# ---- the C++ under test ----


@dataclass(frozen=True)
class Graph:
    """What EdgeGraph holds."""

    indptr: np.ndarray
    node_atom: np.ndarray
    species: np.ndarray
    sender: np.ndarray
    receiver_atom: np.ndarray
    sender_atom: np.ndarray

    def edges(self, atoms: Atoms) -> Counter:
        """Multiset of (receiver's owner, sender's owner, edge vector)."""
        receiver = np.repeat(self.node_atom, np.diff(self.indptr))
        vec = atoms.positions[self.receiver_atom] - atoms.positions[self.sender_atom]
        owners = [*self.node_atom, *range(atoms.n_local, atoms.n_local + atoms.n_remote)]
        sender = np.array(owners, dtype=int)[self.sender]
        return edge_counter(receiver, sender, vec)


def edge_counter(receiver: np.ndarray, sender: np.ndarray, vec: np.ndarray) -> Counter:
    return Counter(
        (int(i), int(j), tuple(np.round(v, 9) + 0.0))
        for i, j, v in zip(receiver, sender, vec, strict=True)
    )


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """EdgeGraph behind a C face, compiled with the checks of the standard library on."""
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "no C++ compiler found; install g++"
    target = tmp_path_factory.mktemp("cpp") / "libedge_graph.so"
    sources = [Path(__file__).with_name("edge_graph_shim.cpp"), ROOM / "edge_graph.cpp"]
    flags = ["-std=c++17", "-O1", "-D_GLIBCXX_ASSERTIONS", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *flags, "-shared", "-fPIC", f"-I{ROOM}", *map(str, sources)]
    subprocess.run([*command, "-o", str(target)], check=True)
    loaded = ctypes.CDLL(str(target))
    loaded.flatten.restype = ctypes.c_char_p
    loaded.count_edges.restype = ctypes.c_int64
    return loaded


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def flatten(library: ctypes.CDLL, kind: int, rows: Rows, atoms: Atoms) -> Graph:
    """Call EdgeGraph::build; raises RuntimeError with its message."""
    counts = np.array([len(row) for row in rows.neighbors], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    flat = np.concatenate([*rows.neighbors, np.zeros(1, np.int32)]).astype(np.int32)
    types = atoms.kind.astype(np.int32)
    other = atoms.owner >= atoms.n_local
    owner = np.where(other, ~(atoms.owner - atoms.n_local), atoms.owner).astype(np.int32)
    species = np.array(atoms.type_species, dtype=np.int32)
    fault = library.flatten(
        kind,
        len(rows.ilist),
        *map(pointer, (rows.ilist, counts, offsets, flat)),
        atoms.n_local,
        len(owner),
        *map(pointer, (types, owner)),
        atoms.n_remote,
        pointer(species),
    )
    if fault:
        raise RuntimeError(fault.decode())
    nodes, edges = library.count_nodes(), library.count_edges()
    lengths = (nodes, library.count_senders(), edges, edges, edges)
    int32 = [np.empty(n, np.int32) for n in lengths]
    indptr = np.full(nodes + 1, -1, np.int64)
    library.copy_nodes(pointer(indptr), *map(pointer, int32[:2]))
    library.copy_edges(*map(pointer, int32[2:]))
    return Graph(indptr, *int32)


def expected_edges(atoms: Atoms, chosen: np.ndarray) -> Counter:
    """Every edge by brute force: both directions of every pair of described atoms."""
    described = np.array(atoms.type_species)[atoms.kind] >= 0
    pairs = near_pairs(atoms, chosen & described)
    receiver, other = np.array(pairs, dtype=int).reshape(-1, 2).T
    vec = atoms.positions[receiver] - atoms.positions[other]
    return edge_counter(receiver, atoms.owner[other], vec)


# ---- tests ----


@pytest.mark.parametrize("kind", KINDS, ids=["full", "half_newton_on", "half_newton_off"])
@pytest.mark.parametrize("seed", range(3))
def test_edges_equal_brute_force(library, kind, seed):
    atoms = make_atoms(9, seed)
    graph = flatten(library, kind, make_list(atoms, kind, seed), atoms)
    expected = expected_edges(atoms, np.ones(len(atoms.owner), dtype=bool))
    assert len(expected) > 100
    assert graph.edges(atoms) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_rows_follow_the_shuffled_ilist(library, kind):
    atoms = make_atoms(9, seed=5)
    rows = make_list(atoms, kind, seed=6)
    assert (np.diff(rows.ilist) < 0).any()
    graph = flatten(library, kind, rows, atoms)
    np.testing.assert_array_equal(graph.node_atom, rows.ilist)
    species = np.array(atoms.type_species)[atoms.kind[rows.ilist]]
    np.testing.assert_array_equal(graph.species, species)


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_rows_than_local_atoms(library, kind):
    atoms = make_atoms(9, seed=7)
    chosen = np.isin(atoms.owner, [1, 2, 5, 8])
    graph = flatten(library, kind, make_list(atoms, kind, 8, chosen), atoms)
    assert len(graph.node_atom) == 4
    assert graph.edges(atoms) == expected_edges(atoms, chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_null_types_are_no_nodes_and_no_neighbors(library, kind):
    atoms = replace(make_atoms(9, seed=9), type_species=(-1, -1, 3))
    graph = flatten(library, kind, make_list(atoms, kind, 10), atoms)
    assert set(graph.species) == {3}
    assert graph.edges(atoms) == expected_edges(atoms, np.ones(len(atoms.owner), dtype=bool))


@pytest.mark.parametrize("kind", KINDS)
def test_one_atom_with_many_images_of_itself(library, kind):
    atoms = make_atoms(1, seed=11, side=1.9)
    graph = flatten(library, kind, make_list(atoms, kind, 12), atoms)
    assert set(graph.sender) == {0}
    assert graph.edges(atoms) == expected_edges(atoms, np.ones(len(atoms.owner), dtype=bool))


@pytest.mark.parametrize("kind", [FULL, HALF_NEWTON_OFF])
@pytest.mark.parametrize("n_mine", [0, 1, 5])
def test_atoms_of_other_ranks_are_senders_only(library, kind, n_mine):
    everyone = make_atoms(9, seed=23)
    mine = replace(everyone, n_local=n_mine, n_remote=9 - n_mine)
    graph = flatten(library, kind, make_list(mine, kind, 24), mine)
    expected = expected_edges(everyone, np.ones(len(everyone.owner), dtype=bool))
    assert graph.edges(mine) == Counter({e: n for e, n in expected.items() if e[0] < n_mine})
    species = np.array(mine.type_species)[mine.kind]
    assert len(graph.node_atom) == n_mine
    np.testing.assert_array_equal(graph.species[:n_mine], species[graph.node_atom])
    np.testing.assert_array_equal(graph.species[n_mine:], species[n_mine:9])


def test_edges_of_a_full_list_keep_its_order(library):
    atoms = make_atoms(9, seed=13)
    rows = make_list(atoms, FULL, 14)
    graph = flatten(library, FULL, rows, atoms)
    listed = np.concatenate([rows.neighbors[i] & 0x1FFFFFFF for i in rows.ilist])
    np.testing.assert_array_equal(graph.sender_atom, listed)
    np.testing.assert_array_equal(
        graph.receiver_atom, np.repeat(rows.ilist, [len(rows.neighbors[i]) for i in rows.ilist])
    )


@pytest.mark.parametrize("kind", [HALF_NEWTON_ON, HALF_NEWTON_OFF])
def test_half_lists_are_filled_in_the_order_of_the_visits(library, kind):
    atoms = make_atoms(6, seed=15)
    rows = make_list(atoms, kind, 16)
    graph = flatten(library, kind, rows, atoms)
    visits: dict[int, list[tuple[int, int]]] = {int(i): [] for i in rows.ilist}
    for i in map(int, rows.ilist):
        for j in map(int, rows.neighbors[i] & 0x1FFFFFFF):
            visits[i].append((i, j))
            if kind == HALF_NEWTON_ON or j < atoms.n_local:
                visits[int(atoms.owner[j])].append((j, i))
    listed = [pair for i in map(int, rows.ilist) for pair in visits[i]]
    edges = zip(graph.receiver_atom.tolist(), graph.sender_atom.tolist(), strict=True)
    assert list(edges) == listed


def test_empty_lists(library):
    no_atoms = make_atoms(0, seed=0)
    graph = flatten(library, FULL, Rows(np.zeros(0, np.int32), []), no_atoms)
    assert graph.indptr.tolist() == [0]
    lone = make_atoms(3, seed=17, side=40.0)
    for kind in KINDS:
        graph = flatten(library, kind, make_list(lone, kind, 18), lone)
        assert graph.indptr.tolist() == [0, 0, 0, 0]
        assert len(graph.sender) == 0


def test_offsets_are_64_bit(library):
    assert library.offset_bytes() == 8


def test_a_smaller_graph_replaces_a_larger_one(library):
    for n_local in (9, 3, 6):
        atoms = make_atoms(n_local, seed=19)
        graph = flatten(library, FULL, make_list(atoms, FULL, 20), atoms)
        assert graph.edges(atoms) == expected_edges(atoms, np.ones(len(atoms.owner), dtype=bool))


def test_a_neighbor_without_row_is_refused(library):
    atoms = make_atoms(4, seed=21)
    rows = make_list(atoms, FULL, 22)
    with pytest.raises(RuntimeError, match="its owner has no row in the list"):
        flatten(library, FULL, replace(rows, ilist=rows.ilist[:-1]), atoms)


# ---- planted mistakes ----


@pytest.mark.parametrize("wrong", [HALF_NEWTON_ON, HALF_NEWTON_OFF])
def test_a_full_list_taken_for_a_half_one_is_noticed(library, wrong):
    atoms = make_atoms(9, seed=1)
    graph = flatten(library, wrong, make_list(atoms, FULL, 1), atoms)
    assert graph.edges(atoms) != expected_edges(atoms, np.ones(len(atoms.owner), dtype=bool))


def test_one_wrong_neighbor_is_noticed(library):
    atoms = make_atoms(9, seed=1)
    rows = make_list(atoms, FULL, 1)
    flipped = [row.copy() for row in rows.neighbors]
    flipped[0][0] ^= 1
    graph = flatten(library, FULL, replace(rows, neighbors=flipped), atoms)
    assert graph.edges(atoms) != expected_edges(atoms, np.ones(len(atoms.owner), dtype=bool))


def test_an_image_taken_for_its_owner_is_noticed(library):
    atoms = make_atoms(9, seed=1)
    graph = flatten(library, FULL, make_list(atoms, FULL, 1), atoms)
    no_image = replace(graph, sender_atom=atoms.owner[graph.sender_atom])
    assert graph.edges(atoms) != no_image.edges(atoms)
