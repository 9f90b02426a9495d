"""Read and write ``.mace`` files: safetensors and NumPy only, no pickle, nothing executable.

spec, tensors = load("ti.mace")
spec.elements, tensors["atomic_energies"]
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from mace_stream.flavour import detect
from mace_stream.spec import METADATA_KEY, ModelSpec
from mace_stream.tensors import check_tensors


class ModelFileError(ValueError):
    """A model file cannot be used. The message is complete: what, why, what to do."""


def load(path: str | Path) -> tuple[ModelSpec, dict[str, np.ndarray]]:
    """Read a ``.mace`` file and check it completely.

    Args:
        path: The file.

    Returns:
        The specification, and every tensor under the name given in :mod:`mace_stream.spec`.

    Raises:
        ModelFileError: The file is missing, is of another kind or version, is damaged, or
            its tensors are not those that its specification names.
    """
    _check_is_mace(path)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            text = file.metadata()[METADATA_KEY]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ModelFileError(
            f"{path}: damaged .mace file ({error}). Copy it again, or convert the model again"
        ) from error
    try:
        spec = ModelSpec.from_json(text)
        check_tensors(spec, tensors)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{path}: not a valid .mace file: {error}. Convert the model again: "
            "mace-stream convert FILE.model -o FILE.mace"
        ) from error
    return spec, tensors


def save(path: str | Path, spec: ModelSpec, tensors: dict[str, np.ndarray]) -> None:
    """Write a ``.mace`` file; an existing file is replaced whole or not at all.

    Raises:
        ValueError: The tensors are not those that the specification names.
        OSError: The file cannot be written.
    """
    check_tensors(spec, tensors)
    path = Path(path)
    part = part_path(path)
    # safetensors writes the memory as it lies: a transposed view would come back wrong.
    contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    try:
        # Not save_file, which makes a file that only its owner can read.
        part.write_bytes(safetensors.numpy.save(contiguous, {METADATA_KEY: spec.to_json()}))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def part_path(path: Path) -> Path:
    """Name of the unfinished file beside ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def sha256(path: str | Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check_is_mace(path: str | Path) -> None:
    try:
        flavour = detect(path)
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{path}: no such file. Check the path (relative paths start at {Path.cwd()})"
        ) from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror})") from error
    if flavour.kind != "mace":
        remedy = flavour.remedy.replace("-o FILE.mace", f"-o {Path(path).stem}.mace")
        if flavour.kind == "mace_torch":
            remedy = remedy.replace("FILE", str(path), 1)
        raise ModelFileError(
            f"{path}: expected a .mace file, found {flavour.description}. {remedy}"
        )
