"""The convolution as an operator: schemas, compilers, transforms, streams, refusals, sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conv_torch_support import (
    DEVICES,
    NAMES,
    RAGGED,
    derivatives,
    gap,
    largest_gap,
    like,
    model_plan,
    problem,
    small_plan,
)

from mace_stream.couplings import resolve_mode
from mace_stream.kernels.conv_kernel import kernel_name
from mace_stream.torch import ops
from mace_stream.torch.conv import conv, edge_receiver

on_devices = pytest.mark.parametrize("device", DEVICES)
on_a_gpu = pytest.mark.gpu


# ---- schemas ----


def operator_inputs(given, any_order, deterministic=False):
    """The four arrays, the graph and the settings."""
    n_receivers = len(given.indptr) - 1
    arrays = given.leaves()
    (bar,) = (b.requires_grad_() for b in like([given.conv()]))
    graph = given.indptr, given.sender, None
    if any_order:
        graph = None, given.sender, edge_receiver(given.indptr)
    kernel = kernel_name(given.plan, str(arrays[0].dtype).removeprefix("torch."))
    return [*arrays], bar, graph, (n_receivers, kernel, deterministic)


CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
ALL_CHECKS = (*CHECKS, "test_aot_dispatch_dynamic")


@on_devices
@pytest.mark.parametrize("any_order", [False, True], ids=["rows", "any order"])
def test_opcheck(any_order, device):
    given = problem(small_plan(3), RAGGED, device)
    deterministic = device == "cuda" and not any_order  # atomics differ between two runs
    arrays, bar, graph, settings = operator_inputs(given, any_order, deterministic)
    torch.library.opcheck(ops.conv_forward, (*arrays, *graph, *settings), test_utils=ALL_CHECKS)
    for want_nodes in (True, False):
        inputs = (*arrays, bar, *graph, *settings, want_nodes)
        torch.library.opcheck(ops.conv_backward, inputs, test_utils=ALL_CHECKS)
    for cts in (like(arrays), (None, *like(arrays[1:])), (like(arrays)[0], None, None)):
        inputs = (*arrays, bar, *cts, *graph, *settings, True)
        torch.library.opcheck(ops.conv_double_backward, inputs, test_utils=CHECKS)


def test_opcheck_rejects_a_wrong_fake():
    @torch.library.custom_op("mace_stream_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x])

    twice.register_fake(torch.empty_like)
    with pytest.raises(Exception, match=r"(?i)shape"):
        torch.library.opcheck(twice, (torch.ones(3),), test_utils=CHECKS)


def test_the_operators_themselves_refuse_the_third_derivative():
    arrays, bar, graph, settings = operator_inputs(problem(small_plan()), any_order=False)
    grads = ops.conv_double_backward(*arrays, bar, *like(arrays), *graph, *settings, True)
    with pytest.raises(NotImplementedError, match="no third derivative"):
        torch.autograd.grad(grads[0].sum(), arrays[1])


# ---- compilers and transforms ----


@on_devices
@pytest.mark.parametrize(
    "settings", [{}, {"mode": "standard"}, {"deterministic": True}], ids=["auto", "any", "fixed"]
)
def test_compile_without_graph_breaks(settings, device):
    given = problem(small_plan(4), RAGGED, device)

    def energy(nodes, attrs, weights, indptr, sender):
        message = conv(nodes.sin(), attrs, weights * 2, indptr, sender, given.plan, **settings)
        return message.tanh().sum()

    leaves, graph = given.leaves(), (given.indptr, given.sender)
    # aot_eager: inductor cannot build in a path with a space, and is not what is tested here.
    compiled = torch.compile(energy, fullgraph=True, backend="aot_eager")
    actual, expected = compiled(*leaves, *graph), energy(*leaves, *graph)
    assert gap(actual.detach(), expected.detach()) < 1e-14
    gradients = [torch.autograd.grad(value, leaves) for value in (actual, expected)]
    assert largest_gap(*gradients) < 1e-13


@on_devices
def test_functional_transforms(device):
    given = problem(small_plan(4), RAGGED, device)
    message, vjp = torch.func.vjp(given.conv, *given.arrays)
    expected, plain_vjp = torch.func.vjp(given.plain, *given.arrays)
    (bar,) = like([message])
    assert largest_gap([message, *vjp(bar)], [expected, *plain_vjp(bar)]) < 1e-12

    def gradient(function):
        return torch.func.grad(lambda *arrays: function(*arrays).sin().sum(), argnums=(0, 1, 2))

    cts = like(given.arrays, 4)
    twice = [torch.func.vjp(gradient(f), *given.arrays) for f in (given.conv, given.plain)]
    (first, second_vjp), (plain, plain_second) = twice
    assert largest_gap(first, plain) < 1e-12
    assert largest_gap(second_vjp(cts), plain_second(cts)) < 1e-12


def test_forward_mode_is_refused():
    given = problem(small_plan())
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        nodes = forward_ad.make_dual(given.arrays[0], torch.ones_like(given.arrays[0]))
        with torch.no_grad(), pytest.raises(RuntimeError, match="forward"):
            given.conv(nodes, *given.arrays[1:])


@on_devices
def test_calls_that_nothing_differentiates_give_the_same_bits(device):
    given = problem(model_plan(), device=device)
    watched = given.conv(*given.leaves())
    assert watched.requires_grad
    with torch.no_grad():
        unwatched = given.conv(*given.leaves())
    assert not unwatched.requires_grad
    assert torch.equal(watched, unwatched)
    assert torch.equal(watched, given.conv())


def test_vmap_is_refused():
    given = problem(small_plan(4))
    stacked = torch.stack([given.arrays[0]] * 2)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(lambda nodes: given.conv(nodes, *given.arrays[1:]))(stacked)


@on_devices
def test_checkpoint(device):
    from torch.utils.checkpoint import checkpoint

    given = problem(small_plan(4), RAGGED, device)
    leaves = given.leaves()
    saved = checkpoint(lambda *arrays: given.conv(*arrays).sin(), *leaves, use_reentrant=False)
    actual = torch.autograd.grad(saved.sum(), leaves)
    assert largest_gap(actual, torch.autograd.grad(given.conv(*leaves).sin().sum(), leaves)) < 1e-12


# ---- modes and bad inputs ----


def test_modes():
    given = problem(model_plan(0))
    chosen = given.conv()
    assert torch.equal(given.conv(mode="streaming"), chosen)
    assert gap(given.conv(mode="standard"), chosen) < 1e-12
    with pytest.raises(ValueError, match="expected one of auto, streaming, standard, got 'fast'"):
        given.conv(mode="fast")
    assert resolve_mode("auto", given.plan)[0] == "streaming"
    with pytest.raises(ValueError, match="deterministic: expected False in mode standard"):
        given.conv(mode="standard", deterministic=True)


def changed(index, change):
    """Change one of node_feats, edge_attrs, path_weights, indptr, sender."""

    def apply(inputs):
        return [change(x) if k == index else x for k, x in enumerate(inputs)]

    return apply


BAD = {
    "node_feats rows": (changed(0, lambda x: x[:, 1:]), r"node_feats: expected shape \(7, 4, 3\)"),
    "node_feats channels": (changed(0, lambda x: x[..., 1:]), "node_feats: expected shape"),
    "node_feats axes": (changed(0, lambda x: x[:, :, 0]), "node_feats: expected shape"),
    "node_feats type": (changed(0, lambda x: x.half()), "edge_attrs: expected torch.float16"),
    "edge_attrs rows": (changed(1, lambda x: x[1:]), r"edge_attrs: expected shape \(15, 16\)"),
    "edge_attrs columns": (changed(1, lambda x: x[:, 1:]), "edge_attrs: expected shape"),
    "edge_attrs type": (changed(1, lambda x: x.float()), "edge_attrs: expected torch.float64"),
    "path_weights rows": (changed(2, lambda x: x[1:]), "path_weights: expected shape"),
    "path_weights paths": (changed(2, lambda x: x[:, 1:]), "path_weights: expected shape"),
    "path_weights type": (changed(2, lambda x: x.float()), "path_weights: expected torch.float64"),
    "indptr type": (changed(3, lambda x: x.int()), "indptr: expected torch.int64"),
    "indptr axes": (changed(3, lambda x: x[None]), "indptr: expected shape"),
    "indptr empty": (changed(3, lambda x: x[:0]), r"indptr: expected shape \(1,\)"),
    "indptr end": (changed(3, lambda x: x + 1), "indptr"),
    "sender length": (changed(4, lambda x: x[1:]), "edge_attrs: expected shape"),
    "sender type": (changed(4, lambda x: x.double()), "sender: expected torch.int32"),
    "sender axes": (changed(4, lambda x: x[:, None]), "sender: expected shape"),
    "sender range": (changed(4, lambda x: x + 7), "sender"),
    "device": (changed(2, lambda x: x.to("meta")), "path_weights: expected on cpu, got meta"),
    "half": (lambda xs: [*(x.half() for x in xs[:3]), *xs[3:]], "expected float32 or float64"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD.values(), ids=BAD)
def test_bad_inputs_are_named(spoil, message):
    given = problem(model_plan())
    inputs = spoil([*given.arrays, given.indptr, given.sender])
    with pytest.raises((ValueError, RuntimeError), match=message):
        conv(*inputs, given.plan)


# ---- CUDA ----


@on_a_gpu
@pytest.mark.parametrize("settings", [{}, {"deterministic": True}, {"mode": "standard"}], ids=str)
@pytest.mark.parametrize("l_in", [0, 1, 2])
def test_cuda_equals_its_cpu_twin(l_in, settings):
    twin = problem(model_plan(l_in, 40), (300, 0, 41))
    given = problem(model_plan(l_in, 40), (300, 0, 41), "cuda")
    actual = derivatives(lambda *a: given.conv(*a, **settings), given.leaves())
    expected = derivatives(twin.conv, twin.leaves())
    assert largest_gap([t.cpu() for t in actual], expected) < 1e-12


@on_a_gpu
def test_work_goes_to_the_current_stream():
    """Inputs that another stream is still to write arrive in time only on that stream."""
    given = problem(model_plan(1, 32), (50, 60), "cuda")
    (bar,) = like([given.conv()])

    def run(leaves):
        message = given.conv(*leaves, deterministic=True)
        return [message.detach(), *torch.autograd.grad(message, leaves, bar)]

    expected = run(given.leaves())
    late = [torch.zeros_like(array) for array in given.arrays]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)
        for target, source in zip(late, given.arrays, strict=True):
            target.copy_(source)
        actual = run([array.requires_grad_() for array in late])
        waiting = not stream.query()
    torch.cuda.synchronize()
    assert waiting, "the producer was done before the convolution was asked for"
    assert all(map(torch.equal, actual, expected))


@on_a_gpu
@pytest.mark.parametrize("settings", [{}, {"deterministic": True}, {"mode": "standard"}], ids=str)
def test_graph_capture_and_replay(settings):
    given = problem(model_plan(1, 32), (50, 0, 60), "cuda")
    leaves = given.leaves()

    def step():
        return derivatives(lambda *arrays: given.conv(*arrays, **settings), leaves)

    cotangents = {}

    def fixed_like(tensors, seed=1):
        key = (seed, *(t.shape for t in tensors))
        if key not in cotangents:
            cotangents[key] = like(tensors, seed)
        return cotangents[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conv_torch_support.like", fixed_like)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            for leaf in leaves:
                leaf.mul_(1.5)
        graph.replay()
        torch.cuda.synchronize()
        assert largest_gap(captured, step()) < 1e-12


@on_a_gpu
@pytest.mark.slow
def test_more_than_2_31_weights():
    """8.6 GB of weights; the last receivers against plain torch."""
    degree, n_receivers = 105, 10_000
    plan = model_plan(0, 512)
    n_edges = degree * n_receivers
    assert n_edges * plan.n_paths * 512 > 2**31
    small = problem(plan, (degree,) * 3, "cuda", torch.float32)
    generator = torch.Generator("cuda").manual_seed(0)
    node_feats = torch.randn(n_receivers, 1, 512, device="cuda", generator=generator)
    attrs = torch.randn(n_edges, plan.dim_edge, device="cuda", generator=generator)
    weights = torch.randn(n_edges, plan.n_paths, 512, device="cuda", generator=generator)
    indptr = torch.arange(0, n_edges + 1, degree, device="cuda")
    sender = torch.randint(0, n_receivers, (n_edges,), device="cuda", generator=generator)
    leaves = [array.requires_grad_() for array in (node_feats, attrs, weights)]
    message = conv(*leaves, indptr, sender, plan)
    bars = torch.autograd.grad(message.square().sum(), leaves[1:])

    last = slice(n_edges - 3 * degree, n_edges)
    tail = [array.detach()[last].clone().requires_grad_() for array in (attrs, weights)]
    part = replace(small, sender=sender[last])
    expected = part.plain(node_feats.detach(), *tail)
    assert gap(message.detach()[-3:], expected.detach()) < 1e-5
    plain_bars = torch.autograd.grad(expected.square().sum(), tail)
    assert largest_gap([bar[last] for bar in bars], plain_bars) < 1e-5


def test_every_input_has_a_name():
    assert {name.split()[0] for name in BAD} >= {*NAMES, "indptr", "sender"}
