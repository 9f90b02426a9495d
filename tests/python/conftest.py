"""Fixtures that several files of this folder use."""

import os

import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch's tests need the GPU, too


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def jax_device(request):
    """Run a test on this kind of device, with float64 in JAX for as long as it lasts."""
    jax = pytest.importorskip("jax", reason="needs JAX: pip install 'mace-stream[jax]'")
    try:
        first = jax.devices(request.param)[0]
    except RuntimeError:
        pytest.skip(f"JAX sees no {request.param} device")
    with jax.enable_x64(True), jax.default_device(first):
        yield request.param
