"""Kernels go with the object that holds them; without a GPU, on a driver that takes notes."""

import gc
from types import SimpleNamespace

import pytest

from mace_stream.kernels.launching import Kernels
from mace_stream.kernels.nvrtc import Program

bindings = pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")


@pytest.fixture
def calls(monkeypatch):
    """What the driver was asked for; it answers as CUDA's does."""
    notes = []

    def answer(name, *values):
        def call(*arguments):
            notes.append((name, *arguments))
            return (0, *values)

        return call

    driver = SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
        cuCtxGetCurrent=answer("current", "context"),
        cuModuleLoadData=answer("load", "module"),
        cuModuleGetFunction=lambda module, name: (0, (module, name)),
        cuCtxPushCurrent=answer("push"),
        cuModuleUnload=answer("unload"),
        cuCtxPopCurrent=answer("pop", "context"),
    )
    monkeypatch.setattr(bindings, "driver", driver, raising=False)
    return notes


def test_kernels_are_unloaded_in_their_context(calls):
    program = Program(b"code", {"a<1>": "mangled_a", "b<2>": "mangled_b"}, 0.0)
    kernels = Kernels(program, ["b<2>", "a<1>"])
    first, second = kernels
    assert (first, second) == (("module", b"mangled_b"), ("module", b"mangled_a"))
    assert calls == [("current",), ("load", b"code")]
    del calls[:], kernels
    gc.collect()
    assert calls == [("push", "context"), ("unload", "module"), ("pop",)]
