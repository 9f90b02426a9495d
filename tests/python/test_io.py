import json
import os
import pickle
import re
import stat
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from convert_support import SHIPPED, assert_same_tensors

from mace_stream import io
from mace_stream.io import ModelFileError


def test_saving_gives_back_every_tensor(tmp_path):
    spec, tensors = io.load(SHIPPED)
    io.save(tmp_path / "copy.mace", spec, tensors)
    again, same = io.load(tmp_path / "copy.mace")
    assert again == spec
    assert_same_tensors(same, tensors)


def test_a_transposed_view_is_saved_as_it_reads(tmp_path):
    spec, tensors = io.load(SHIPPED)
    name = "layers.1.radial.1"
    view = np.asfortranarray(tensors[name])
    assert not view.flags.c_contiguous
    io.save(tmp_path / "copy.mace", spec, tensors | {name: view})
    assert_same_tensors(io.load(tmp_path / "copy.mace")[1], tensors)


def test_saving_twice_gives_the_same_bytes(tmp_path):
    spec, tensors = io.load(SHIPPED)
    for name in ("a", "b"):
        io.save(tmp_path / name, spec, dict(sorted(tensors.items(), reverse=name == "b")))
    assert io.sha256(tmp_path / "a") == io.sha256(tmp_path / "b")


def test_the_file_has_the_permissions_of_any_new_file(tmp_path):
    spec, tensors = io.load(SHIPPED)
    io.save(tmp_path / "copy.mace", spec, tensors)
    (tmp_path / "plain").touch()
    mode = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("copy.mace", "plain")]
    assert mode[0] == mode[1]


def test_a_refused_model_leaves_the_old_file_and_no_rest(tmp_path):
    spec, _ = io.load(SHIPPED)
    path = tmp_path / "old.mace"
    path.write_text("old")
    with pytest.raises(ValueError, match="missing tensors"):
        io.save(path, spec, {})
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["old.mace"]


def test_sha256_is_that_of_the_content(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert io.sha256(tmp_path / "abc").startswith("ba7816bf8f01cfea414140de5dae2223b00361a39617")


def spoil(name, change):
    spec, tensors = io.load(SHIPPED)
    array = tensors.pop(name)
    changed = change(array)
    return spec, tensors if changed is None else tensors | changed


NAME = "layers.0.linear.1o"
FAULTS = {
    "missing": (lambda a: None, rf"missing tensors \['{NAME}'\]"),
    "extra": (lambda a: {NAME: a, "zbl.c": a}, r"unknown tensors \['zbl.c'\]"),
    "misshapen": (lambda a: {NAME: a[:-1]}, rf"{NAME}: expected shape \(32, 32\), got \(31, 32\)"),
    "flat": (lambda a: {NAME: a.reshape(-1)}, rf"{NAME}: expected shape"),
    "dtype": (lambda a: {NAME: a.astype("f4")}, f"{NAME}: expected dtype float64, got float32"),
    "nan": (lambda a: {NAME: a * np.nan}, f"{NAME}: expected finite numbers"),
    "infinite": (lambda a: {NAME: a + np.inf}, f"{NAME}: expected finite numbers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_with_a_wrong_tensor_is_refused_by_name(fault, tmp_path):
    change, message = FAULTS[fault]
    spec, tensors = spoil(NAME, change)
    path = tmp_path / "bad.mace"
    tensors = {name: np.asarray(a, order="C") for name, a in tensors.items()}
    safetensors.numpy.save_file(tensors, path, {"mace_stream": spec.to_json()})
    with pytest.raises(ModelFileError, match=message) as caught:
        io.load(path)
    assert "mace-stream convert FILE.model -o FILE.mace" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "not JSON", '{"format_version": 1}', '{"format_version": 2}']
)
def test_a_file_with_wrong_metadata_is_refused(text, tmp_path):
    path = tmp_path / "bad.mace"
    safetensors.numpy.save_file({"a": np.zeros(1)}, path, {"mace_stream": text})
    with pytest.raises(ModelFileError, match=r"not a valid \.mace file"):
        io.load(path)


@pytest.mark.parametrize("kept", [1, 7, 9, 100, 20_000, -1])
def test_a_truncated_file_is_refused(kept, tmp_path):
    path = tmp_path / "cut.mace"
    path.write_bytes(SHIPPED.read_bytes()[:kept])
    with pytest.raises(ModelFileError, match=r"damaged|incomplete|unknown|text"):
        io.load(path)


def test_a_missing_file_is_named_with_the_directory(tmp_path):
    with pytest.raises(ModelFileError, match=r"nowhere.mace: no such file.*relative paths start"):
        io.load("nowhere.mace")


def zipped(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"archive/{name.replace('__', '/').replace('_pkl', '.pkl')}", data)


def pickle_naming(*names):
    """A pickle that imports these names; loading it would fail loudly."""
    body = b"".join(f"c{module}\n{name}\n".encode() for module, name in names)
    return b"\x80\x02" + body + b"."


MODEL = ("mace.modules.models", "ScaleShiftMACE")
FLAVOURS = {
    "mace_torch": (
        lambda p: zipped(p, data_pkl=pickle_naming(MODEL)),
        r"a mace-torch model \(pickle of mace.modules.models.ScaleShiftMACE\).*"
        r"mace-stream convert \S*file.model -o file.mace",
    ),
    "torchscript": (
        lambda p: zipped(p, data_pkl=b"", code____torch___py=b"", constants_pkl=b""),
        "a TorchScript export.*mace-stream convert FILE.model -o file.mace",
    ),
    "mliap": (
        lambda p: zipped(
            p,
            data_pkl=pickle_naming(
                ("mace.calculators.lammps_mliap_mace", "LAMMPS_MLIAP_MACE"), MODEL
            ),
        ),
        r"an ML-IAP export.*mace-stream convert FILE.model",
    ),
    "state_dict": (
        lambda p: zipped(p, data_pkl=pickle_naming(("collections", "OrderedDict"))),
        r"a checkpoint or state dictionary.*\*.model file",
    ),
    "other_pickle": (
        lambda p: p.write_bytes(pickle_naming(("sklearn.svm", "SVR"))),
        "a pickle of sklearn.svm.SVR",
    ),
    "text": (lambda p: p.write_text("# Ti potential\n" * 9), "a text file that starts with.*# Ti"),
    "html": (lambda p: p.write_text("<!DOCTYPE html><html>"), "a web page"),
    "git_lfs": (
        lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "a Git LFS pointer.*git lfs pull",
    ),
    "hdf5": (lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64)), "an HDF5 file"),
    "empty": (lambda p: p.write_bytes(b""), "an empty file"),
    "directory": (lambda p: p.mkdir(), "a directory"),
    "cut_zip": (
        lambda p: p.write_bytes(b"PK\x03\x04" + bytes(100)),
        "a damaged or incomplete zip archive",
    ),
    "other_zip": (lambda p: zipped(p, readme=b"hello"), "a zip archive without a model"),
    "safetensors": (
        lambda p: safetensors.numpy.save_file({"a": np.zeros(1)}, p),
        "a safetensors file of another program",
    ),
    "cut_safetensors": (
        lambda p: p.write_bytes(struct.pack("<Q", 900) + b'{"a":'),
        "a damaged or incomplete safetensors file",
    ),
    "binary": (lambda p: p.write_bytes(bytes(range(256))), "a binary file of an unknown kind"),
}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_other_flavour_is_named_with_what_to_do(flavour, tmp_path):
    write, message = FLAVOURS[flavour]
    path = tmp_path / "file.model"
    write(path)
    with pytest.raises(ModelFileError, match=f"expected a .mace file, found {message}"):
        io.load(path)


def test_all_flavours_get_different_messages(tmp_path):
    messages = set()
    for flavour, (write, _) in FLAVOURS.items():
        path = tmp_path / flavour
        write(path)
        with pytest.raises(ModelFileError) as caught:
            io.load(path)
        messages.add(re.sub(r"^\S+: ", "", str(caught.value)).replace(flavour, ""))
    assert len(messages) == len(FLAVOURS)


class Bomb:
    def __reduce__(self):
        return os.abort, ()


@pytest.mark.parametrize("zipped_pickle", [True, False])
def test_no_pickle_is_opened(zipped_pickle, tmp_path):
    path = tmp_path / "bomb.model"
    bomb = pickle.dumps(Bomb(), protocol=2)
    if zipped_pickle:
        zipped(path, data_pkl=bomb)
    else:
        path.write_bytes(bomb)
    with pytest.raises(ModelFileError, match="abort"):
        io.load(path)


def test_loading_imports_neither_torch_nor_mace():
    code = (
        "import sys, mace_stream.io as io; io.load(sys.argv[1]);"
        "print([m for m in ('torch', 'mace', 'e3nn', 'ase') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, SHIPPED], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_metadata_is_one_json_text():
    with safetensors.safe_open(SHIPPED, framework="numpy") as file:
        assert list(file.metadata()) == ["mace_stream"]
        assert json.loads(file.metadata()["mace_stream"])["elements"] == [22]
