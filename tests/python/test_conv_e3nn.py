"""The convolution in the place of e3nn's tensor product and a sum over edges."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from conv_torch_support import DEVICES, derivatives, gap, largest_gap, like, natural
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_couplings import o3

from mace_stream import reference
from mace_stream.couplings import ConvPlan, resolve_mode
from mace_stream.torch import E3nnConv

ROWS = (3, 0, 2, 1)


def uvu(*positions):
    return [(*map(int, text), "uvu", True) for text in positions]


def uvw(*positions):
    return [(*map(int, text), "uvw", True) for text in positions]


CASES = {  # irreps of nodes, edges and messages; instructions
    "uvu": ("8x0e+8x1o", "0e+1o+2e", "8x0e+8x1o+8x1o", uvu("000", "011", "122")),
    "several paths into one block": (
        *("4x0e+4x1o", "0e+1o", "4x0e+4x1o"),
        [(1, 1, 0, "uvu", True, 2.5), *uvu("000", "011", "101")],
    ),
    "several copies of the harmonics": (
        *("6x0e+6x1o", "2x0e+3x1o", "6x1o+6x0e"),
        uvu("010", "100", "111"),
    ),
    "no weights": (
        *("5x0e+5x1e", "2x1e", "5x1e+5x1e"),
        [(0, 0, 0, "uvu", False), *uvu("101")],
    ),
    "unequal multiplicities": (
        *("12x0e+8x1o+4x2e", "0e+1o+2e", "12x0e+8x1o+4x2e+12x2e"),
        uvu("000", "101", "202", "023", "222"),
    ),
    "unused blocks": ("3x1o+8x0e+5x2e", "1o+0e+2e", "7x3o+8x0e", uvu("111")),
    "uvw from one channel": ("0e+1o", "3x0e+1o", "8x0e+4x1o", uvw("000", "011", "110")),
    "uvw into one channel": ("8x0e+4x1o", "2x0e+1o", "0e+1o", uvw("000", "110", "011")),
    "uvw of one channel": ("0e+1o", "0e+1o", "0e", uvw("000", "110")),
    "both modes": ("8x0e+4x0e+0e", "0e+1o", "8x0e+4x1o+1o", [*uvu("000"), *uvw("211", "012")]),
    "many harmonics": (
        *("4x0e+4x1o", "3x0e+10x1o", "4x0e+4x1o"),
        [*uvu("000", "101"), (0, 1, 1, "uvu", False)],
    ),
    "uvw": (
        *("6x0e+4x1o", "2x0e+1o", "8x0e+3x1o"),
        [(1, 1, 0, "uvw", True, 0.5), *uvw("000", "110", "011")],
    ),
    "uvw and the rest": (
        *("6x0e+4x1o+0e", "2x0e+1o", "8x0e+4x1o+0e"),
        [(1, 0, 1, "uvu", False), *uvw("000", "211", "112"), *uvu("101")],
    ),
}
MIXED = {"many harmonics", "uvw", "uvw and the rest"}
"""What no kernel serves."""


@contextmanager
def float64_by_default():
    """e3nn rounds its couplings to the default precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def tensor_product(case, **normalizations):
    with float64_by_default():
        return o3.TensorProduct(
            *case, shared_weights=False, internal_weights=False, **normalizations
        )


class Pair:
    """The same convolution by e3nn and by us, on e3nn's vectors."""

    def __init__(self, case, device="cpu", mode="auto", **normalizations):
        self.product = tensor_product(case, **normalizations).to(device)
        self.plan = ConvPlan.from_irreps(*case, **normalizations)
        self.ours = E3nnConv(self.plan, mode).to(device)
        n_nodes, n_edges = len(ROWS) + 2, sum(ROWS)
        self.indptr = torch.tensor([0, *np.cumsum(ROWS)], device=device)
        generator = torch.Generator().manual_seed(0)
        self.sender = torch.randint(0, n_nodes, (n_edges,), generator=generator).to(device)
        self.receiver = torch.repeat_interleave(torch.arange(len(ROWS)), torch.tensor(ROWS))
        self.receiver = self.receiver.to(device)
        self.graph = self.indptr, self.sender
        dims = self.product.irreps_in1.dim, self.product.irreps_in2.dim, self.product.weight_numel
        shapes = zip((n_nodes, n_edges, n_edges), dims, strict=True)
        self.inputs = [
            torch.randn(s, generator=generator, dtype=torch.float64).to(device) for s in shapes
        ]

    def by_e3nn(self, nodes, harmonics, weights):
        per_edge = self.product(nodes[self.sender], harmonics, weights)
        message = per_edge.new_zeros(len(ROWS), per_edge.shape[1])
        return message.index_add(0, self.receiver, per_edge)

    def by_us(self, nodes, harmonics, weights):
        return self.ours(nodes, harmonics, weights, *self.graph)

    def gap(self, by_us=None):
        """Over the message and both derivatives."""
        leaves = [array.clone().requires_grad_() for array in self.inputs]
        expected = derivatives(self.by_e3nn, leaves)
        return largest_gap(derivatives(by_us or self.by_us, leaves), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_equals_e3nn(name, device):
    pair = Pair(CASES[name], device)
    assert bool(pair.plan.refusal) == (name in MIXED)
    assert pair.gap() < 1e-12


@pytest.mark.parametrize("name", ["uvu", "uvw"])
def test_standard_equals_e3nn(name):
    assert Pair(CASES[name], mode="standard").gap() < 1e-12


@pytest.mark.parametrize(
    ("irrep", "path"), list(product(("component", "norm", "none"), ("element", "path", "none")))
)
@pytest.mark.parametrize("name", ["several paths into one block", "uvw"])
def test_normalizations_equal_those_of_e3nn(name, irrep, path):
    chosen = {"irrep_normalization": irrep, "path_normalization": path}
    coefficients = [
        entry.path_weight for entry in tensor_product(CASES[name], **chosen).instructions
    ]
    plan = ConvPlan.from_irreps(*CASES[name], **chosen)
    norms = [np.linalg.norm(block.coupling) for block in plan.paths or plan.products]
    np.testing.assert_allclose(norms, coefficients, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_built_product_gives_the_same_plan(name):
    built = tensor_product(CASES[name])
    attributes = built.irreps_in1, built.irreps_in2, built.irreps_out, built.instructions
    plan, expected = ConvPlan.from_irreps(*attributes), ConvPlan.from_irreps(*CASES[name])
    np.testing.assert_array_equal(plan.terms, expected.terms)
    np.testing.assert_allclose(plan.values, expected.values, rtol=1e-14)


@st.composite
def convolutions(draw):
    """Any degrees up to 4 on each side, any subset of paths, uvu and uvw that keeps channels."""
    channels = draw(st.sampled_from([1, 2, 3, 8]))
    edge = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True))
    nodes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True))
    broad = draw(st.booleans())
    allowed = [
        (a, b, out)
        for (a, first), (b, second) in product(enumerate(nodes), enumerate(edge))
        for out in range(abs(first - second), min(first + second, 4) + 1)
    ]
    chosen = draw(st.lists(st.sampled_from(allowed), min_size=1, max_size=4, unique=True))
    parities = {(a, b): 1 if (nodes[a] + edge[b]) % 2 == 0 else -1 for a, b, _ in chosen}
    outs = [f"{channels}x{out}{'e' if parities[a, b] == 1 else 'o'}" for a, b, out in chosen]
    return (
        "+".join(f"{1 if broad else channels}x{natural(degree)}" for degree in nodes),
        "+".join(map(natural, edge)),
        "+".join(outs),
        [(a, b, k, "uvw" if broad else "uvu", True) for k, (a, b, _) in enumerate(chosen)],
    )


@pytest.mark.parametrize("device", DEVICES)
def test_any_paths_equal_e3nn(device):
    count = 12 if device == "cpu" else 4  # every one is compiled for the GPU

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=convolutions())
    def check(case):
        assert Pair(case, device).gap() < 1e-12

    check()


@pytest.mark.parametrize("name", CASES)
def test_the_oracle_has_the_same_tables(name):
    pair = Pair(CASES[name])
    nodes, harmonics, weights = pair.inputs
    arrays = pair.ours.node_feats.gather(nodes), harmonics, pair.ours.path_weights.gather(weights)
    graph = pair.indptr.numpy(), pair.sender.numpy()
    message = reference.conv(*(array.numpy() for array in arrays), *graph, pair.plan)
    flat = pair.ours.message.add_up(torch.tensor(message))
    assert gap(flat, pair.by_e3nn(*pair.inputs)) < 1e-12


# ---- layouts ----


@pytest.mark.parametrize("name", CASES)
def test_converters_come_back(name):
    pair = Pair(CASES[name])
    nodes, _, weights = pair.inputs
    feats = pair.ours.node_feats
    used = torch.zeros(pair.product.irreps_in1.dim, dtype=torch.bool)
    used[pair.plan.e3nn.node_index.reshape(-1)] = True
    assert torch.equal(feats.pick(feats.gather(nodes)), nodes * used)
    places = pair.ours.path_weights
    assert torch.equal(places.pick(places.gather(weights)), weights)
    message = pair.by_us(*pair.inputs)
    rows = pair.ours.message.put(message)
    assert rows.shape == (len(ROWS), pair.plan.dim_out, pair.plan.channels)
    assert torch.equal(pair.ours.message.add_up(rows), message)


@pytest.mark.parametrize("name", CASES)
def test_gather_and_add_up_are_adjoint(name):
    pair = Pair(CASES[name])
    for places in (pair.ours.node_feats, pair.ours.message):
        flat, rows = like([torch.empty(2, places.size), torch.empty(2, *places.shape)])
        ours, theirs = (places.gather(flat) * rows).sum(), (flat * places.add_up(rows)).sum()
        torch.testing.assert_close(ours, theirs)


def test_channels_divide_every_multiplicity():
    plan = ConvPlan.from_irreps(*CASES["unequal multiplicities"])
    assert (plan.channels, plan.dim_in) == (4, 3 * 1 + 2 * 3 + 1 * 5)


def test_no_edges_and_no_nodes():
    ours = E3nnConv(ConvPlan.from_irreps(*CASES["uvw and the rest"]))
    sizes = ours.node_feats.size, ours.plan.dim_edge, ours.path_weights.size
    leaves = [torch.zeros(0, size, requires_grad=True) for size in sizes]
    message = ours(*leaves, torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert message.shape == (0, ours.message.size)
    assert all(
        grad.shape == leaf.shape
        for grad, leaf in zip(torch.autograd.grad(message.sum(), leaves), leaves, strict=True)
    )


def test_second_derivative_of_mixed_channels():
    case = ("2x0e+2x1o", "0e+1o", "2x0e", uvw("000", "110"))
    pair = Pair(case)
    assert pair.plan.refusal
    leaves = [array.clone().requires_grad_() for array in pair.inputs]
    assert torch.autograd.gradcheck(pair.by_us, leaves)
    assert torch.autograd.gradgradcheck(pair.by_us, leaves)


# ---- planted mistakes ----


def spoil_sign(pair):
    values = pair.plan.values.copy()
    values[0] *= -1
    pair.ours.plan = replace(pair.plan, values=values)


def spoil_senders(pair):
    indptr, sender = pair.graph
    pair.graph = indptr, sender.flip(0)


def spoil_edge(pair):
    indptr, sender = pair.graph
    pair.graph = indptr - (indptr == indptr[1]) * 1, sender


def spoil_weight_order(pair):
    pair.ours.path_weights.same_order = False
    pair.ours.path_weights.index = pair.ours.path_weights.index.flip(0)


def spoil_message_order(pair):
    pair.ours.message.index = pair.ours.message.index.roll(1)


@pytest.mark.parametrize(
    "spoil", [spoil_sign, spoil_senders, spoil_edge, spoil_weight_order, spoil_message_order]
)
def test_the_comparison_rejects(spoil):
    pair = Pair(CASES["several copies of the harmonics"])
    spoil(pair)
    assert pair.gap() > 1e-3


# ---- refusals ----


UVU = uvu("000")
REFUSED = {
    "mode": (("4x0e", "4x0e", "4x0e", [(0, 0, 0, "uuu", True)]), "expected mode uvu or uvw"),
    "unequal uvu": (("4x0e", "0e", "3x0e", UVU), "same multiplicity of input and output"),
    "parity": (("4x0e", "1o", "4x1e", UVU), "conserved parity"),
    "triangle": (("4x0e", "1o", "4x2o", UVU), "triangle rule"),
    "position": (("4x0e", "0e", "4x0e", [(0, 1, 0, "uvu", True)]), "expected i_sh from 0 to 0"),
    "size": (("4x0e", "0e", "4x0e", [(0, 0, 0, "uvu")]), "expected .i_in, i_sh, i_out, mode"),
    "none": (("4x0e", "0e", "4x0e", []), "expected at least one"),
    "irreps": (("4x0", "0e", "4x0e", UVU), "expected terms such as"),
    "zero": (("0x0e", "0e", "0x0e", UVU), "multiplicities of at least 1"),
    "weights": (("4x0e", "0e", "3x0e", [(0, 0, 0, "uvw", False)]), "expected weights"),
    "built and not": (
        ("4x0e", "0e", "4x0e", [*UVU, (0, 0, 0, "uvu", True, 1.0, (4, 1))]),
        "expected all of a built TensorProduct, or none",
    ),
}


@pytest.mark.parametrize(("case", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_instructions_are_refused(case, message):
    with pytest.raises(ValueError, match=message):
        ConvPlan.from_irreps(*case)


@pytest.mark.parametrize("name", ["irrep_normalization", "path_normalization"])
def test_unknown_normalizations_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: expected one of"):
        ConvPlan.from_irreps(*CASES["uvu"], **{name: "integral"})


def test_a_plan_without_instructions_has_no_layout():
    with pytest.raises(ValueError, match=r"made by ConvPlan\.from_irreps"):
        E3nnConv(replace(ConvPlan.from_irreps(*CASES["uvu"]), e3nn=None))


@pytest.mark.parametrize("method", ["gather", "put", "add_up", "pick"])
def test_converters_refuse_other_sizes(method):
    ours = E3nnConv(ConvPlan.from_irreps(*CASES["uvu"]))
    with pytest.raises(ValueError, match="expected shape"):
        getattr(ours.message, method)(torch.zeros(2, 5))


def test_streaming_refuses_mixed_channels_with_the_reason():
    plan = ConvPlan.from_irreps(*CASES["uvw"])
    with pytest.raises(ValueError, match=r"instruction 4x1o x 1x1o -> 8x0e \(uvw\) mixes channels"):
        Pair(CASES["uvw"], mode="streaming").by_us(*Pair(CASES["uvw"]).inputs)
    assert resolve_mode("auto", plan)[0] == resolve_mode("standard", plan)[0] == "standard"
    assert "plain torch" in resolve_mode("auto", plan)[1]
    assert resolve_mode("auto", ConvPlan.from_irreps(*CASES["uvu"]))[0] == "streaming"


def test_deterministic_refuses_sums_in_any_order():
    pair = Pair(CASES["uvw"])
    pair.ours.deterministic = True
    with pytest.raises(ValueError, match=r"deterministic: expected False in mode standard"):
        pair.by_us(*pair.inputs)


# ---- the page ----


def test_the_page_runs():
    page = (Path(__file__).resolve().parents[2] / "docs" / "convolution.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    exec("\n".join(blocks), {})  # noqa: S102  our own page
