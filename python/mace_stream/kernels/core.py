"""The core library ``libmace_stream_core.so``, called through ctypes. Arrays go in as addresses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np

from mace_stream.compiled import compiled_directory
from mace_stream.couplings import ConvPlan

LIBRARY = "libmace_stream_core.so"
FORWARD, BACKWARD, BACKWARD_SENDER, DOUBLE_BACKWARD = range(4)
CPU = -1


class Term(Structure):
    """``ms_term``."""

    _fields_ = [("row_in", c_int32), ("edge", c_int32), ("path", c_int32), ("out", c_int32)]


class Dims(Structure):
    """``ms_conv_dims``."""

    _fields_ = [
        (name, c_int32)
        for name in ("dim_in", "dim_edge", "dim_out", "n_paths", "n_terms", "is_double")
    ]


class Graph(Structure):
    """``ms_graph``."""

    _fields_ = [
        *((name, c_int64) for name in ("n_nodes", "n_receivers", "n_edges", "channels")),
        *(
            (name, c_void_p)
            for name in ("indptr", "sender", "receiver", "sender_indptr", "edge_of")
        ),
    ]


class Place(Structure):
    """``ms_place``."""

    _fields_ = [("device", c_int32), ("stream", c_void_p)]


class Variant(Structure):
    """``ms_variant``."""

    _fields_ = [("pass_number", c_int32), ("any_order", c_int32), ("nodes", c_int32)]


class Kernel(Structure):
    """``ms_kernel``."""

    _fields_ = [
        ("name", c_char_p),
        ("width", c_int32),
        ("threads", c_int32),
        ("shared_bytes", c_int32),
    ]


@cache
def library() -> ctypes.CDLL:
    """Open the core library and declare its functions.

    Raises:
        FileNotFoundError: The package was installed without its compiled part.
    """
    # Its OpenMP runtime is to be torch's, not one that a host program brings.
    mode = getattr(os, "RTLD_DEEPBIND", ctypes.DEFAULT_MODE)
    core = ctypes.CDLL(str(compiled_directory() / LIBRARY), mode=mode)
    core.ms_conv_create.restype = c_void_p
    core.ms_conv_create.argtypes = [POINTER(Dims), POINTER(Term), POINTER(c_double)]
    core.ms_conv_free.restype = None
    core.ms_conv_free.argtypes = [c_void_p]
    core.ms_conv_load_cuda.restype = c_char_p
    core.ms_conv_load_cuda.argtypes = [
        *(c_void_p, c_int32, Variant, c_char_p, POINTER(Kernel), c_int32, c_char_p)
    ]
    core.ms_conv_tiles.restype = c_int64
    core.ms_conv_tiles.argtypes = [c_void_p, c_int32, Variant, c_int64]
    for name, n_arrays in (("forward", 4), ("backward", 8), ("double_backward", 12)):
        function = getattr(core, f"ms_conv_{name}")
        function.restype = c_char_p
        function.argtypes = [c_void_p, Place, POINTER(Graph), *[c_void_p] * n_arrays]
    return core


@cache
def cuda_sources() -> dict[str, str]:
    """Return name and text of every CUDA file."""
    folder: Path = compiled_directory() / "cuda"
    return {file.name: file.read_text() for file in sorted(folder.glob("*.cuh"))}


class CorePlan:
    """A plan's tables inside the library. Lives until the process ends.

    Args:
        plan: The convolution.
        dtype: ``float32`` or ``float64``.
    """

    def __init__(self, plan: ConvPlan, dtype: str) -> None:
        terms = np.ascontiguousarray(plan.terms[:, [0, 1, 2, 3]], dtype=np.int32)
        values = np.ascontiguousarray(plan.values, dtype=np.float64)
        dims = Dims(
            *(plan.dim_in, plan.dim_edge, plan.dim_out, plan.n_paths, len(values)),
            int(dtype == "float64"),
        )
        self.address = library().ms_conv_create(
            byref(dims),
            terms.ctypes.data_as(POINTER(Term)),
            values.ctypes.data_as(POINTER(c_double)),
        )
        if not self.address:
            raise ValueError("ms_conv_create: the tables of the convolution are inconsistent")

    def load_cuda(
        self,
        device: int,
        variant: tuple[int, bool, bool],
        cubin: bytes,
        kernels: Sequence[tuple[str, int, int, int]],
        sum_tiles: str | None,
    ) -> None:
        """Load machine code; ``kernels`` are name, width, threads and shared bytes per group."""
        table = (Kernel * len(kernels))(
            *(Kernel(name.encode(), *numbers) for name, *numbers in kernels)
        )
        name = sum_tiles.encode() if sum_tiles else None
        loaded = library().ms_conv_load_cuda(
            self.address, device, Variant(*map(int, variant)), cubin, table, len(kernels), name
        )
        check(loaded)

    def tiles(self, device: int, variant: tuple[int, bool, bool], channels: int) -> int:
        """Return how many summands of the harmonics' cotangent a pass writes."""
        return library().ms_conv_tiles(self.address, device, Variant(*map(int, variant)), channels)

    def call(self, name: str, place: Place, graph: Graph, *arrays: int | None) -> None:
        """Run ``ms_conv_<name>``; arrays are addresses or None.

        Raises:
            RuntimeError: The library refuses, with its own words.
        """
        check(getattr(library(), f"ms_conv_{name}")(self.address, place, byref(graph), *arrays))


def check(message: bytes | None) -> None:
    """Raise ``RuntimeError`` if the library returned a message."""
    if message:
        raise RuntimeError(f"mace_stream: {message.decode()}")
