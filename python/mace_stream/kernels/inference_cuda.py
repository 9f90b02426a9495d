"""The passes of the inference path on a CUDA device: compiled for it, launched on a stream."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from mace_stream.kernels import inference_source as source
from mace_stream.kernels.inference import EdgeArrays, EdgeList, Setup
from mace_stream.kernels.launching import Kernels, check, clear, launch
from mace_stream.kernels.nvrtc import compile_program


class _Edges(ctypes.Structure):
    """``Edges`` in edge_batch.cuh."""

    _fields_ = [
        ("n_nodes", c_int64),
        *((name, c_void_p) for name in ("first", "count", "sender", "row", "t", "dir", "grad")),
    ]


class _List(ctypes.Structure):
    """``List`` in find_edges.cuh."""

    _fields_ = [
        ("n_nodes", c_int64),
        *((name, c_void_p) for name in ("first", "node_atom", "slot_atom", "slot_node", "species")),
    ]


class _Zbl(ctypes.Structure):
    """``Zbl`` in find_edges.cuh."""

    _fields_ = [(name, c_void_p) for name in ("charge", "inverse_length", "bond")]


@cache
def _conv_call(n_blocks: int) -> type[ctypes.Structure]:
    """``ConvCall`` in radial_conv.cuh, with so many blocks of messages."""
    fields = [
        ("edges", _Edges),
        *((name, c_int64) for name in ("first_receiver", "n_receivers", "n_senders")),
        *((name, c_void_p) for name in ("up", "table", "density")),
        ("out", c_void_p * n_blocks),
        *((name, c_void_p) for name in ("norm", "dot", "up_bar")),
    ]
    return type("_ConvCall", (ctypes.Structure,), {"_fields_": fields})


class _ScatterCall(ctypes.Structure):
    """``ScatterCall`` in scatter.cuh."""

    _fields_ = [
        ("edges", _Edges),
        *((name, c_void_p) for name in ("table", "density", "out", "norm", "dot")),
    ]


@cache
def _contraction_call(dim: int) -> type[ctypes.Structure]:
    """``ContractionCall`` in contraction_common.cuh, with so many rows of messages."""
    fields = [
        ("n_nodes", c_int64),
        *((name, c_void_p) for name in ("species", "coefs")),
        ("msg", c_void_p * dim),
        *((name, c_void_p) for name in ("out", "dot")),
    ]
    return type("_ContractionCall", (ctypes.Structure,), {"_fields_": fields})


FORCES_BLOCKS = 1056
"""Eight blocks for each of 132 multiprocessors: few enough for the sums of the virial."""


class CudaPasses:
    """See :class:`mace_stream.kernels.inference.Passes`. Launches; never synchronizes.

    Args:
        setup: What is fixed when a model is loaded.
        arch: Architecture of the device, for example ``sm_90``.
        densities: Whether each layer has a density normalisation.
        stream: Called before each launch; returns the address of the stream to use.
        zbl: Addresses of the three float64 tables of the repulsion on the device, or zeros.
        compile_only: Compile, but do not load: for machines without a GPU.

    Raises:
        CompileError: NVRTC is missing or refuses a source.
    """

    def __init__(
        self,
        setup: Setup,
        arch: str,
        densities: tuple[bool, ...],
        stream: Callable[[], int],
        zbl: tuple[int, int, int] = (0, 0, 0),
        *,
        compile_only: bool = False,
    ) -> None:
        self.setup = setup
        self.densities = densities
        self._stream = stream
        self._zbl = _Zbl(*zbl)
        programs = dict(_programs(setup, densities))
        with ThreadPoolExecutor() as pool:
            jobs = {
                key: pool.submit(compile_program, p.source, p.instances, arch)
                for key, p in programs.items()
            }
        compiled = {key: job.result() for key, job in jobs.items()}
        seconds = sum(program.seconds for program in compiled.values())
        if seconds:
            print(
                f"mace_stream: compiled {len(programs)} programs for {arch}, {setup.dtype} "
                f"({seconds:.1f} s of one core)",
                file=sys.stderr,
            )
        if not compile_only:
            self._loaded = {
                key: _Loaded(Kernels(compiled[key], p.instances), p.shape)
                for key, p in programs.items()
            }

    def edges(
        self, nodes: EdgeList, edges: EdgeArrays, x: int, node_energy: int, closest: int
    ) -> None:
        """Find the edges within r_max."""
        candidates = _List(
            *(nodes.n_nodes, nodes.first, nodes.node_atom),
            *(nodes.slot_atom, nodes.slot_node, nodes.species),
        )
        arguments = candidates, x, _edges(nodes, edges), self._zbl, node_energy, closest
        self._launch(("edges",), nodes.n_nodes, *arguments)

    def scatter(
        self, nodes: EdgeList, edges: EdgeArrays, table: int, density: int, out: int, norm: int
    ) -> None:
        """First layer."""
        call = _ScatterCall(_edges(nodes, edges), table, density, out, norm, 0)
        self._launch(("scatter", False), nodes.n_nodes, call)

    def scatter_backward(
        self,
        nodes: EdgeList,
        edges: EdgeArrays,
        table: int,
        density: int,
        out_bar: int,
        norm: int,
        dot: int,
    ) -> None:
        """Gradient of the first layer."""
        call = _ScatterCall(_edges(nodes, edges), table, density, out_bar, norm, dot)
        self._launch(("scatter", True), nodes.n_nodes, call)

    def conv(
        self,
        layer: int,
        tile: tuple[int, int],
        nodes: EdgeList,
        edges: EdgeArrays,
        up: int,
        table: int,
        density: int,
        out: Sequence[int],
        norm: int,
    ) -> None:
        """Convolution of a later layer."""
        first, n, blocks = tile[0], tile[1] - tile[0], self.setup.blocks(layer, out)
        arrays = up, table, density, blocks, norm, 0, 0
        call = _conv_call(len(blocks))(_edges(nodes, edges), first, n, nodes.n_senders, *arrays)
        self._launch(("conv", layer, False), n, call)

    def conv_backward(
        self,
        layer: int,
        tile: tuple[int, int],
        nodes: EdgeList,
        edges: EdgeArrays,
        up: int,
        table: int,
        density: int,
        out_bar: Sequence[int],
        norm: int,
        dot: int,
        up_bar: int,
    ) -> None:
        """Gradients of the convolution."""
        first, n, blocks = tile[0], tile[1] - tile[0], self.setup.blocks(layer, out_bar)
        arrays = up, table, density, blocks, norm, dot, up_bar
        call = _conv_call(len(blocks))(_edges(nodes, edges), first, n, nodes.n_senders, *arrays)
        self._launch(("conv", layer, True), n, call)

    def contract(
        self,
        layer: int,
        tile: tuple[int, int],
        species: int,
        coefs: int,
        msg: Sequence[int],
        out: int,
    ) -> None:
        """Symmetric contraction."""
        first, n, rows = tile[0], tile[1] - tile[0], self.setup.rows(layer, msg)
        call = _contraction_call(len(rows))(n, species + 4 * first, coefs, rows, out, 0)
        self._launch(("contract", layer, False), n, call)

    def contract_backward(
        self,
        layer: int,
        tile: tuple[int, int],
        species: int,
        coefs: int,
        msg: Sequence[int],
        out_bar: int,
        dot: int,
    ) -> None:
        """Gradient of the symmetric contraction."""
        first, n, rows = tile[0], tile[1] - tile[0], self.setup.rows(layer, msg)
        dot_here = dot + first * np.dtype(self.setup.dtype).itemsize if dot else 0
        arrays = species + 4 * first, coefs, rows, out_bar, dot_here
        self._launch(("contract", layer, True), n, _contraction_call(len(rows))(n, *arrays))

    def forces(
        self,
        nodes: EdgeList,
        edges: EdgeArrays,
        forces: int,
        virial: int,
        receiver_virial: int,
        sender_virial: int,
    ) -> None:
        """Sum gradients."""
        sizes = {forces: 3 * nodes.n_senders, virial: 9}
        sizes |= {receiver_virial: 9 * nodes.n_nodes, sender_virial: 9 * nodes.n_senders}
        for array, size in sizes.items():
            self._clear(array, 8 * size)
        arguments = _edges(nodes, edges), forces, virial, receiver_virial, sender_virial
        self._launch(("forces",), min(nodes.n_nodes, FORCES_BLOCKS), *arguments)

    def _launch(self, key: tuple, n_rows: int, *arguments: Any) -> None:
        """Launch every kernel of a program for ``n_rows`` receivers or nodes."""
        loaded = self._loaded[key]
        shape, blocks = loaded.shape, -(-n_rows // loaded.shape.per_block)
        if blocks == 0:
            return
        for function in loaded.functions:
            self._start(function, (blocks, shape.grid_y), shape.threads, *arguments)

    def _start(
        self, function: object, grid: tuple[int, int], threads: int, *arguments: Any
    ) -> None:
        check(launch(function, grid, threads, self._stream(), *arguments))

    def _clear(self, array: int, n_bytes: int) -> None:
        clear(array, n_bytes, self._stream())


@dataclass(frozen=True)
class _Loaded:
    functions: Kernels
    shape: source.Shape


def _edges(nodes: EdgeList, edges: EdgeArrays) -> _Edges:
    return _Edges(
        *(nodes.n_nodes, nodes.first, edges.count, edges.sender),
        *(edges.row, edges.t, edges.dir, edges.grad),
    )


def _programs(setup: Setup, densities: tuple[bool, ...]):  # noqa: ANN202  pairs of key and Program
    yield ("edges",), source.edges_program(setup)
    yield ("forces",), source.forces_program(setup)
    for backward in (False, True):
        yield ("scatter", backward), source.scatter_program(setup, densities[0], backward)
        for layer, plan in enumerate(setup.plans):
            if plan is not None:
                program = source.conv_program(setup, plan, densities[layer], backward)
                yield ("conv", layer, backward), program
        for layer, contraction in enumerate(setup.contractions):
            program = source.contraction_program(setup, contraction, backward)
            yield ("contract", layer, backward), program
