"""The launcher of the convolution's CUDA kernels, with a driver that has no GPU.

The driver clears memory of the host and counts launches: enough for what the launcher decides
before any kernel runs.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

DRIVER = """
#include <cstring>
#include <cstddef>
static int launches = 0;
extern "C" {
int cuInit(unsigned) { return 0; }
int cuGetErrorString(int, const char** text) { *text = "planted"; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { *context = (void*)8; return 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void**) { return 0; }
int cuModuleLoadData(void** module, const void*) { *module = (void*)8; return 0; }
int cuModuleGetFunction(void** function, void*, const char*) { *function = (void*)8; return 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuMemsetD8Async(unsigned long long at, unsigned char value, size_t n, void*) {
  memset((void*)at, value, n);
  return 0;
}
int cuMemcpyAsync(unsigned long long, unsigned long long, size_t, void*) { return 0; }
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**) {
  return ++launches, 0;
}
int n_launches() { return launches; }
}
"""

PROGRAM = """
import ctypes
import numpy as np
from mace_stream.bench.cases import Case, case_plan
from mace_stream.kernels import core

CHANNELS = 4
plan = case_plan(Case(CHANNELS, (0, 1)))
count = ctypes.CDLL("libcuda.so.1").n_launches


def loaded(pass_number, width=1):
    kernels = core.CorePlan(plan, "float32")
    variant = pass_number, False, pass_number != core.BACKWARD_SENDER
    kernels.load_cuda(0, variant, b"code", [("kernel", width, 128, 0)], "sum_tiles")
    return kernels


def graph(n_nodes, n_receivers, n_edges, channels=CHANNELS):
    indptr = np.linspace(0, n_edges, n_receivers + 1).astype(np.int64)
    sender = np.zeros(n_edges, np.int32)
    held.extend([indptr, sender])
    sizes = n_nodes, n_receivers, n_edges, channels
    return core.Graph(*sizes, at(indptr), at(sender), None, None, None)


def poisoned(*shape):
    held.append(np.full(shape, np.nan, np.float32))
    return held[-1]


def at(array):
    '''As the frameworks give it: none for an array without elements.'''
    return array.ctypes.data if array.size else None


def arrays(g):
    nodes = poisoned(g.n_nodes, plan.dim_in, g.channels)
    edges = poisoned(g.n_edges, plan.dim_edge), poisoned(g.n_edges, plan.n_paths, g.channels)
    return [nodes, *edges]


held = []
place = core.Place(0, None)
"""

CASES = {
    "backward": """
kernels = loaded(core.BACKWARD)
for sizes in ((0, 0, 0), (3, 2, 0)):
    g = graph(*sizes)
    bars, message_bar = arrays(g), poisoned(g.n_receivers, plan.dim_out, CHANNELS)
    kernels.call("backward", place, g, *map(at, (*arrays(g), message_bar, *bars)), None)
    assert not bars[0].any()
assert count() == 0
g = graph(3, 2, 5)
message_bar = poisoned(2, plan.dim_out, CHANNELS)
kernels.call("backward", place, g, *map(at, (*arrays(g), message_bar, *arrays(g))), None)
assert count() == 1
""",
    "double_backward": """
kernels = loaded(core.DOUBLE_BACKWARD)
for sizes in ((0, 0, 0), (3, 2, 0)):
    g = graph(*sizes)
    message_bar, grad = (poisoned(g.n_receivers, plan.dim_out, CHANNELS) for _ in range(2))
    grads = arrays(g)
    given = *arrays(g), message_bar, *arrays(g), *grads, grad
    kernels.call("double_backward", place, g, *map(at, given), None)
    assert not grads[0].any() and not grad.any()
assert count() == 0
""",
    "channels": """
kernels = loaded(core.BACKWARD, width=2)
g = graph(3, 2, 5, channels=33)
message_bar = poisoned(2, plan.dim_out, 33)
try:
    kernels.call("backward", place, g, *map(at, (*arrays(g), message_bar, *arrays(g))), None)
except RuntimeError as error:
    assert "another number of channels than 33" in str(error), error
else:
    raise AssertionError("not refused")
""",
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Folder of a libcuda.so.1 that stands for the driver."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    command = ["g++", "-shared", "-fPIC", folder / "driver.cpp", "-o", folder / "libcuda.so.1"]
    subprocess.run(command, check=True)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_graphs_without_edges_and_other_channels(driver, case):
    """No kernel is looked for where none has anything to do: outputs are cleared."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + CASES[case]],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
