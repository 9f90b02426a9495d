"""The CUDA kernels of the inference path, run thread by thread on a CPU, against the oracle."""

import pytest
import test_inference_cuda as on_gpu
from emulation_support import emulate
from test_inference_cpu import SETUPS, Run

from mace_stream.kernels import inference_cuda
from mace_stream.reference.inference import ReferencePasses
from mace_stream.testing.inference import random_problem, random_setup

MEAN_SLOTS = 5
CASES = {"float32": ("float32", True), "float64": ("float64", False)}


class EmulatedRun(Run):
    """As :class:`Run`, with the launchers of CUDA."""

    def make_passes(self, core, with_density):
        zbl = self.setup.repulsion
        tables = (zbl.charge, zbl.inverse_length, zbl.bond) if zbl else ()
        addresses = [table.ctypes.data for table in tables]
        return on_gpu.cuda_passes(self.setup, with_density, "sm_90", lambda: 0, addresses)


def run_of(setup, with_density=True):
    problem = random_problem(setup, n_nodes=on_gpu.NODES, mean_slots=MEAN_SLOTS)
    return EmulatedRun(None, setup, problem, with_density), ReferencePasses(setup)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where programs are compiled, once for all tests."""
    return tmp_path_factory.mktemp("emulated")


def setup_of(dtype):
    return random_setup(**{"share_of_terms": 0.1} | SETUPS["medium"] | {"dtype": dtype})


@pytest.fixture(params=CASES)
def case(request, monkeypatch, folder):
    dtype, with_density = CASES[request.param]
    emulate(monkeypatch, inference_cuda, folder)
    monkeypatch.setattr(on_gpu, "run_of", run_of)
    return setup_of(dtype), with_density


def test_edges(case):
    on_gpu.test_edges(case[0])


def test_closest_distance(case):
    on_gpu.test_closest_distance(case[0])


def test_scatter(case):
    on_gpu.test_scatter(*case)


def test_scatter_backward(case):
    on_gpu.test_scatter_backward(*case)


def test_conv_and_its_backward(case):
    on_gpu.test_conv_and_its_backward(*case)


def test_contract_and_its_backward(case):
    on_gpu.test_contract_and_its_backward(case[0])


def test_forces(case):
    on_gpu.test_forces(case[0])


PLANTS = {
    "place": ("find_edges.cuh", "Real(u - knot)", "Real(u - knot) + Real(1e-3)", "edges"),
    "harmonic": ("scatter.cuh", "value, edge.y[m])", "value, edge.y[0])", "scatter"),
    "path": ("radial_conv.cuh", " + G::OUT_PATH[M] * CHANNELS", "", "conv_and_its_backward"),
    "block": ("radial_conv.cuh", "call.out[block]", "call.out[0]", "conv_and_its_backward"),
    "row": ("contraction.cuh", "msg[m.value]", "msg[0]", "contract_and_its_backward"),
    "cotangent": (
        *("contraction_backward.cuh", "store_nodes(call.msg[m.value]", "store_nodes(call.msg[0]"),
        "contract_and_its_backward",
    ),
    "sign": ("sum_forces.cuh", "force[a] -= grad", "force[a] += grad", "forces"),
    "wait": (
        *("radial_conv.cuh", "sum_over_lanes(", "if (threadIdx.x > 0) sum_over_lanes("),
        "conv_and_its_backward",
    ),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_mistakes_are_seen(plant, monkeypatch, folder):
    *planted, name = PLANTS[plant]
    emulate(monkeypatch, inference_cuda, folder / plant, planted)
    monkeypatch.setattr(on_gpu, "run_of", run_of)
    test = getattr(on_gpu, f"test_{name}")
    density = (True,) if "conv" in name or "scatter" in name else ()
    match = "never come" if plant == "wait" else "(?i)not equal|not close|assert"
    with pytest.raises(AssertionError, match=match):
        test(setup_of("float64"), *density)
