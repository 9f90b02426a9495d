"""Open a mace-torch file on the CPU, without the user setting anything.

The file is a pickle: opening it runs the code it names. Convert files of people you trust.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import torch

from mace_stream.convert.accelerated import pickle_module, restore_plain
from mace_stream.convert.ledger import ConversionError
from mace_stream.flavour import detect

_SWITCH = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def load_source(path: Path) -> torch.nn.Module:
    """The model object of a mace-torch file, on the CPU.

    Raises:
        ConversionError: The file is of another flavour, or mace-torch is missing or too old.
    """
    try:
        flavour = detect(path)
    except OSError as error:
        raise ConversionError(
            f"{path}: cannot be read ({error.strerror}). Check the path"
        ) from error
    if flavour.kind == "mace":
        raise ConversionError(f"{path}: is a .mace file already. Use it as it is")
    if flavour.kind != "mace_torch":
        raise ConversionError(
            f"{path}: expected a mace-torch model, found {flavour.description}. {flavour.remedy}"
        )
    import_mace()
    model = _unpickle(path)
    if not isinstance(model, torch.nn.Module):
        raise ConversionError(
            f"{path}: expected a mace-torch model, found a {type(model).__name__} that contains "
            "one. Take the model out of it in Python, torch.save it alone and convert that file"
        )
    restore_plain(model)
    return model


def _unpickle(path: Path) -> object:
    try:
        with _full_pickles(), _scripts_to_cpu():
            return torch.load(
                path, map_location="cpu", weights_only=False, pickle_module=pickle_module
            )
    except (RuntimeError, pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
        raise ConversionError(
            f"{path}: mace-torch cannot open this model ({error}). The file may be damaged, or "
            "made by another version of mace-torch: copy it again, or convert it where it was made"
        ) from error


def import_mace() -> None:
    """Import mace-torch quietly and leave no environment variable behind.

    Raises:
        ConversionError: mace-torch is not installed.
    """
    try:
        with _full_pickles(), contextlib.redirect_stdout(io.StringIO()):
            import mace.modules  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConversionError(
            f"conversion needs mace-torch, but the module {error.name} is missing. "
            "Type: pip install 'mace-stream[convert]'"
        ) from error


@contextlib.contextmanager
def _full_pickles() -> Iterator[None]:
    """Let e3nn read its own constants under torch >= 2.6."""
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SWITCH)
        if before is not None:
            os.environ[_SWITCH] = before


@contextlib.contextmanager
def _scripts_to_cpu() -> Iterator[None]:
    """Send the compiled code that e3nn stores in a model to the CPU too.

    e3nn opens it without ``map_location``, which fails without a GPU if it was saved on one.
    """
    original = torch.jit.load

    def load_on_cpu(file: object, *args: object, **kwargs: object) -> torch.jit.ScriptModule:
        return original(file, map_location="cpu")

    torch.jit.load = load_on_cpu
    try:
        yield
    finally:
        torch.jit.load = original
