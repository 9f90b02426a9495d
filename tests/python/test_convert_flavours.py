"""Files as other programs, other machines and other versions of mace-torch write them."""

import io as bytes_io
import pickle
import sys
import types
import zipfile

import pytest
import torch
from convert_support import DATA, TRAINED, assert_same_tensors, twin, write

from mace_stream import io
from mace_stream.convert import ConversionError, convert
from mace_stream.convert.model import read_model
from mace_stream.convert.source import load_source

pytest.importorskip("mace", reason="needs mace-torch: pip install 'mace-stream[test]'")


def tensors_of(source, tmp_path):
    convert(source, tmp_path / "out.mace")
    return io.load(tmp_path / "out.mace")[1]


def expected_of(model, tmp_path):
    return tensors_of(write(model, tmp_path / "plain.model"), tmp_path)


# Other flavours, made by the programs that write them.


def torchscript(model, path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)


def mliap(model, path):
    from mace.calculators.lammps_mliap_mace import LAMMPS_MLIAP_MACE

    export = LAMMPS_MLIAP_MACE.__new__(LAMMPS_MLIAP_MACE)
    export.model = model
    torch.save(export, path)


def state_dict(model, path):
    torch.save(model.state_dict(), path)


def checkpoint(model, path):
    optimizer = torch.optim.Adam(model.parameters())
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(state, path)


def averaged(model, path):
    torch.save({"ema": {"decay": 0.99, "shadow_params": list(model.parameters())}}, path)


def model_in_a_dict(model, path):
    torch.save({"model": model}, path)


def other_network(model, path):
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2)), path)


def cut_short(model, path):
    buffer = bytes_io.BytesIO()
    torch.save(model, buffer)
    path.write_bytes(buffer.getvalue()[:50_000])


def jax_parameters(model, path):
    """As flax writes a tree: a map of names to maps, arrays as extension 1."""
    shape, numbers = b"\x91\x02", b"\xc4\x10" + bytes(16)
    array = b"\x93" + shape + b"\xa7float64" + numbers
    leaf = b"\xc7" + bytes([len(array), 1]) + array
    path.write_bytes(b"\x81\xaenode_embedding\x81\xa6weight" + leaf)


def jax_bundle(model, path):
    path.mkdir()
    (path / "config.json").write_text("{}")
    jax_parameters(model, path / "params.msgpack")


def jax_checkpoint(model, path):
    jnp = pytest.importorskip("jax", reason="needs JAX: pip install 'mace-stream[jax]'").numpy
    path.write_bytes(pickle.dumps({"epoch": 3, "eval_params": {"weight": jnp.zeros(2)}}))


REFUSED = {
    jax_parameters: "found parameters of mace-jax.*Convert the mace-torch model that mace-jax read",
    jax_bundle: "found parameters of mace-jax.*Convert the mace-torch model that mace-jax read",
    jax_checkpoint: "found a checkpoint of mace-jax.*see docs/training.md",
    torchscript: "found a TorchScript export.*mace-stream convert FILE.model",
    mliap: "found an ML-IAP export.*mace-stream convert FILE.model",
    state_dict: r"found a checkpoint or state dictionary.*\*.model file",
    checkpoint: r"found a checkpoint or state dictionary.*\*.model file",
    averaged: r"found a checkpoint or state dictionary.*\*.model file",
    model_in_a_dict: "found a dict that contains one. Take the model out of it",
    other_network: "found a pickle of torch.nn.modules.container.Sequential",
    cut_short: "found a damaged or incomplete zip archive",
}


@pytest.mark.parametrize("flavour", REFUSED, ids=lambda f: f.__name__)
def test_another_flavour_is_refused_with_what_to_do(flavour, tmp_path):
    flavour(twin("MP-0a small"), tmp_path / "file.model")
    with pytest.raises(ConversionError, match=REFUSED[flavour]):
        convert(tmp_path / "file.model", tmp_path / "out.mace")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConversionError, match=r"nowhere.model: cannot be read \(No such file"):
        convert(tmp_path / "nowhere.model", tmp_path / "out.mace")


def test_a_damaged_pickle_says_so(tmp_path):
    source = write(twin("MP-0a small"), tmp_path / "twin.model")
    rewrite(source, tmp_path / "bad.model", lambda name, data: data[: len(data) // 2])
    with pytest.raises(ConversionError, match=r"mace-torch cannot open this model.*damaged"):
        convert(tmp_path / "bad.model", tmp_path / "out.mace")


class Thing:
    """An object of a package that will not be there."""


def test_a_class_of_a_package_that_is_not_there_is_named(tmp_path, monkeypatch):
    module = types.ModuleType("fancy_kernels")
    module.Thing = Thing
    monkeypatch.setitem(sys.modules, "fancy_kernels", module)
    monkeypatch.setattr(Thing, "__module__", "fancy_kernels")
    odd = twin("MP-0a small")
    odd.thing = Thing()
    source = write(odd, tmp_path / "odd.model")
    monkeypatch.delitem(sys.modules, "fancy_kernels")
    with pytest.raises(ConversionError, match=r"the model needs fancy_kernels.Thing.*install"):
        convert(source, tmp_path / "out.mace")


# Torch's own older format.


def test_a_file_in_torchs_old_format_converts(tmp_path):
    model = twin("MP-0b2 medium")
    torch.save(model, tmp_path / "old.model", _use_new_zipfile_serialization=False)
    actual = tensors_of(tmp_path / "old.model", tmp_path)
    assert_same_tensors(actual, expected_of(model, tmp_path))


def test_a_checkpoint_in_torchs_old_format_is_recognised(tmp_path):
    torch.save(
        {"model": twin("MP-0a small").state_dict()},
        tmp_path / "old.pt",
        _use_new_zipfile_serialization=False,
    )
    with pytest.raises(ConversionError, match="found a checkpoint or state dictionary"):
        convert(tmp_path / "old.pt", tmp_path / "out.mace")


# Files saved on a GPU: every tensor, also those inside e3nn's compiled code, says "cuda:0".


def rewrite(source, target, change):
    """Copy a torch zip file with its pickles changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            new.writestr(item.filename, change(item.filename, data) if is_pickle(item) else data)


def is_pickle(item):
    return item.filename.endswith(".pkl")


def on_cuda(name, data):
    """A pickle whose storages lie on the first GPU."""
    return data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")


def script_on_cuda(script):
    """The bytes of a TorchScript archive, its storages on the first GPU."""
    target = bytes_io.BytesIO()
    rewrite(bytes_io.BytesIO(script), target, on_cuda)
    return target.getvalue()


@pytest.fixture
def saved_on_gpu(tmp_path, monkeypatch):
    from e3nn.util.codegen import CodeGenMixin

    model, honest = twin("MP-0a medium"), CodeGenMixin.__getstate__

    def with_scripts_on_cuda(self):
        state = honest(self)
        if "__codegen__" in state:
            scripts = state["__codegen__"].items()
            state["__codegen__"] = {name: script_on_cuda(data) for name, data in scripts}
        return state

    monkeypatch.setattr(CodeGenMixin, "__getstate__", with_scripts_on_cuda)
    write(model, tmp_path / "scripts.model")
    monkeypatch.undo()
    rewrite(tmp_path / "scripts.model", tmp_path / "gpu.model", on_cuda)
    return tmp_path / "gpu.model"


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows something only without a GPU")
def test_the_gpu_file_cannot_be_opened_the_plain_way(saved_on_gpu):
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(saved_on_gpu, map_location="cpu", weights_only=False)


def test_a_file_saved_on_a_gpu_converts_without_one(saved_on_gpu, tmp_path):
    actual = tensors_of(saved_on_gpu, tmp_path)
    assert_same_tensors(actual, expected_of(twin("MP-0a medium"), tmp_path))


# Older mace-torch: attributes that did not exist yet.


def made_older(model):
    """The model without what newer versions of mace-torch added."""
    newer = {
        "heads", "lammps_mliap", "apply_cutoff", "edge_irreps", "use_reduced_cg",
        "use_agnostic_product", "use_so3", "use_last_readout_only", "use_edge_irreps_first",
        "cueq_config", "oeq_config", "num_heads",
    }  # fmt: skip
    for module in model.modules():
        for name in newer & set(vars(module)):
            del vars(module)[name]
        for name in ("weights_max_zeroed", "weights_0_zeroed"):
            if name in module._buffers:
                del module._buffers[name]
    energies = model.atomic_energies_fn
    energies.atomic_energies = energies.atomic_energies.squeeze()
    for name in ("scale", "shift"):
        model.scale_shift._buffers[name] = getattr(model.scale_shift, name).squeeze()
    cutoff = model.radial_embedding.cutoff_fn
    cutoff.p = cutoff.p.to(torch.get_default_dtype())
    return model


@pytest.mark.parametrize("elements", [(14, 6), (22,)])
def test_a_file_of_an_older_mace_torch_converts_to_the_same(elements, tmp_path):
    model = twin("MP-0a medium", elements=elements)
    expected = expected_of(model, tmp_path)
    older = made_older(model)
    assert older.atomic_energies_fn.atomic_energies.ndim == len(elements) - 1
    assert_same_tensors(tensors_of(write(older, tmp_path / "older.model"), tmp_path), expected)
    assert io.load(tmp_path / "out.mace")[0].heads == ("Default",)


@pytest.mark.skipif(not TRAINED, reason="needs the folder shared/models beside the repository")
def test_one_trained_model_is_really_old():
    model = load_source(next(path for path in TRAINED if path.stem == "model_swa"))
    assert not hasattr(model, "heads")


# Acceleration libraries.


class TensorProductConv(torch.nn.Module):
    """Saves itself as openequivariance.TensorProductConv does: its arguments only."""

    def __init__(self):
        super().__init__()
        self.input_args = {"problem": "irreps", "deterministic": False}

    def __getstate__(self):
        return self.input_args

    def __setstate__(self, state):
        raise ImportError("needs a GPU")


class SegmentedPolynomial(torch.nn.Module):
    """Has its forward replaced, as mace-torch does to fuse the sum over edges on a GPU."""

    def __init__(self):
        super().__init__()
        self.original_forward = self.forward
        self.weight_numel = 7

        def forward(self, *args):
            return self.original_forward(*args)

        self.forward = types.MethodType(forward, self)

    def forward(self, *args):
        raise RuntimeError("needs a GPU")


@pytest.fixture
def package(monkeypatch):
    """Pretend that the class belongs to a package; ``leave()`` uninstalls it."""

    def enter(cls, name):
        module = types.ModuleType(name)
        setattr(module, cls.__name__, cls)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(cls, "__module__", name)
        return lambda: monkeypatch.delitem(sys.modules, name)

    return enter


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (TensorProductConv, "openequivariance"),
        (SegmentedPolynomial, "cuequivariance_torch"),
    ],
)
@pytest.mark.parametrize("architecture", ["MP-0b2 medium", "MH-1"])
def test_a_model_with_an_accelerated_convolution_converts_without_it(
    architecture, cls, name, tmp_path, package
):
    from mace.modules.wrapper_ops import OEQConfig

    leave = package(cls, name)
    model = twin(architecture)
    expected = expected_of(model, tmp_path)
    for block in model.interactions:
        block.conv_tp = cls()
        block.oeq_config = OEQConfig(optimize_channelwise=True)
        block.oeq_config.enabled = True
        block.conv_fusion = "atomic"
    source = write(model, tmp_path / "accelerated.model")
    leave()
    assert_same_tensors(tensors_of(source, tmp_path), expected)


class Linear(torch.nn.Module):
    """Holds weights only, as cuequivariance_torch.Linear does."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight.detach().clone())


def test_a_gated_block_with_accelerated_layers_converts_without_them(tmp_path, package):
    leave = package(Linear, "cuequivariance_torch")
    model = twin("MH-1")
    expected = expected_of(model, tmp_path)
    for block in model.interactions:
        for name, layer in list(block.named_children()):
            if name.startswith("linear") or name.endswith(("embedding", "skip_tp")):
                setattr(block, name, Linear(layer.weight))
        block.equivariant_nonlin._layout_is_ir_mul = True
    source = write(model, tmp_path / "accelerated.model")
    leave()
    assert_same_tensors(tensors_of(source, tmp_path), expected)


def test_a_gated_block_with_the_gate_of_e3nn_converts_to_the_same(tmp_path):
    from e3nn.nn import Gate

    model = twin("MH-1", heads=("a",))
    expected = expected_of(model, tmp_path)
    before = io.load(tmp_path / "out.mace")[0]
    silu, sigmoid = torch.nn.functional.silu, torch.nn.functional.sigmoid
    for block in model.interactions:
        old = block.equivariant_nonlin
        gates = (old.irreps_gates, [sigmoid] * len(old.irreps_gates))
        block.equivariant_nonlin = Gate(old.irreps_scalars, [silu], *gates, old.irreps_gated)
    actual = tensors_of(write(model, tmp_path / "older.model"), tmp_path)
    assert_same_tensors(actual, expected)
    after = io.load(tmp_path / "out.mace")[0]
    for old, new in zip(before.layers, after.layers, strict=True):
        for name in ("activation_scale", "gate_activation_scale"):
            assert getattr(new.gate, name) == pytest.approx(getattr(old.gate, name), rel=1e-6)


def test_accelerated_weights_of_another_size_are_refused(tmp_path, monkeypatch):
    def short(self, state):
        weight = state.get("_parameters", {}).get("weight")
        if weight is not None:
            state["_parameters"]["weight"] = torch.nn.Parameter(weight[..., :-1])
        self.__dict__.update(state)

    monkeypatch.setattr("mace_stream.convert.accelerated.StandIn.__setstate__", short)
    with pytest.raises(ConversionError, match=r"accelerated module linear .*weights, got.*cueq"):
        convert(DATA / "cueq.model", tmp_path / "out.mace")


def test_an_accelerated_reduced_basis_is_refused(tmp_path, monkeypatch):
    import mace.modules.models as models

    monkeypatch.setattr(models.MACE, "__setstate__", reduced, raising=False)
    with pytest.raises(ConversionError, match=r"contraction in the reduced basis.*cueq_e3nn"):
        convert(DATA / "cueq.model", tmp_path / "out.mace")


def reduced(self, state):
    self.__dict__.update(state, use_reduced_cg=True)


def test_an_accelerated_module_in_an_odd_place_is_refused(tmp_path, package):
    package(TensorProductConv, "openequivariance")
    model = twin("MP-0a small")
    model.extra = TensorProductConv()
    source = write(model, tmp_path / "odd.model")
    with pytest.raises(ConversionError, match=r"accelerated modules .*\['extra'\]"):
        convert(source, tmp_path / "out.mace")


def test_an_accelerated_block_that_was_not_replaced_is_refused():
    from mace.modules.wrapper_ops import CuEquivarianceConfig

    model = twin("MP-0a small")
    model.products[0].cueq_config = CuEquivarianceConfig(enabled=True)
    model.products[0].cueq_config.enabled = True
    with pytest.raises(ConversionError, match=r"products.0.cueq_config is enabled"):
        read_model(model)


def test_pickled_classes_are_read_without_import():
    from mace_stream.flavour import pickled_classes

    for protocol in (0, 2, 4):
        names = pickled_classes(pickle.dumps(ConversionError("x"), protocol=protocol))
        assert "mace_stream.convert.ledger.ConversionError" in names
