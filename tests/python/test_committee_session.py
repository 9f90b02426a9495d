"""A committee of sessions that only remember how they were called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mace_stream.bridge import committee, options
from mace_stream.evaluation import Evaluation

ELEMENTS = {"a": (1, 6, 8), "b": (8, 6), "c": (6, 7, 8)}


class FakeSession:
    """Forces are the model's number times the sum of positions; calls are kept."""

    def __init__(self, path, symbols, options, counted):
        self.path = Path(path)
        if path == "none":
            raise ValueError("not this one")
        known = ELEMENTS[path]
        numbers = {"C": 6, "O": 8}
        self.type_species = np.array(
            [known.index(numbers[s]) if s != "NULL" else -1 for s in symbols]
        )
        self.type_masses = [1.0] * len(symbols)
        self.spec = type("Spec", (), {"elements": known})
        self.sha256 = path
        self.r_max = 4.0 + "abc".index(path)
        self.finds_pairs = True
        self.exchanges = [False, True] * "abc".index(path)
        self.calls: list[str] = []
        self.species = None

    def set_topology(self, *arrays):
        self.calls.append("list")
        self.species = arrays[-1]

    def set_atoms(self, n_local, node, species, cutoff):
        self.calls.append("atoms")
        self.species = species

    def evaluate(self, positions, node_energy, node_virial):
        self.calls.append("evaluate")
        if np.isnan(positions).any():
            raise ValueError("not finite")
        number = 1.0 + "abc".index(str(self.path))
        return Evaluation(number, number * positions, np.full((3, 3), number))

    def take_statistics(self):
        seconds = {"model_s" if str(self.path) == "a" else "vjp_s": 1.0}
        return {**seconds, "edges": 7, "device_peak_bytes": 0, "resident_bytes": 5}


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr(committee, "Session", FakeSession)

    def build(rule, names="abc", symbols=("O", "NULL", "C")):
        words = options.check_options(["committee", rule])
        return committee.Committee(list(names), symbols, words)

    return build


X = np.arange(6.0).reshape(2, 3)
LIST = (np.zeros(3, dtype=np.int64), *[np.zeros(0, dtype=np.int32)] * 3)


def test_species_are_those_of_each_model(opened):
    models = opened("mean")
    assert models.type_species.tolist() == [2, -1, 1]
    models.set_topology(*LIST, np.array([1, 2, 1], dtype=np.int32))  # carbon, oxygen, carbon
    assert [member.species.tolist() for member in models.members] == [
        [1, 2, 1],
        [1, 0, 1],
        [0, 2, 0],
    ]
    assert all(member.species.dtype == np.int32 for member in models.members)
    assert models.r_max == 6.0


def test_mean_of_all(opened):
    models = opened("mean")
    models.set_topology(*LIST, np.array([1, 2], dtype=np.int32))
    result = models.evaluate(X, False, False)
    assert result.energy == 2.0
    np.testing.assert_array_equal(result.forces, 2 * X)
    assert result.node_energy is None
    assert [forces[1, 2] for forces in models.all_forces()] == [5, 10, 15]
    assert [member.calls for member in models.members] == [["list", "evaluate"]] * 3
    assert models.exchanges == [False, True] * 3
    assert models.other_exchanges == []


def test_others_come_later_where_the_first_was(opened):
    models = opened("first")
    models.set_topology(*LIST, np.array([1, 2], dtype=np.int32))
    x = X.copy()
    assert models.evaluate(x, False, False).energy == 1.0
    assert [len(member.calls) for member in models.members] == [2, 1, 1]
    x += 100
    assert [forces[1, 2] for forces in models.all_forces()] == [5, 10, 15]
    models.all_forces()
    assert [member.calls for member in models.members] == [["list", "evaluate"]] * 3
    assert models.exchanges == []
    assert models.other_exchanges == [False, True] * 3


def test_others_find_their_pairs_where_they_are_evaluated(opened):
    """A list that begins in the middle of the first one's life may lack pairs later."""
    models = opened("first")
    models.set_atoms(2, np.arange(2), np.array([1, 2], dtype=np.int32), 8.0)
    for _ in range(2):
        models.evaluate(X, False, False)
        models.all_forces()
    first, *others = (member.calls for member in models.members)
    assert first == ["atoms", "evaluate", "evaluate"]
    assert others == [["atoms", "atoms", "evaluate", "atoms", "evaluate"]] * 2
    assert models.members[1].species.tolist() == [1, 0]


def test_a_new_list_takes_old_forces_away(opened):
    models = opened("mean")
    models.evaluate(X, False, False)
    models.set_topology(*LIST, np.array([1, 2], dtype=np.int32))
    with pytest.raises(ValueError, match="no forces have been computed for these atoms"):
        models.all_forces()


def test_so_does_a_failure(opened):
    models = opened("mean")
    models.evaluate(X, False, False)
    with pytest.raises(ValueError, match="a: not finite"):
        models.evaluate(X * np.nan, False, False)
    with pytest.raises(ValueError, match="no forces have been computed"):
        models.all_forces()


def test_statistics_have_the_same_names_everywhere(opened):
    models = opened("mean", names="ac")
    models.evaluate(X, False, False)
    models.all_forces()
    expected = {"model_s": 1.0, "vjp_s": 1.0, "edges": 7, "device_peak_bytes": 0}
    expected |= {"resident_bytes": 5}
    assert models.take_statistics() == expected | {"compared": 1}
    assert models.take_statistics() == expected | {"compared": 0}


def test_refusals_name_the_file(opened):
    with pytest.raises(ValueError, match=r"^none: not this one$"):
        opened("mean", names=("a", "none"))
    with pytest.raises(ValueError, match=r"^a and a are the same model; name each model"):
        opened("mean", names="aba")
