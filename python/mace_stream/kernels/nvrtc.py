"""Compiles CUDA sources at run time, and keeps the results on disk."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mace_stream.kernels.core import cuda_sources

OPTIONS = (b"--std=c++17", b"--device-as-default-execution-space")
"""The second lets older compilers take lambdas as device code."""


class CompileError(RuntimeError):
    """A kernel did not compile, or no compiler is there."""


@dataclass(frozen=True)
class Program:
    """Machine code for one architecture, and the names of its kernels."""

    cubin: bytes
    names: dict[str, str]
    """Template instance as written in the source -> name in the code."""
    seconds: float
    """Time that compiling took; 0 if it came from disk."""


def compile_program(source: str, instances: Sequence[str], arch: str) -> Program:
    """Return machine code for ``source`` with these template instances.

    The result is cached by the content of everything that goes in, so that a changed file or
    compiler never meets an old result. Several processes may compile the same program at once. If
    the folder cannot be written, a line on stderr says so.

    Args:
        source: CUDA C++ text; may include the files of ``csrc/cuda``.
        instances: For example ``conv_forward<Group0, 2, false>``.
        arch: For example ``sm_90``.

    Raises:
        CompileError: NVRTC is missing or refuses the source.
    """
    nvrtc = _nvrtc()
    headers = cuda_sources()
    key = _key(source, instances, arch, headers, _checked(nvrtc, nvrtc.nvrtcVersion()))
    path = cache_directory() / f"{key}.cubin"
    cached = _read(path)
    if cached is not None:
        return cached
    start = time.perf_counter()
    cubin, names = _compile(nvrtc, source, instances, arch, headers)
    program = Program(cubin, names, time.perf_counter() - start)
    _write(path, program)
    return program


def cache_directory() -> Path:
    """Return the folder of compiled kernels: MACE_STREAM_CACHE, or in the user's cache folder."""
    chosen = os.environ.get("MACE_STREAM_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "mace-stream" / "kernels"


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise CompileError(
            f"kernels for CUDA need NVRTC ({error}); type: pip install cuda-bindings "
            "nvidia-cuda-nvrtc"
        ) from error
    return nvrtc


def _key(source: str, instances: Sequence[str], arch: str, headers: dict, version: Any) -> str:
    content = json.dumps(
        [source, list(instances), arch, sorted(headers.items()), str(version), str(OPTIONS)]
    )
    return hashlib.sha256(content.encode()).hexdigest()


def _checked(nvrtc: Any, answer: tuple) -> Any:
    """Return what a call of NVRTC gave, without its status."""
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if len(values) == 1 else tuple(values)


def _compile(
    nvrtc: Any, source: str, instances: Sequence[str], arch: str, headers: dict[str, str]
) -> tuple[bytes, dict[str, str]]:
    texts = [text.encode() for text in headers.values()]
    names = [name.encode() for name in headers]
    program = _checked(
        nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"conv.cu", len(texts), texts, names)
    )
    try:
        for instance in instances:
            _checked(nvrtc, nvrtc.nvrtcAddNameExpression(program, instance.encode()))
        options = [f"--gpu-architecture={arch}".encode(), *OPTIONS]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC refused a kernel for {arch}:\n{_log(nvrtc, program)}")
        lowered = {
            name: _checked(nvrtc, nvrtc.nvrtcGetLoweredName(program, name.encode())).decode()
            for name in instances
        }
        cubin = b" " * _checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        _checked(nvrtc, (*nvrtc.nvrtcGetCUBIN(program, cubin), None))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return cubin, lowered


def _log(nvrtc: Any, program: Any) -> str:
    log = b" " * _checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.decode(errors="replace").strip("\x00 ")


def _read(path: Path) -> Program | None:
    """Read a cached program; a damaged file counts as none."""
    try:
        header, cubin = path.read_bytes().split(b"\n", 1)
        meta = json.loads(header)
        digest, names = meta["sha256"], meta["names"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if hashlib.sha256(cubin).hexdigest() != digest:
        return None
    return Program(cubin, names, 0.0)


def _write(path: Path, program: Program) -> None:
    """Write under a name of our own, then rename: readers see a whole file or none."""
    meta = {"names": program.names, "sha256": hashlib.sha256(program.cubin).hexdigest()}
    content = json.dumps(meta).encode() + b"\n" + program.cubin
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        _say_not_kept(path.parent, str(error))


@cache
def _say_not_kept(folder: Path, why: str) -> None:
    """Tell once that kernels cannot be kept; they work all the same."""
    print(
        f"mace_stream: compiled kernels cannot be kept in {folder} ({why}), so the next run "
        "compiles them again; set MACE_STREAM_CACHE to a folder that can be written",
        file=sys.stderr,
    )
