"""Couplings against e3nn, and against what defines them where e3nn is not needed."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from mace_stream import reference
from mace_stream.convert.source import import_mace
from mace_stream.couplings import (
    ConvPlan,
    FeatureLayout,
    Irrep,
    parse_irreps,
    spherical_harmonics,
    wigner_3j,
)
from mace_stream.spec import Path

pytest.importorskip("mace", reason="needs mace-torch: pip install 'mace-stream[test]'")
import_mace()
o3 = pytest.importorskip("e3nn.o3")  # after mace-torch: alone it fails to read its own constants

L_MAX = 4
TRIPLES = [
    (l1, l2, l3)
    for l1, l2, l3 in itertools.product(range(L_MAX + 1), repeat=3)
    if abs(l1 - l2) <= l3 <= l1 + l2
]
PATHS = {  # l_in, l_edge, l_out in weight order, from the irreps a model of that l_in has
    0: "000 011 022 033",
    1: "000 110 011 101 121 022 112 132 033 123",
    2: "000 110 220 011 101 121 211 231 022 112 132 202 222 033 123 213 233",
}
SIZES = {0: (4, 16, 16), 1: (10, 86, 40), 2: (17, 215, 71)}  # paths, terms, rows


def natural(degree):
    return f"{degree}{'eo'[degree % 2]}"


def paths_of(l_in):
    triples = (map(int, text) for text in PATHS[l_in].split())
    return [Path(natural(a), b, natural(c)) for a, b, c in triples]


def plan_of(l_in, channels=3, l_max=3):
    paths = paths_of(l_in)
    w3j = {
        (p.ir_in, p.l_edge, p.ir_out): wigner_3j(int(p.ir_in[0]), p.l_edge, int(p.ir_out[0]))
        for p in paths
    }
    irreps = "+".join(f"{channels}x{natural(degree)}" for degree in range(l_in + 1))
    return ConvPlan.build(irreps, l_max, paths, w3j)


def unit_vectors(n, seed=0):
    v = np.random.default_rng(seed).normal(size=(n, 3))
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def harmonics(v, l_max):
    return np.stack(spherical_harmonics(*v.T, l_max), axis=1)


def max_gap(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).max()


@pytest.mark.parametrize("degrees", TRIPLES, ids="{0[0]}{0[1]}{0[2]}".format)
def test_wigner_3j_equals_e3nn(degrees):
    expected = o3.wigner_3j(*degrees, dtype=torch.float64)
    assert max_gap(wigner_3j(*degrees), expected) < 1e-14


def test_the_e3nn_check_sees_a_sign_and_a_swapped_axis():
    expected = o3.wigner_3j(1, 2, 2, dtype=torch.float64)
    assert max_gap(-wigner_3j(1, 2, 2), expected) > 0.1
    assert max_gap(wigner_3j(1, 2, 2).transpose(0, 2, 1), expected) > 0.1


def invariance_gap(symbol, degrees, seed=0):
    """Change of the triple product of harmonics under a rotation; degrees above 4 included."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))
    points = unit_vectors(3, seed)

    def triple(vectors):
        ys = [
            harmonics(vectors[k : k + 1], d)[0, d**2 : (d + 1) ** 2] for k, d in enumerate(degrees)
        ]
        return np.einsum("abc,a,b,c->", symbol, *ys)

    return abs(triple(points @ rotation.T) - triple(points))


@pytest.mark.parametrize("degrees", [(1, 1, 1), (2, 3, 4), (5, 3, 2), (6, 6, 6)])
def test_wigner_3j_is_invariant_and_normalised(degrees):
    symbol = wigner_3j(*degrees)
    assert np.linalg.norm(symbol) == pytest.approx(1, abs=1e-13)
    assert invariance_gap(symbol, degrees) < 1e-12
    assert invariance_gap(symbol[::-1], degrees) > 1e-3


def test_wigner_3j_refuses():
    with pytest.raises(ValueError, match="triangle"):
        wigner_3j(1, 1, 3)
    with pytest.raises(ValueError, match="up to 6"):
        wigner_3j(7, 7, 0)


def test_spherical_harmonics_equal_e3nn():
    v = unit_vectors(40)
    degrees = list(range(L_MAX + 3))
    expected = o3.spherical_harmonics(degrees, torch.tensor(v), True, "component")
    assert max_gap(harmonics(v, L_MAX + 2), expected) < 1e-13
    assert max_gap(harmonics(v[:, [1, 2, 0]], L_MAX + 2), expected) > 0.1


def test_spherical_harmonics_obey_the_addition_theorem():
    first, second = unit_vectors(20, seed=1), unit_vectors(20, seed=2)
    cosine = (first * second).sum(1)
    products = harmonics(first, 5) * harmonics(second, 5)
    for degree in range(6):
        legendre = np.polynomial.legendre.Legendre.basis(degree)(cosine)
        rows = products[:, degree**2 : (degree + 1) ** 2].sum(1)
        assert max_gap(rows, (2 * degree + 1) * legendre) < 1e-12


def test_spherical_harmonics_of_torch_and_numpy_agree():
    v = unit_vectors(10)
    columns = spherical_harmonics(*torch.tensor(v).unbind(1), 4)
    assert max_gap(torch.stack(columns, 1), harmonics(v, 4)) < 1e-14


def test_irreps():
    assert parse_irreps("32x0e + 2x1o+3e") == (
        (32, Irrep(0, 1)),
        (2, Irrep(1, -1)),
        (1, Irrep(3, 1)),
    )
    layout = FeatureLayout.parse("8x0e+8x1o+8x2e")
    assert (layout.channels, layout.dim) == (8, 9)
    assert layout.rows(Irrep.parse("2e")) == slice(4, 9)
    assert str(Irrep.parse("3o")) == "3o"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse_irreps("8x0"), "terms such as '32x1o'"),
        (lambda: Irrep.parse("2x1o"), "a degree and a parity"),
        (lambda: FeatureLayout.parse("8x0e+4x1o"), "one multiplicity"),
        (lambda: FeatureLayout.parse("8x0e+8x0e"), "every irrep once"),
        (lambda: FeatureLayout.parse("8x0e").rows(Irrep(1, -1)), "irrep 1o"),
    ],
)
def test_irreps_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("l_in", PATHS)
def test_plan_has_the_published_size(l_in):
    plan = plan_of(l_in)
    assert (plan.n_paths, len(plan.terms), plan.dim_out) == SIZES[l_in]
    dense = sum(np.count_nonzero(path.coupling) for path in plan.paths)
    assert dense == len(plan.terms) == len(plan.values)


def e3nn_convolution(l_in, channels, node_feats, edge_attrs, weights, receiver, sender):
    """The same sum by e3nn's own tensor product, mul_ir layout, paths one after the other."""
    paths = paths_of(l_in)
    irreps_in = [(channels, (degree, (-1) ** degree)) for degree in range(l_in + 1)]
    irreps_out = [(channels, path.ir_out) for path in paths]
    instructions = [
        (int(path.ir_in[0]), path.l_edge, k, "uvu", True) for k, path in enumerate(paths)
    ]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # the product rounds its couplings to it
    product = o3.TensorProduct(
        irreps_in,
        o3.Irreps.spherical_harmonics(3),
        irreps_out,
        instructions,
        shared_weights=False,
        internal_weights=False,
    )
    torch.set_default_dtype(before)
    rows = [node_feats[:, d**2 : (d + 1) ** 2].transpose(0, 2, 1) for d in range(l_in + 1)]
    flat = np.concatenate([block.reshape(len(node_feats), -1) for block in rows], axis=1)
    inputs = (flat[sender], edge_attrs, weights.reshape(len(weights), -1))
    per_edge = product(*map(torch.tensor, inputs)).numpy()
    total = np.zeros((receiver.max() + 1, per_edge.shape[1]))
    np.add.at(total, receiver, per_edge)
    return total


def test_equal_plans_share_a_name():
    """What is compiled for a name lives on, so a model that is loaded again must not add one."""
    plan, again = plan_of(1), plan_of(1)
    assert again.name == plan.name
    assert np.array_equal(ConvPlan.by_name(again.name).terms, plan.terms)
    others = [plan_of(1, channels=4), plan_of(2), plan_of(1, l_max=4)]
    changed = {
        "values": plan.values * (1 + 1e-15),
        "terms": plan.terms[::-1].copy(),
        "outputs": plan.outputs[::-1],
    }
    others += [replace(plan, **{field: value}) for field, value in changed.items()]
    assert len({plan.name, *(other.name for other in others)}) == 7


@pytest.mark.parametrize("l_in", PATHS)
def test_conv_oracle_equals_e3nn_tensor_product(l_in):
    rng = np.random.default_rng(l_in)
    plan = plan_of(l_in)
    receiver, sender = np.array([0, 0, 0, 1, 2, 2]), np.array([1, 2, 2, 0, 0, 1])
    node_feats = rng.normal(size=(3, plan.dim_in, 3))
    edge_attrs = harmonics(unit_vectors(6), 3)
    weights = rng.normal(size=(6, plan.n_paths, 3))
    expected = e3nn_convolution(l_in, 3, node_feats, edge_attrs, weights, receiver, sender)
    message = reference.conv(node_feats, edge_attrs, weights, np.array([0, 3, 4, 6]), sender, plan)
    ours = np.concatenate(
        [message[:, p.rows_out].transpose(0, 2, 1).reshape(3, -1) for p in plan.paths], axis=1
    )
    assert max_gap(ours, expected) < 1e-12
    swapped = reference.conv(
        node_feats, edge_attrs, weights[:, ::-1], np.array([0, 3, 4, 6]), sender, plan
    )
    assert max_gap(swapped, message) > 1e-3


@pytest.mark.parametrize(
    ("paths", "l_max", "message"),
    [
        ([Path("0e", 1, "1e")], 3, "conserved parity"),
        ([Path("0e", 1, "2e")], 3, "triangle"),
        ([Path("0e", 3, "3o")], 2, "edge degree up to 2"),
        ([Path("1o", 1, "0e")], 3, "irrep 1o"),
        ([Path("0e", 0, "0e"), Path("0e", 1, "1o"), Path("0e", 0, "0e")], 3, "stand together"),
        ([Path("0e", 2, "2e")], 3, "got none"),
    ],
)
def test_plan_refuses(paths, l_max, message):
    w3j = {("0e", 0, "0e"): wigner_3j(0, 0, 0), ("0e", 1, "1o"): wigner_3j(0, 1, 1)}
    with pytest.raises(ValueError, match=message):
        ConvPlan.build("4x0e", l_max, paths, w3j)
