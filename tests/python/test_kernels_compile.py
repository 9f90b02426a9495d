"""Every CUDA kernel compiles for every architecture, on a machine without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from conv_torch_support import PATHS, model_plan

from mace_stream.couplings import ConvPlan
from mace_stream.kernels import core
from mace_stream.kernels.conv_kernel import compile_variant
from mace_stream.kernels.nvrtc import CompileError, compile_program

pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC: pip install 'mace-stream[test]'")

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
CHANNELS = {0: 96, 1: 128, 2: 224}
VARIANTS = {  # pass, edges in any order, node cotangents
    "forward": (core.FORWARD, False, True),
    "forward, any order": (core.FORWARD, True, True),
    "backward": (core.BACKWARD, False, True),
    "backward without nodes": (core.BACKWARD, False, False),
    "backward, any order": (core.BACKWARD, True, True),
    "backward, any order, without nodes": (core.BACKWARD, True, False),
    "backward by sender": (core.BACKWARD_SENDER, False, True),
    "double backward": (core.DOUBLE_BACKWARD, False, True),
    "double backward without nodes": (core.DOUBLE_BACKWARD, False, False),
    "double backward, any order": (core.DOUBLE_BACKWARD, True, True),
    "double backward, any order, without nodes": (core.DOUBLE_BACKWARD, True, False),
}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """Nothing comes from an earlier run."""
    monkeypatch.setenv("MACE_STREAM_CACHE", str(tmp_path))


def check_compiles(plan, dtype, arch, variant):
    program, kernels = compile_variant(plan, dtype, arch, variant)
    assert program.seconds > 0
    assert program.cubin.startswith(b"\x7fELF")
    assert kernels
    for name, width, threads, shared in kernels:
        assert name.encode() in program.cubin
        assert width in (1, 2)
        assert threads % 32 == 0
        assert shared <= 96 * 1024
    assert program.names["sum_tiles"].encode() in program.cubin


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_ten_paths_compile(name, arch):
    check_compiles(model_plan(1, CHANNELS[1]), "float32", arch, VARIANTS[name])


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("l_in", PATHS)
def test_every_kernel_compiles(l_in, dtype, arch):
    for variant in VARIANTS.values():
        check_compiles(model_plan(l_in, CHANNELS[l_in]), dtype, arch, variant)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("channels", [1, 7, 512])
def test_degrees_up_to_four_compile(channels, arch):
    irreps = [f"{channels}x{degree}{'eo'[degree % 2]}" for degree in (3, 4)]
    instructions = [(0, 0, 0, "uvu", True), (1, 1, 1, "uvu", True)]
    plan = ConvPlan.from_irreps("+".join(irreps), "4e+2e", "+".join(irreps), instructions)
    for name in ("forward", "backward", "double backward", "backward by sender"):
        check_compiles(plan, "float32", arch, VARIANTS[name])


def plan_with_harmonics(irreps_sh, channels=1):
    return ConvPlan.from_irreps(
        f"{channels}x0e", irreps_sh, f"{channels}x{irreps_sh[-2:]}", [(0, 0, 0, "uvu", True)]
    )


@pytest.mark.parametrize("name", ["forward", "backward by sender", "double backward"])
@pytest.mark.parametrize("irreps_sh", ["0e", "1o", "4e", "32x0e"])
def test_any_number_of_harmonics_compiles(irreps_sh, name):
    check_compiles(plan_with_harmonics(irreps_sh), "float64", "sm_90", VARIANTS[name])


def test_more_harmonics_than_lanes_are_refused():
    plan = replace(plan_with_harmonics("32x0e"), dim_edge=33)
    with pytest.raises(ValueError, match="edge_attrs: expected at most 32 components"):
        compile_variant(plan, "float32", "sm_90", VARIANTS["forward"])


def test_architectures_differ():
    plan = model_plan(0, 32)
    forward = VARIANTS["forward"]
    cubins = {compile_variant(plan, "float32", arch, forward)[0].cubin for arch in ARCHITECTURES}
    assert len(cubins) == len(ARCHITECTURES)


def test_a_mistake_is_reported_in_the_words_of_the_compiler():
    source = "__global__ void broken() { int x = 1 }"
    with pytest.raises(CompileError, match=r'NVRTC refused a kernel for sm_90:(.|\n)*";"'):
        compile_program(source, ["broken"], "sm_90")


def test_an_unknown_kernel_is_reported():
    with pytest.raises(CompileError, match=r"NVRTC(.|\n)*missing"):
        compile_program("__global__ void here() {}", ["missing"], "sm_90")


def test_an_unknown_architecture_is_reported():
    with pytest.raises(CompileError, match=re.escape("sm_1")):
        compile_program("__global__ void here() {}", ["here"], "sm_1")


def test_a_mistake_in_a_header_is_reported(monkeypatch):
    from mace_stream.kernels import nvrtc

    headers = dict(core.cuda_sources())
    headers["conv_forward.cuh"] = headers["conv_forward.cuh"].replace("hand_on();", "hand_on()", 1)
    monkeypatch.setattr(nvrtc, "cuda_sources", lambda: headers)
    with pytest.raises(CompileError, match=re.escape("conv_forward.cuh")):
        compile_variant(model_plan(0, 32), "float32", "sm_90", VARIANTS["forward"])
