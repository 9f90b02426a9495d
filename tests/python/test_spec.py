import dataclasses
import json

import pytest
from convert_support import SHIPPED
from hypothesis import given
from hypothesis import strategies as st

from mace_stream import io
from mace_stream.spec import LayerSpec, ModelSpec, Path, RadialSpec, ReadoutSpec
from mace_stream.tensors import check_tensors, irreps_blocks, tensor_rules

names = st.text(min_size=1, max_size=8)
counts = st.integers(0, 10**6)
numbers = st.floats(allow_nan=False, allow_infinity=False)
layers = st.builds(
    LayerSpec,
    block=st.sampled_from(["R", "RR", "D", "DR"]),
    irreps_in=names,
    irreps_up=names,
    irreps_message=names,
    irreps_out=names,
    paths=st.lists(st.builds(Path, names, counts, names), max_size=3).map(tuple),
    radial_widths=st.lists(counts, max_size=4).map(tuple),
    radial_activation=names,
    radial_activation_scale=numbers,
    correlation=counts,
    use_sc=st.booleans(),
)
specs = st.builds(
    ModelSpec,
    architecture=names,
    dtype=st.sampled_from(["float32", "float64"]),
    elements=st.lists(counts, max_size=4).map(tuple),
    r_max=numbers,
    heads=st.lists(names, max_size=3).map(tuple),
    n_heads_source=counts,
    l_max=counts,
    radial=st.builds(RadialSpec, names, counts, names),
    pair_repulsion=st.sampled_from(["none", "zbl"]),
    layers=st.lists(layers, max_size=2).map(tuple),
    readouts=st.lists(
        st.builds(ReadoutSpec, names, counts, counts, names, numbers), max_size=2
    ).map(tuple),
    provenance=st.dictionaries(names, names, max_size=3),
)


@given(specs)
def test_json_gives_back_the_same_specification(spec):
    assert ModelSpec.from_json(spec.to_json()) == spec


def shipped_spec():
    return io.load(SHIPPED)[0]


def test_another_format_version_is_refused_by_number():
    data = json.loads(shipped_spec().to_json()) | {"format_version": 99}
    with pytest.raises(ValueError, match=r"expected 1, got 99.*convert the model again"):
        ModelSpec.from_json(json.dumps(data))


@pytest.mark.parametrize("part", ["model", "layer"])
@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_a_missing_or_unknown_field_is_named(part, change):
    data = json.loads(shipped_spec().to_json())
    target = data if part == "model" else data["layers"][1]
    name = "r_max" if part == "model" else "use_sc"
    if change == "missing":
        del target[name]
    else:
        name, target["surprise"] = "surprise", 1
    with pytest.raises(ValueError, match=f"missing or unknown fields.*{name}"):
        ModelSpec.from_json(json.dumps(data))


def test_irreps_are_read_in_order():
    assert list(irreps_blocks("8x0e+4x1o").items()) == [("0e", 8), ("1o", 4)]


@pytest.mark.parametrize("text", ["", "8x", "x0e", "8x0", "8x0z", "8x0e+8x0e", "-1x0e"])
def test_odd_irreps_are_refused(text):
    with pytest.raises(ValueError, match="irreps: expected the form"):
        irreps_blocks(text)


def test_rules_name_exactly_the_tensors_of_the_shipped_model():
    spec, tensors = io.load(SHIPPED)
    assert sorted(tensor_rules(spec)) == sorted(tensors)


@pytest.mark.parametrize("index", [-1, 16, 300])
def test_a_coupling_index_outside_its_tensor_is_refused(index):
    spec, tensors = io.load(SHIPPED)
    indices = tensors["layers.0.product.1o.U.3.indices"].copy()
    indices[5, 2] = index
    with pytest.raises(ValueError, match=r"layers.0.product.1o.U.3.indices: expected 0 to below"):
        check_tensors(spec, tensors | {"layers.0.product.1o.U.3.indices": indices})


def test_rules_follow_the_specification():
    spec = shipped_spec()
    wider = dataclasses.replace(spec.layers[0], radial_widths=(8, 32, 128))
    rules = tensor_rules(dataclasses.replace(spec, layers=(wider, spec.layers[1])))
    assert rules["layers.0.radial.0"].shape == (8, 32)
    assert "layers.0.radial.2" not in rules
