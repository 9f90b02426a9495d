"""The steps of a conversion: open, read, choose, write, prove."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch

from mace_stream import __version__, io
from mace_stream.convert.heads import keep_head
from mace_stream.convert.ledger import ConversionError, qualified_name
from mace_stream.convert.licences import licence_note
from mace_stream.convert.model import cast, read_model
from mace_stream.convert.selftest import self_test
from mace_stream.convert.source import load_source
from mace_stream.spec import ModelSpec

DTYPES = ("float32", "float64")

_log = logging.getLogger(__name__)


def convert(
    source: str | Path,
    target: str | Path,
    head: str | None = None,
    dtype: str | None = None,
    say: Callable[[str], None] = _log.info,
) -> ModelSpec:
    """Convert a mace-torch model file and prove the result against its source.

    Opening the source runs the code that its pickle names: convert files of people you trust.
    Runs on the CPU whatever device the file was saved on. The target appears only if all went
    well; an existing one is replaced.

    Args:
        source: File that ``torch.save`` wrote of a mace-torch model.
        target: The ``.mace`` file to write.
        head: The only head to keep; ``None`` keeps all.
        dtype: ``float32`` or ``float64``; ``None`` keeps the source's.
        say: Takes the one line that reports the self-test.

    Returns:
        The specification of the file written.

    Raises:
        ConversionError: The file is of another flavour, the model has a part that is not
            supported, a number does not fit the dtype, or the self-test failed.
        OSError: The target cannot be written.
    """
    source, target = Path(source), Path(target)
    _check_arguments(source, target, dtype)
    model = load_source(source)
    spec, tensors = read_model(model)
    if head is not None:
        spec, tensors = keep_head(spec, tensors, head)
    try:
        tensors = cast(tensors, dtype or spec.dtype)
    except OverflowError as error:
        raise ConversionError(f"{source}: {error}. Keep float64: --dtype float64") from error
    provenance = _provenance(source, model)
    spec = dataclasses.replace(spec, dtype=dtype or spec.dtype, provenance=provenance)
    candidate = target.with_name(f".{target.name}.{os.getpid()}.candidate")
    try:
        io.save(candidate, spec, tensors)
        difference = self_test(candidate, spec, model)
        os.replace(candidate, target)
    finally:
        candidate.unlink(missing_ok=True)
    say(f"self-test: largest difference of an atom's energy to mace-torch {difference:.2g} eV")
    return spec


def _check_arguments(source: Path, target: Path, dtype: str | None) -> None:
    if dtype not in (None, *DTYPES):
        raise ConversionError(f"dtype: expected {' or '.join(DTYPES)}, got {dtype}")
    if target.resolve() == source.resolve():
        raise ConversionError(f"{target}: source and target are the same file. Name another target")
    if not target.parent.is_dir():
        raise ConversionError(f"{target}: there is no directory {target.parent}. Create it first")


def _provenance(source: Path, model: torch.nn.Module) -> dict[str, str]:
    digest = io.sha256(source)
    return {
        "source": source.name,
        "source_sha256": digest,
        "source_class": qualified_name(model),
        "mace_torch": metadata.version("mace-torch"),
        "torch": torch.__version__,
        "mace_stream": __version__,
        "licence": licence_note(source.name, digest),
    }
