"""How JAX is started, and how programs are compiled for a GPU; needs none."""

import os
from types import SimpleNamespace

import pytest

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'mace-stream[jax]'")
pytest.importorskip("mace_stream.jax", exc_type=ImportError)

from mace_stream.jax import placement  # noqa: E402
from mace_stream.jax.placement import GPU_THREADS, Placement  # noqa: E402


@pytest.fixture
def plugins(monkeypatch, tmp_path):
    """Make packages the plugins of JAX."""

    def installed(*names):
        for name in names:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").touch()
        found = SimpleNamespace(submodule_search_locations=[str(tmp_path)]) if names else None
        monkeypatch.setattr(placement.importlib.util, "find_spec", lambda name: found)

    return installed


@pytest.fixture
def started(monkeypatch):
    """NPROC whenever a device is looked for."""
    seen = []

    def look(name, rank):
        seen.append(os.environ["NPROC"])
        return jax.local_devices(backend="cpu")[0]

    monkeypatch.setattr(placement, "choose_device", look)
    return seen


@pytest.mark.parametrize(
    ("packages", "device", "threads"),
    [
        ((), "auto", 1),
        (("xla_other",), "auto", 1),
        (("xla_cuda13",), "auto", GPU_THREADS),
        (("xla_cuda12", "xla_other"), "cuda:1", GPU_THREADS),
        (("xla_cuda13",), "cpu", 1),
    ],
)
def test_xla_gets_more_threads_where_it_may_find_a_gpu(
    plugins, started, monkeypatch, packages, device, threads
):
    plugins(*packages)
    monkeypatch.setenv("NPROC", "before")
    assert Placement.choose(device, "auto", 0, 1).threads == 1
    assert started == [str(threads)]
    assert os.environ["NPROC"] == "before"


def test_xla_keeps_the_threads_asked_for_where_they_are_more(plugins, started):
    plugins("xla_cuda13")
    Placement.choose("auto", "auto", 0, GPU_THREADS + 4)
    assert started == [str(GPU_THREADS + 4)]


def on_gpu():
    return Placement(SimpleNamespace(platform="gpu"), "single", "asked for", 1)


def compiled_with(monkeypatch):
    """Options of every compilation."""
    options, stages = [], type(jax.jit(abs).lower(1.0))
    compile_ = stages.compile

    def noted(lowered, compiler_options=None):
        options.append(compiler_options)
        return compile_(lowered, compiler_options)

    monkeypatch.setattr(stages, "compile", noted)
    return options


def test_only_programs_for_a_gpu_get_options(monkeypatch):
    options = compiled_with(monkeypatch)
    on_cpu = Placement(jax.local_devices(backend="cpu")[0], "single", "asked for", 1)
    for place in (on_cpu, on_gpu()):
        assert place.compiled(abs, -2.0)(-3.0) == 3.0
    assert options == [None, {"xla_gpu_enable_triton_gemm": False}]


def test_an_option_that_went_away_is_told(monkeypatch):
    monkeypatch.setattr(placement, "VENDOR_PRODUCTS", {"xla_gpu_of_old": False})
    with pytest.warns(UserWarning, match="has no option xla_gpu_of_old"):
        assert on_gpu().compiled(abs, -2.0)(-3.0) == 3.0


def test_what_else_the_compiler_says_is_passed_on(monkeypatch):
    monkeypatch.setattr(placement, "VENDOR_PRODUCTS", {"xla_gpu_enable_triton_gemm": "perhaps"})
    with pytest.raises(RuntimeError, match="perhaps"):
        on_gpu().compiled(abs, -2.0)
