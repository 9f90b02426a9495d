"""What is not understood is refused by name, and planted mistakes of the converter are caught."""

import os
import sys
import types

import numpy as np
import pytest
import torch
from convert_support import SHIPPED, twin, write

from mace_stream import io
from mace_stream.convert import ConversionError, convert, core, layers, model, selftest
from mace_stream.convert.ledger import Ledger
from mace_stream.convert.model import read_model
from mace_stream.testing.twins import tiny

pytest.importorskip("mace", reason="needs mace-torch: pip install 'mace-stream[test]'")


def read(name="MP-0a small", **override):
    return read_model(twin(name, **override))


UNSUPPORTED = {
    "SO(3) irreps": ({"use_so3": True}, ["attribute model.use_so3 = True"]),
    "odd scalars": ({"hidden": "4x0e+4x0o+4x1o"}, ["parities of spherical harmonics"]),
    "abs readout": ({"gate": "abs"}, ["abs: expected silu or tanh"]),
    "readout without activation": ({"gate": "None"}, ["readouts.1.non_linearity"]),
}


@pytest.mark.parametrize("part", UNSUPPORTED)
def test_an_unsupported_architecture_is_refused_by_name(part):
    override, patterns = UNSUPPORTED[part]
    with pytest.raises(ConversionError) as caught:
        read(**override)
    for pattern in patterns:
        caught.match(pattern)
    caught.match("Nothing was written")


def add_long_range(m):
    m.les = torch.nn.Module()


def add_input(m, name, **told):
    from mace.modules.embeddings import GenericJointEmbedding

    specs = {name: {"type": "categorical", "num_classes": 3, "emb_dim": 4, **told}}
    m.embedding_specs = specs
    m.joint_embedding = GenericJointEmbedding(base_dim=4, embedding_specs=specs, out_dim=4)


def add_moments(m):
    add_input(m, "magmoms", per="node")


def add_charge_per_atom(m):
    add_input(m, "total_charge", per="node")


def add_layer_norm(m):
    m.interactions[0].conv_tp_weights = torch.nn.Sequential(torch.nn.LayerNorm(4))


def add_lora(m):
    from mace.modules.lora import inject_LoRAs

    inject_LoRAs(m, rank=1)


def add_bias(m):
    m.interactions[0].linear.bias = torch.nn.Parameter(torch.ones(4))


def patch_forward(m):
    readout = m.readouts[0]
    readout.forward = types.MethodType(lambda self, x, heads=None: 2 * self.linear(x), readout)


def half_zbl(m):
    from mace.modules.radial import ZBLBasis

    m.pair_repulsion_fn = ZBLBasis(p=5)


def wrong_scale(m):
    m.scale_shift.scale = torch.ones(3)


def bigger_energies(m):
    m.atomic_energies_fn.atomic_energies = torch.zeros(3, 2)


def broken(m):
    m.interactions[1].linear.weight.data[7] = float("nan")


def other_norm(m):
    linear = m.products[0].linear
    linear.instructions = [ins._replace(path_weight=1.0) for ins in linear.instructions]


def fractional_cutoff(m):
    m.radial_embedding.cutoff_fn.p = torch.tensor(5.5)


def short_cutoff(m):
    m.radial_embedding.cutoff_fn.r_max *= 0.9


def half_precision(m):
    m.half()


def lost_module(m):
    del m.interactions[0].skip_tp


def latent_charges(m):
    m.__class__ = type("MACELES", (type(m),), {"__module__": "mace.modules.extensions"})


def own_subclass(m):
    m.__class__ = type("MyMACE", (type(m),), {})


CHANGES = {
    add_long_range: r"classes that are not supported: torch.nn.modules.module.Module \(1x\)",
    add_moments: "input magmoms per node: only total_charge and total_spin of the whole system",
    add_charge_per_atom: "input total_charge per node: only total_charge and total_spin of the",
    add_layer_norm: "interactions.0.conv_tp_weights .*expected e3nn.nn._fc.FullyConnectedNet, got",
    add_lora: r"LoRAO3Linear \(\d+x, merge the LoRA weights",
    add_bias: r"parameter interactions.0.linear.bias",
    patch_forward: "attribute readouts.0.forward",
    half_zbl: r"pair_repulsion_fn .*the model does not say that it is used",
    wrong_scale: r"scale_shift .*scale: expected 1 numbers, one per head, got 3",
    bigger_energies: r"atomic_energies_fn .*energies for 1 heads, 2 elements",
    broken: "interactions.1.linear .*weight has numbers that are not finite",
    other_norm: r"products.0.linear .*normalisation: expected 0.5, got \[1.0\]",
    fractional_cutoff: "cutoff exponent p: expected a whole number, got 5.5",
    short_cutoff: r"r_max is 6.0 Å, but the cutoff function ends at 5.4",
    half_precision: r"dtype: expected float32 or float64, got \['torch.float16'\]",
    lost_module: r"interactions.0 .*has no module skip_tp",
    latent_charges: r"extensions.MACELES \(1x, long-range term: cannot be evaluated from edges",
    own_subclass: r"test_convert_refusals.MyMACE \(1x\)",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_is_refused_by_name(change):
    spoiled = twin("MP-0a small")
    change(spoiled)
    with pytest.raises(ConversionError, match=CHANGES[change]):
        read_model(spoiled)


@pytest.mark.parametrize(
    "register",
    ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"],
)
def test_a_hooked_module_is_refused(register):
    hooked = twin("MP-0a small")
    getattr(hooked.products[1], register)(lambda *args: None)
    with pytest.raises(ConversionError, match=r"hook products.1._\w+_hooks"):
        read_model(hooked)


@pytest.mark.parametrize("where", ["", "interactions.0", "interactions.1.conv_tp", "readouts.1"])
@pytest.mark.parametrize("what", ["attribute", "buffer", "parameter"])
def test_anything_unknown_anywhere_is_refused(where, what):
    odd = twin("MP-0a small")
    module = odd.get_submodule(where)
    if what == "attribute":
        module.mystery = 1
    elif what == "buffer":
        module.register_buffer("mystery", torch.ones(1))
    else:
        module.register_parameter("mystery", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(ConversionError, match=rf"{what} {where or 'model'}.mystery"):
        read_model(odd)


def test_all_leftovers_are_listed_at_once():
    odd = twin("MP-0a small")
    odd.use_so3 = True
    odd.first, odd.interactions[0].second = 1, 2
    with pytest.raises(ConversionError) as caught:
        read_model(odd)
    for text in ("model.use_so3", "model.first", "interactions.0.second"):
        assert text in str(caught.value)


def test_a_number_too_large_for_float32_is_refused_by_name(tmp_path):
    large = twin("MP-0a small")
    large.interactions[0].linear.weight.data[0] = 1e60
    source = write(large, tmp_path / "large.model")
    with pytest.raises(ConversionError, match=r"layers.0.linear.0e: 1e\+60 does not fit.*float32"):
        convert(source, tmp_path / "large.mace", dtype="float32")
    assert os.listdir(tmp_path) == ["large.model"]


def test_an_unknown_dtype_is_refused(tmp_path):
    with pytest.raises(ConversionError, match="dtype: expected float32 or float64, got float16"):
        convert("any.model", tmp_path / "x.mace", dtype="float16")


def test_source_and_target_must_differ(tmp_path):
    source = write(twin("MP-0a small"), tmp_path / "twin.model")
    before = io.sha256(source)
    with pytest.raises(ConversionError, match="source and target are the same file"):
        convert(source, tmp_path / "." / "twin.model")
    assert io.sha256(source) == before


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ConversionError, match=r"there is no directory \S*nowhere. Create it"):
        convert("any.model", tmp_path / "nowhere" / "x.mace")


def test_a_mace_file_needs_no_conversion(tmp_path):
    with pytest.raises(ConversionError, match=r"is a \.mace file already"):
        convert(SHIPPED, tmp_path / "x.mace")


def test_missing_mace_torch_names_the_extra(tmp_path, monkeypatch):
    source = write(twin("MP-0a small"), tmp_path / "twin.model")
    for name in [name for name in sys.modules if name.split(".")[0] == "mace"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mace", None)
    with pytest.raises(ConversionError, match=r"pip install 'mace-stream\[convert\]'"):
        convert(source, tmp_path / "x.mace")


# Planted mistakes: first the leftover check must see them, then, without it, the self-test.


def drop_zbl(monkeypatch):
    monkeypatch.setattr(model, "_read_pair_repulsion", lambda root: ("none", {}))
    return {"name": "MP-0b small"}, "pair_repulsion_fn"


def forget_a_readout(monkeypatch):
    def last_only(root, n_layers, n_heads):
        node = root.children("readouts")[-1]
        readout, tensors = layers.read_readout(node, n_layers - 1, n_heads)
        return (readout,), {f"readouts.0.{name}": array for name, array in tensors.items()}

    monkeypatch.setattr(model, "_read_readouts", last_only)
    return {"name": "MP-0a small"}, r"module readouts.0.linear \(e3nn"


def drop_the_transform(monkeypatch):
    has = model.Node.has
    monkeypatch.setattr(
        model.Node, "has", lambda self, name: name != "distance_transform" and has(self, name)
    )
    return {"name": "MP-0b small"}, r"module radial_embedding.distance_transform \(.*AgnesiTra"


def drop_scale_and_shift(monkeypatch):
    has = model.Node.has
    monkeypatch.setattr(
        model.Node, "has", lambda self, name: name != "scale_shift" and has(self, name)
    )
    return {"name": "MP-0a small"}, r"module scale_shift \(mace.modules.blocks.ScaleShiftBlock\)"


def drop_the_inputs(monkeypatch):
    monkeypatch.setattr(model, "read_inputs", lambda root, n_heads: ((), False, {}))
    return {"name": "OMOL-0"}, r"module joint_embedding \(.*GenericJointEmbedding"


def drop_the_embedding_readout(monkeypatch):
    honest = model.read_inputs

    def forgetful(root, n_heads):
        inputs, _, tensors = honest(root, n_heads)
        return inputs, False, {k: v for k, v in tensors.items() if k != "embedding.readout"}

    monkeypatch.setattr(model, "read_inputs", forgetful)
    return {"name": "OMOL-0", "embedding_readout": True}, None


DROPPED = [drop_zbl, forget_a_readout, drop_the_transform, drop_scale_and_shift]


@pytest.mark.parametrize("mistake", [*DROPPED, drop_the_inputs], ids=lambda f: f.__name__)
def test_a_converter_that_drops_a_part_is_caught_by_the_leftover_check(mistake, monkeypatch):
    override, pattern = mistake(monkeypatch)
    with pytest.raises(ConversionError, match=pattern):
        read(**override)


@pytest.mark.parametrize(
    "mistake", [*DROPPED, drop_the_embedding_readout], ids=lambda f: f.__name__
)
def test_a_converter_that_drops_a_part_is_caught_by_the_self_test(mistake, tmp_path, monkeypatch):
    override, _ = mistake(monkeypatch)
    monkeypatch.setattr(Ledger, "check_nothing_left", lambda self: None)
    source = write(twin(**override), tmp_path / "twin.model")
    with pytest.raises(ConversionError, match="self-test failed"):
        convert(source, tmp_path / "twin.mace")
    assert os.listdir(tmp_path) == ["twin.model"]


def swap_heads(monkeypatch):
    keep = core.keep_head

    def other(spec, tensors, head):
        kept, numbers = keep(spec, tensors, "b" if head == "a" else "a")
        return core.dataclasses.replace(kept, heads=(head,)), numbers

    monkeypatch.setattr(core, "keep_head", other)


def scale(tensors, name, factor):
    return tensors | {name: (tensors[name] * factor).astype(tensors[name].dtype)}


def spoil_tensors(change):
    def plant(monkeypatch):
        honest = core.read_model

        def spoiled(source):
            spec, tensors = honest(source)
            return spec, change(tensors)

        monkeypatch.setattr(core, "read_model", spoiled)

    return plant


def transpose(tensors, name):
    return tensors | {name: np.ascontiguousarray(tensors[name].T)}


MISTAKES = {
    "swapped heads": swap_heads,
    "recomputed Bessel frequencies": spoil_tensors(
        lambda t: scale(t, "radial.bessel.frequencies", 1 + 1e-7)
    ),
    "couplings with the other sign": spoil_tensors(lambda t: scale(t, "layers.1.w3j.1o.2.1o", -1)),
    "energy per atom of float32": spoil_tensors(
        lambda t: t | {"atomic_energies": t["atomic_energies"].astype("f4").astype("f8")}
    ),
    "transposed linear": spoil_tensors(lambda t: transpose(t, "layers.1.linear_up.1o")),
    "unread number of neighbors": spoil_tensors(lambda t: scale(t, "layers.0.skip.0e", 1.001)),
    "weights of another order": spoil_tensors(
        lambda t: t | {"layers.0.product.0e.weight.2": t["layers.0.product.0e.weight.2"][:, ::-1]}
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_converter_that_mixes_numbers_up_is_caught_by_the_self_test(
    mistake, tmp_path, monkeypatch
):
    MISTAKES[mistake](monkeypatch)
    source = write(twin("MP-0b2 medium", heads=("a", "b")), tmp_path / "twin.model")
    (tmp_path / "twin.mace").write_text("old")
    with pytest.raises(ConversionError, match=r"self-test failed: with head a.*allowed 1e-08"):
        convert(source, tmp_path / "twin.mace", head="a")
    assert sorted(os.listdir(tmp_path)) == ["twin.mace", "twin.model"]
    assert (tmp_path / "twin.mace").read_text() == "old"


def test_a_self_test_that_gives_nan_fails(tmp_path, monkeypatch):
    source = write(twin("MP-0a small"), tmp_path / "twin.model")
    monkeypatch.setattr(
        selftest, "file_energies", lambda path, atoms, head, inputs: np.full(len(atoms), np.nan)
    )
    with pytest.raises(ConversionError, match="self-test failed"):
        convert(source, tmp_path / "twin.mace")


def test_tiny_twins_keep_the_blocks_of_the_model_they_stand_for():
    blocks = [type(block).__name__ for block in tiny("MP-0b2 medium").interactions]
    assert blocks == [
        "RealAgnosticDensityInteractionBlock",
        "RealAgnosticDensityResidualInteractionBlock",
    ]
