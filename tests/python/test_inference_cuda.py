"""The passes of the inference path on CUDA: compiled anywhere, run and compared on a GPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from conv_cpu_support import assert_equal as assert_within
from test_inference_cpu import SETUPS, Run, conv_bar_of, layers_with_conv, own

from mace_stream.kernels.inference import EdgeArrays, EdgeList
from mace_stream.kernels.inference_cuda import CudaPasses
from mace_stream.reference.inference import ReferencePasses
from mace_stream.testing.inference import random_problem, random_setup

pytest.importorskip("cuda.bindings", reason="needs NVRTC: pip install 'mace-stream[test]'")

BOUNDS = {"float32": 4e-6, "float64": 1e-12}
"""Of the largest entry. Inputs are rounded too, so a sum of n terms is off by some sqrt(n) eps."""

NODES = 24
"""A multiple of what a contraction takes at a time."""


def assert_equal(run, actual, expected):
    assert_within(actual, expected, BOUNDS[run.setup.dtype])


class Mirrored:
    """Passes that take host arrays: copies everything there, runs, and copies everything back."""

    def __init__(self, passes, arrays):
        self.passes, self.arrays = passes, arrays

    def __getattr__(self, name):
        return lambda *arguments: self._call(getattr(self.passes, name), arguments)

    def _call(self, method, arguments):
        held = {}

        def there(argument):
            if isinstance(argument, EdgeArrays | EdgeList):
                fields = dataclasses.asdict(argument)
                return dataclasses.replace(argument, **{k: there(v) for k, v in fields.items()})
            if isinstance(argument, list):  # rows of one array, from the first on
                return [there(argument[0]) + row - argument[0] for row in argument]
            if argument not in self.arrays:
                return argument
            if argument not in held:
                held[argument] = torch.from_numpy(self.arrays[argument]).cuda()
            return held[argument].data_ptr()

        method(*map(there, arguments))
        torch.cuda.synchronize()
        for address, copy in held.items():
            self.arrays[address][...] = copy.cpu().numpy()


def cuda_passes(setup, with_density, arch, stream, zbl):
    """Passes of a device; ``zbl`` are addresses of its tables, if there are any."""
    densities = tuple(with_density for _ in setup.contractions)
    return CudaPasses(setup, arch, densities, stream, tuple(zbl) or (0, 0, 0))


class CudaRun(Run):
    """As :class:`Run`, on a GPU."""

    def make_passes(self, core, with_density):
        zbl = self.setup.repulsion
        tables = (zbl.charge, zbl.inverse_length, zbl.bond) if zbl else ()
        self.zbl = [torch.tensor(table).cuda() for table in tables]
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
        stream, zbl = (
            lambda: torch.cuda.current_stream().cuda_stream,
            [t.data_ptr() for t in self.zbl],
        )
        passes = cuda_passes(self.setup, with_density, arch, stream, zbl)
        self.registered = {}
        return Mirrored(passes, self.registered)

    def address(self, array):
        if array is None:
            return 0
        self.registered[array.ctypes.data] = array
        return array.ctypes.data


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["density", "no_density"])
def with_density(request):
    return request.param


@pytest.fixture(params=SETUPS)
def setup(request, dtype):
    options = {"share_of_terms": 0.1} | SETUPS[request.param]
    return random_setup(**options | {"dtype": dtype})


def run_of(setup, with_density=True):
    torch.zeros(1).cuda()
    problem = random_problem(setup, n_nodes=NODES, mean_slots=40)
    return CudaRun(None, setup, problem, with_density), ReferencePasses(setup)


def tiles():
    return [(0, NODES), (0, 8), (8, NODES)]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", ["medium", "three_layers"])
def test_every_program_compiles_without_a_gpu(arch, name, tmp_path, monkeypatch):
    monkeypatch.setenv("MACE_STREAM_CACHE", str(tmp_path))
    setup = random_setup(**SETUPS[name] | {"dtype": "float32", "share_of_terms": 0.02})
    CudaPasses(setup, arch, (True,) * len(setup.plans), lambda: 0, compile_only=True)
    assert len(list(tmp_path.glob("*.cubin"))) >= 8


@pytest.mark.gpu
def test_edges(setup):
    run, oracle = run_of(setup)
    count, sender, row, t, direction, grad, energy, closest = run.find_edges()
    edges, exact_energy, exact_closest = oracle.edges(run.problem.nodes, run.problem.x)
    np.testing.assert_array_equal(count, edges.count)
    np.testing.assert_array_equal(own(run, sender), own(run, edges.sender))
    np.testing.assert_array_equal(own(run, row), own(run, edges.row))
    assert_equal(run, own(run, t), own(run, edges.t))
    assert_equal(run, own(run, direction), own(run, edges.dir))
    assert_equal(run, own(run, grad), own(run, edges.grad))
    assert_equal(run, energy, exact_energy)
    assert closest == exact_closest


@pytest.mark.gpu
def test_closest_distance(setup):
    closer = dataclasses.replace(setup, r_0=2.0)
    run, oracle = run_of(closer)
    assert run.find_edges()[-1] == pytest.approx(oracle.edges(run.problem.nodes, run.problem.x)[2])


@pytest.mark.gpu
def test_scatter(setup, with_density):
    run, oracle = run_of(setup, with_density)
    p = run.problem
    density = p.density if with_density else None
    expected, norm = oracle.scatter(p.nodes, p.edges, p.hidden, density)
    out, actual_norm = run.scatter()
    assert_equal(run, out, expected)
    assert_equal(run, actual_norm, norm)


@pytest.mark.gpu
def test_scatter_backward(setup, with_density):
    run, oracle = run_of(setup, with_density)
    p = run.problem
    density = p.density if with_density else None
    expected = oracle.scatter_backward(p.nodes, p.edges, p.hidden, density, p.scatter_bar)
    assert_equal(run, run.scatter_backward(), expected)


@pytest.mark.gpu
def test_conv_and_its_backward(setup, with_density):
    run, oracle = run_of(setup, with_density)
    p = run.problem
    density = p.density if with_density else None
    for layer in layers_with_conv(setup):
        arrays = p.nodes, p.edges, p.ups[layer], p.convs[layer], density
        for tile in tiles():
            expected, norm = oracle.conv(layer, tile, *arrays)
            out, actual_norm = run.conv(layer, tile)
            assert_equal(run, out, expected)
            if with_density:
                assert_equal(run, actual_norm, norm)
            bar = conv_bar_of(run, layer, tile)
            expected, up_bar = oracle.conv_backward(layer, tile, *arrays, bar)
            grad, actual_up_bar = run.conv_backward(layer, tile, bar)
            assert_equal(run, grad, expected)
            assert_equal(run, actual_up_bar, up_bar)
            assert_equal(run, run.conv_backward(layer, tile, bar, up_bar=False)[0], expected)


@pytest.mark.gpu
def test_contract_and_its_backward(setup):
    run, oracle = run_of(setup)
    p = run.problem
    species = np.repeat(np.arange(NODES // 8) % setup.n_species, 8).astype(np.int32)
    run.lists[4][:NODES] = species
    for layer in range(len(setup.contractions)):
        for tile in tiles():
            msg, bar = (a[layer][:, slice(*tile)] for a in (p.messages, p.basis_bars))
            arguments = layer, tile, species, p.coefs[layer], msg
            assert_equal(run, run.contract(layer, tile), oracle.contract(*arguments))
            expected, dot = oracle.contract_backward(*arguments, bar)
            actual, actual_dot = run.contract_backward(layer, tile)
            assert_equal(run, actual, expected)
            assert_equal(run, actual_dot, dot)
            assert_equal(run, run.contract_backward(layer, tile, with_dot=False)[0], expected)


@pytest.mark.gpu
def test_forces(setup):
    run, oracle = run_of(setup)
    p = run.problem
    for actual, expected in zip(run.forces(), oracle.forces(p.nodes, p.edges), strict=True):
        assert_equal(run, actual, expected)
