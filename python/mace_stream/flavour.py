"""Tell what a model file is from its content, without opening any pickle in it.

A pickle is only read as a list of instructions (:mod:`pickletools`): nothing in it runs.
"""

from __future__ import annotations

import json
import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path

ZIP_MAGIC = b"PK\x03\x04"
PICKLE_MAGIC = b"\x80"
LEGACY_TORCH_MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
"""The number that torch.save wrote first before torch 1.6."""

_RECONVERT = (
    "Convert the model file that mace-torch's training wrote: "
    "mace-stream convert FILE.model -o FILE.mace"
)

JAX_PACKAGES = ("mace_jax", "flax", "haiku", "optax", "jax", "jaxlib")
JAX_BUNDLE = "params.msgpack"
"""Name of the parameters in a folder that mace-jax calls a bundle."""


@dataclass(frozen=True)
class Flavour:
    """What a file was found to be, and what to do about it."""

    kind: str
    """``mace``, ``mace_torch``, or one of the kinds that no command of ours reads."""
    description: str
    remedy: str


def detect(path: str | Path) -> Flavour:
    """Recognise a file by its content.

    Never raises for a readable file: what is not known is called unknown.

    Raises:
        OSError: The file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        if (path / JAX_BUNDLE).is_file():
            return detect(path / JAX_BUNDLE)
        return Flavour("directory", "a directory", "Name the model file inside it")
    with path.open("rb") as file:
        head = file.read(4096)
    if not head:
        return Flavour("empty", "an empty file", "Copy or download it again")
    # First, since the length it begins with may have the first byte of a pickle.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return _safetensors_flavour(path)
    if head.startswith(ZIP_MAGIC):
        return _zip_flavour(path)
    if head.startswith(PICKLE_MAGIC):
        return _bare_pickle_flavour(path)
    return _other_flavour(head)


def pickled_classes(data: bytes) -> list[str]:
    """Qualified names that a pickle would import, in order of appearance; nothing is run."""
    names: list[str] = []
    strings: list[str] = []
    memo: dict[int, str] = {}
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "GLOBAL":
                names.append(str(argument).replace(" ", "."))
            elif opcode.name == "STACK_GLOBAL" and len(strings) > 1:
                names.append(f"{strings[-2]}.{strings[-1]}")
            elif opcode.name == "MEMOIZE" and strings:
                memo[len(memo)] = strings[-1]
            elif opcode.name in ("BINGET", "LONG_BINGET") and argument in memo:
                strings.append(memo[argument])
            elif "UNICODE" in opcode.name:
                strings.append(str(argument))
    except ValueError:
        pass  # cut short or not a pickle: what was read so far is still true
    return list(dict.fromkeys(names))


def _zip_flavour(path: Path) -> Flavour:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            pickled = [name for name in names if name.endswith("/data.pkl")]
            if any("/code/" in name for name in names):
                return _torchscript()
            if pickled:
                return _pickle_flavour(archive.read(pickled[0]))
    except (zipfile.BadZipFile, EOFError, OSError):
        return Flavour(
            "truncated",
            "a damaged or incomplete zip archive (a mace-torch file that was cut short?)",
            "Copy or download it again and compare the sizes",
        )
    return Flavour("zip", "a zip archive without a model in it", _RECONVERT)


def _torchscript() -> Flavour:
    return Flavour(
        "torchscript",
        "a TorchScript export (for example *.model-lammps.pt), which holds compiled code "
        "and no description of the model",
        _RECONVERT,
    )


def _jax(description: str) -> Flavour:
    return Flavour(
        "mace_jax",
        description,
        "Convert the mace-torch model that mace-jax read: mace-stream convert FILE.model "
        "-o FILE.mace. If it was trained in JAX, see docs/training.md",
    )


def _pickle_flavour(data: bytes) -> Flavour:
    classes = pickled_classes(data)
    if any(name.endswith(".LAMMPS_MLIAP_MACE") for name in classes):
        return Flavour(
            "mliap", "an ML-IAP export (*-mliap_lammps.pt) for pair_style mliap", _RECONVERT
        )
    if classes and classes[0].startswith("mace."):
        return Flavour(
            "mace_torch",
            f"a mace-torch model (pickle of {classes[0]})",
            "Convert it once: mace-stream convert FILE -o FILE.mace",
        )
    if any(name.split(".")[0] in JAX_PACKAGES for name in classes):
        return _jax("a checkpoint of mace-jax, or of another program in JAX (pickle)")
    plain = all(name.split(".")[0] in ("torch", "collections", "numpy") for name in classes)
    if plain and not any(name.startswith("torch.nn.") for name in classes):
        return Flavour(
            "state_dict",
            "a checkpoint or state dictionary: numbers without the architecture they belong to",
            "Use the *.model file that the same training wrote, or load the checkpoint in "
            "mace-torch and torch.save the whole model; then mace-stream convert it",
        )
    return Flavour("pickle", f"a pickle of {classes[0]}, not of a MACE model", _RECONVERT)


def _bare_pickle_flavour(path: Path) -> Flavour:
    data = path.read_bytes()
    if LEGACY_TORCH_MAGIC not in data[:32]:
        return _pickle_flavour(data)
    return _pickle_flavour(_fourth_pickle(data))


def _fourth_pickle(data: bytes) -> bytes:
    """The object in a torch.save file of before torch 1.6: magic, version, system, object."""
    start = 0
    for _ in range(3):
        stop = next((at for op, _, at in pickletools.genops(data[start:]) if op.name == "STOP"), 0)
        start += stop + 1
    return data[start:]


def _safetensors_flavour(path: Path) -> Flavour:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length)
    try:
        header = json.loads(text)
    except ValueError:
        return Flavour(
            "truncated",
            "a damaged or incomplete safetensors file",
            "Copy it again, or convert the model again",
        )
    if "mace_stream" in header.get("__metadata__", {}):
        return Flavour("mace", "a .mace file", "")
    return Flavour("safetensors", "a safetensors file of another program", _RECONVERT)


def _other_flavour(head: bytes) -> Flavour:
    if _is_msgpack(head):
        return _jax("parameters of mace-jax, or of another program that uses flax (msgpack)")
    if head.startswith(b"version https://git-lfs"):
        return Flavour("git_lfs", "a Git LFS pointer, not the file itself", "Type: git lfs pull")
    if head.startswith(b"\x89HDF"):
        return Flavour("hdf5", "an HDF5 file", _RECONVERT)
    if head.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return Flavour("html", "a web page (a failed download?)", "Download the file again")
    if b"\0" not in head:
        return Flavour("text", f"a text file that starts with {head[:40]!r}", _RECONVERT)
    return Flavour("unknown", "a binary file of an unknown kind", _RECONVERT)


def _is_msgpack(head: bytes) -> bool:
    """Whether this begins a map of MessagePack whose first key is a name, as flax writes it."""
    n_bytes = {0xDE: 3, 0xDF: 5}.get(head[0], 1 if 0x81 <= head[0] <= 0x8F else 0)
    if not n_bytes or len(head) < n_bytes + 2:
        return False
    mark, rest = head[n_bytes], head[n_bytes + 1 :]
    short = rest[: mark - 0xA0] if 0xA1 <= mark <= 0xBF else b""
    name = rest[1 : 1 + rest[0]] if mark == 0xD9 else short
    return name.decode("ascii", errors="replace").isidentifier()
