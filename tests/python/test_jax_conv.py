"""The convolution in JAX against oracle, plain JAX and torch; transformations; refusals."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from conv_cpu_support import RAGGED, assert_equal, cotangents, oracle, problem
from jax_support import (
    NAMES,
    assert_trees_equal,
    conv,
    force_loss,
    gradient,
    jax,
    jnp,
    loss_of,
    message_of,
    ops,
    plain_conv,
    pulled,
    twice_pulled,
)
from test_couplings import PATHS

from mace_stream.kernels import core
from mace_stream.kernels.conv_kernel import ConvKernel
from mace_stream.torch import conv as torch_conv

ROWS = {"ragged": RAGGED, "no_edges": [0, 0], "no_receivers": []}


# ---- values ----


@pytest.mark.parametrize("mode", ["auto", "streaming", "standard"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("l_in", PATHS)
def test_conv_equals_the_oracle(jax_device, l_in, rows, mode):
    given = problem(l_in, rows)
    expected = oracle(given)
    assert_equal(np.asarray(message_of(given, mode=mode)), expected)
    assert_equal(np.asarray(message_of(given, function=plain_conv)), expected)


@pytest.mark.parametrize("x64", [False, True])
def test_float32_errs_at_most_twice_as_much_as_plain_jax(jax_device, x64):
    given = problem(rows=[40, 55, 60], channels=32).cast(np.float32)
    message_bar, _ = cotangents(given)
    wide = given.cast(np.float64)
    exact = pulled(wide, message_bar.astype(np.float64), plain_conv)
    with jax.enable_x64(x64):
        actual, plain = (pulled(given, message_bar, function) for function in (conv, plain_conv))
    for a, p, e in zip(actual, plain, exact, strict=True):
        assert a.dtype == np.float32
        allowed = 2 * np.abs(p - e).max() + np.finfo(np.float32).eps * np.abs(e).max()
        assert np.abs(a - e).max() <= allowed


@pytest.mark.parametrize("mode", ["streaming", "standard"])
@pytest.mark.parametrize("l_in", PATHS)
def test_jax_equals_torch(jax_device, l_in, mode):
    given = problem(l_in)
    message_bar, cts = cotangents(given)
    actual = twice_pulled(given, message_bar, cts, mode=mode)
    expected = torch_derivatives(given, message_bar, cts, jax_device, mode)
    for a, b in zip(actual, expected, strict=True):
        assert_equal(np.asarray(a), b.detach().cpu().numpy(), bound=1e-13)


def torch_derivatives(given, message_bar, cts, device, mode):
    tensor = partial(torch.tensor, device=device)
    leaves = [tensor(array, requires_grad=True) for array in given.arrays]
    bar = tensor(message_bar, requires_grad=True)
    graph = tensor(given.indptr), tensor(given.sender)
    message = torch_conv(*leaves, *graph, given.plan, mode=mode)
    bars = torch.autograd.grad(message, leaves, bar, create_graph=True)
    return [message, *bars, *torch.autograd.grad(bars, [bar, *leaves], list(map(tensor, cts)))]


@pytest.mark.parametrize("rows", [ROWS["no_edges"], ROWS["no_receivers"]], ids=["edges", "rows"])
def test_empty_graphs_have_derivatives_of_zero(jax_device, rows):
    given = problem(rows=rows)
    for mode in ("streaming", "standard"):
        loss = loss_of(given, mode=mode)
        grads, changes = jax.jvp(jax.grad(loss, (0, 1, 2)), given.arrays, given.arrays)
        for array, grad, change in zip(given.arrays, grads, changes, strict=True):
            assert grad.shape == change.shape == array.shape
            assert not grad.any()
            assert not change.any()


def test_bits_repeat(jax_device):
    given = problem(rows=[3, 0, 11, 1, 40] * 8, channels=20)
    message_bar, _ = cotangents(given)
    first = pulled(given, message_bar, deterministic=True)
    for _ in range(3):
        for a, b in zip(first, pulled(given, message_bar, deterministic=True), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_oracle_catches_a_swapped_path(jax_device):
    given = problem()
    node, attrs, weights = given.arrays
    message = np.asarray(
        message_of(given, (node, attrs, weights[:, [0, 1, 2, 4, 3, *range(5, 10)]]))
    )
    with pytest.raises(AssertionError):
        assert_equal(message, oracle(given))


# ---- transformations ----


def test_one_compilation_serves_changing_values_and_graphs(jax_device):
    traces = []

    @jax.jit
    def compiled(arrays, indptr, sender):
        traces.append(1)
        return conv(*arrays, indptr, sender, plan)

    given = problem(seed=1)
    plan = given.plan
    for seed, rows in enumerate([RAGGED, RAGGED[::-1], [0, 0, 0, 0, 0, sum(RAGGED)]]):
        other = problem(rows=rows, seed=seed)
        message = compiled(other.arrays, other.indptr, other.sender)
        assert_equal(np.asarray(message), oracle(other))
    assert len(traces) == 1


@pytest.mark.parametrize("mapped", [(0, 0, 0, 0, 0), (None, None, 0, None, None), (0, 2, 1, 0, 0)])
def test_vmap_equals_a_loop(jax_device, mapped):
    many = [problem(rows=rows, seed=seed) for seed, rows in enumerate([RAGGED, RAGGED[::-1]])]
    columns = zip(*[(*one.arrays, one.indptr, one.sender) for one in many], strict=True)
    inputs = [
        column[0] if axis is None else np.stack(column, axis)
        for column, axis in zip(columns, mapped, strict=True)
    ]

    def grads(*inputs):
        loss = partial(_loss_of_inputs, many[0].plan)
        return jax.value_and_grad(loss, (0, 1, 2))(*inputs)

    actual = jax.vmap(grads, mapped)(*inputs)
    for k in range(len(many)):
        one = [
            x if axis is None else np.take(x, k, axis)
            for x, axis in zip(inputs, mapped, strict=True)
        ]
        assert_trees_equal(jax.tree.map(lambda leaf, k=k: leaf[k], actual), grads(*one))


def _loss_of_inputs(plan, *inputs):
    return jnp.sum(jnp.sin(conv(*inputs, plan)))


# ---- what is launched on CUDA, seen without a GPU ----


class FakeDevice:
    compute_capability = "9.0"
    local_hardware_id = 3


@pytest.fixture
def lower(monkeypatch):
    """Lower a function for CUDA; returns the program's text and the variants that were loaded."""
    loaded = []
    prepare = lambda self, number, arch, variant: loaded.append((number, arch, variant))  # noqa: E731
    monkeypatch.setattr(jax, "local_devices", lambda backend: [FakeDevice()])
    monkeypatch.setattr(ConvKernel, "prepare", prepare)
    monkeypatch.setattr(core.CorePlan, "tiles", lambda *_: 3)

    def lower(function, *arrays):
        loaded.clear()
        lowered = jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",))
        return (
            lowered.as_text(),
            {(place, arch): None for place, arch, _ in loaded},
            {variant for *_, variant in loaded},
        )

    return lower


def test_cuda_passes_and_their_scratch(lower):
    given = problem(channels=64).cast(np.float32)
    n_edges = len(given.sender)
    text, places, variants = lower(gradient(loss_of(given)), *given.arrays)
    assert list(places) == [(3, "sm_90")]
    assert variants == {(core.FORWARD, False, True), (core.BACKWARD, False, True)}
    assert text.count("@mace_stream_conv_forward(") == 1
    assert text.count("@mace_stream_conv_backward(") == 1
    assert f"tensor<3x{n_edges}x16xf32>" in text
    assert "stablehlo.sort" not in text


def test_cuda_variants_of_other_calls(lower):
    given = problem().cast(np.float32)
    by_sender = (core.BACKWARD_SENDER, False, True)
    forward, standard = (core.FORWARD, False, True), (core.FORWARD, True, True)
    *_, variants = lower(gradient(loss_of(given, deterministic=True)), *given.arrays)
    assert variants == {forward, (core.BACKWARD, False, False), by_sender}
    *_, variants = lower(jax.grad(loss_of(given), 2), *given.arrays)
    assert variants == {forward, (core.BACKWARD, False, False)}
    *_, variants = lower(gradient(loss_of(given, mode="standard")), *given.arrays)
    assert variants == {standard, (core.BACKWARD, True, True)}
    text, _, variants = lower(gradient(force_loss(loss_of(given))), *given.arrays)
    assert variants >= {(core.DOUBLE_BACKWARD, False, True)}
    assert text.count("@mace_stream_conv_double_backward(") == 1


# ---- misuse is refused in words ----


@pytest.mark.parametrize("index", range(3), ids=NAMES)
def test_wrong_shapes_are_named(index):
    given = problem().cast(np.float32)
    arrays = list(given.arrays)
    arrays[index] = arrays[index][:, 1:]
    with pytest.raises(ValueError, match=f"{NAMES[index]}: expected shape"):
        message_of(given, arrays)


MISUSE = {
    "scalar": ({"node_feats": 1.0}, r"node_feats: expected shape \(0, 4, 5\), got \(\)"),
    "indptr": ({"indptr": np.zeros((2, 2), int)}, r"indptr: expected shape \(4,\), got \(2, 2\)"),
    "no indptr": ({"indptr": np.zeros(0, int)}, r"indptr: expected shape \(1,\), got \(0,\)"),
    "indptr's type": ({"indptr": np.zeros(7)}, "indptr: expected int32 or int64, got float32"),
    "sender's type": ({"sender": np.zeros(52)}, "sender: expected int32 or int64, got float32"),
    "mixed": (
        {"edge_attrs": np.zeros((52, 16), np.float16)},
        "edge_attrs: expected float32, got float16",
    ),
    "mode": ({"mode": "fast"}, "expected one of auto, streaming, standard, got 'fast'"),
}


@pytest.mark.parametrize(("change", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_is_refused(change, message):
    given = problem().cast(np.float32)
    arguments = dict(zip(NAMES, given.arrays, strict=True))
    arguments |= {"indptr": given.indptr, "sender": given.sender, "plan": given.plan}
    with pytest.raises(ValueError, match=message):
        conv(**(arguments | change))


def test_half_precision_is_refused():
    given = problem().cast(np.float16)
    with pytest.raises(ValueError, match="expected float32 or float64, got float16"):
        message_of(given)


def test_a_node_that_does_not_exist_is_named():
    given = problem().cast(np.float32)
    given.sender[2] = 99
    with (
        jax.default_device(jax.devices("cpu")[0]),
        pytest.raises(
            Exception,
            match=r"mace_stream: graph.sender\[2\]: expected at least 0 and less than 8, got",
        ),
    ):
        message_of(given).block_until_ready()


def test_a_build_without_jax_says_what_to_type(tmp_path):
    with pytest.raises(ImportError, match=r"no libmace_stream_jax.so.*type.*pip install \. -C"):
        ops.register_targets(tmp_path)


def test_a_missing_jax_says_what_to_type():
    code = "import sys; sys.modules['jax'] = None; import mace_stream.jax"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: mace_stream.jax needs JAX" in run.stderr
    assert "pip install 'mace-stream[jax]'" in run.stderr


def test_torch_is_not_imported():
    code = "import mace_stream.jax, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
