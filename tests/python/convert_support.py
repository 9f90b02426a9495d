"""Model files for the conversion tests: built once per combination, changed in memory."""

import functools
import io
import warnings
from pathlib import Path

import numpy as np
import torch

from mace_stream.convert.source import import_mace
from mace_stream.testing.twins import tiny

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
SHIPPED = ROOT / "examples" / "models" / "ti_hcp_meam.mace"
TRAINED = sorted((ROOT.parent / "shared" / "models").glob("*/*.model"))


@functools.lru_cache(maxsize=32)
def _pickled(name, override):
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(tiny(name, **dict(override)), buffer)
    return buffer.getvalue()


def twin(name="MP-0b2 medium", **override):
    """A small random model; a fresh copy each time, so that a test may spoil it."""
    pickled = _pickled(name, tuple(sorted(override.items())))
    return torch.load(io.BytesIO(pickled), weights_only=False)


def write(model, path):
    """Save a model as mace-torch does and return the path."""
    import_mace()
    torch.save(model, path)
    return path


def assert_same_tensors(actual, expected):
    assert sorted(actual) == sorted(expected)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype, name
        np.testing.assert_array_equal(actual[name], array, err_msg=name)
