"""The two files of one model that a benchmark needs: mace-torch's and ours."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mace_stream import io

TWIN = "OMAT-0 medium"


@dataclass(frozen=True)
class ModelFiles:
    """A model by name and files."""

    name: str
    ours: Path
    source: Path | None
    """mace-torch's file; ``None`` where only ours is known."""


def find_models(model: Path | None) -> ModelFiles:
    """Return both files for what the user named, converting where necessary.

    A ``.model`` file is converted once and kept by its SHA-256, unless the ``.mace`` file beside it
    says that it was made from exactly this one. Beside a ``.mace`` file its source is looked for
    likewise. Without a name the random twin of a foundation model for titanium is built.

    Raises:
        ValueError: The file is no model, or mace-torch is missing; the message says what to do.
    """
    if model is None:
        source = _twin()
        return ModelFiles(f"{TWIN} twin", _converted(source), source)
    if not model.exists():
        raise ValueError(f"--model {model}: no such file; name a .model or .mace file")
    if model.suffix == ".mace":
        return ModelFiles(model.stem, model, _source_of(model))
    return ModelFiles(model.stem, _converted(model), model)


def _source_of(model: Path) -> Path | None:
    """The ``.model`` file beside ours, if ours was made from it."""
    source = model.with_suffix(".model")
    return source if source.exists() and _made_from(model, io.sha256(source)) else None


def _made_from(model: Path, digest: str) -> bool:
    spec, _ = io.load(model)
    return spec.provenance.get("source_sha256") == digest


def _converted(source: Path) -> Path:
    digest = io.sha256(source)
    beside, kept = source.with_suffix(".mace"), cache_directory() / f"{digest}.mace"
    if beside.exists() and _made_from(beside, digest):
        return beside
    if not kept.exists():
        from mace_stream.convert import convert

        convert(source, kept)
    return kept


def _twin() -> Path:
    path = cache_directory() / "omat_0_medium_ti.model"
    if not path.exists():
        import torch

        from mace_stream.testing.twins import build_twin

        part = path.with_suffix(f".{os.getpid()}.part")
        torch.save(build_twin(TWIN, elements=[22]), part)
        part.replace(path)
    return path


def cache_directory() -> Path:
    """Return the folder for models of benchmarks; it is made."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "mace-stream" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
