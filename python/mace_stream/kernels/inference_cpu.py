"""The passes of the inference path on the CPU, through the core library's C face."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_void_p

import numpy as np

from mace_stream.couplings import ConvPlan
from mace_stream.kernels.core import Dims, Term, check, library
from mace_stream.kernels.inference import (
    Contraction,
    EdgeArrays,
    EdgeList,
    Repulsion,
    Setup,
)


class _Sizes(Structure):
    """``ms_inference_sizes``."""

    _fields_ = [
        *((name, c_int32) for name in ("is_double", "n_species", "l_max", "n_coef")),
        *((name, c_int64) for name in ("channels", "n_hidden", "n_knots")),
        *((name, c_double) for name in ("r_0", "r_max")),
        ("n_layers", c_int32),
    ]


class _OutputBlock(Structure):
    """``ms_output_block``."""

    _fields_ = [("start", c_int32), ("dim", c_int32), ("n_paths", c_int32)]


class _Layer(Structure):
    """``ms_layer``."""

    _fields_ = [
        ("conv", Dims),
        ("conv_channels", c_int64),
        ("terms", POINTER(Term)),
        ("values", POINTER(c_double)),
        ("n_blocks", c_int32),
        ("blocks", POINTER(_OutputBlock)),
        *((name, c_int32) for name in ("n_monomials", "correlation", "dim", "dim_out")),
        ("monomials", POINTER(c_int32)),
    ]


class _Repulsion(Structure):
    """``ms_repulsion``."""

    _fields_ = [
        *((name, POINTER(c_double)) for name in ("charge", "inverse_length", "bond")),
        ("coefficients", c_double * 4),
        ("decays", c_double * 4),
        ("p", c_int32),
    ]


class _Nodes(Structure):
    """``ms_nodes``."""

    _fields_ = [
        *((name, c_int64) for name in ("n_nodes", "n_senders", "n_slots")),
        *((name, c_void_p) for name in ("first", "node_atom", "slot_atom", "slot_node", "species")),
    ]


class _Edges(Structure):
    """``ms_edges``."""

    _fields_ = [(name, c_void_p) for name in ("count", "sender", "row", "t", "dir", "grad")]


class _Tile(Structure):
    """``ms_tile``."""

    _fields_ = [("first", c_int64), ("last", c_int64)]


_GRAPH = (POINTER(_Nodes), POINTER(_Edges))
_ARGUMENTS = {
    "edges": (*_GRAPH, *[c_void_p] * 3),
    "scatter": (*_GRAPH, *[c_void_p] * 4),
    "scatter_backward": (*_GRAPH, *[c_void_p] * 5),
    "conv": (c_int32, _Tile, *_GRAPH, *[c_void_p] * 5),
    "conv_backward": (c_int32, _Tile, *_GRAPH, *[c_void_p] * 7),
    "contract": (c_int32, _Tile, *[c_void_p] * 4),
    "contract_backward": (c_int32, _Tile, *[c_void_p] * 5),
    "forces": (*_GRAPH, *[c_void_p] * 4),
}


def _declared(core: ctypes.CDLL) -> ctypes.CDLL:
    core.ms_inference_create.restype = c_void_p
    core.ms_inference_create.argtypes = [POINTER(_Sizes), POINTER(_Layer), POINTER(_Repulsion)]
    core.ms_inference_free.restype = None
    core.ms_inference_free.argtypes = [c_void_p]
    for name, arguments in _ARGUMENTS.items():
        function = getattr(core, f"ms_inference_{name}")
        function.restype = c_char_p
        function.argtypes = [c_void_p, *arguments]
    return core


class CpuPasses:
    """The passes, see :class:`mace_stream.kernels.inference.Passes`; addresses are of host memory.

    Every call returns when its work is done. Threads are OpenMP's. With one thread, results repeat
    bit for bit; with more, ``up_bar`` of :meth:`conv_backward` is summed in varying order. One
    object serves one call at a time.

    Args:
        setup: What is fixed when a model is loaded.
        core: The core library, if another than the installed one.

    Raises:
        ValueError: A plan mixes channels, or the tables are inconsistent.
    """

    def __init__(self, setup: Setup, core: ctypes.CDLL | None = None) -> None:
        self.setup = setup
        self._core = _declared(core or library())
        tables = _Tables(setup)
        repulsion = byref(tables.repulsion) if tables.repulsion else None
        self._address = self._core.ms_inference_create(
            byref(tables.sizes), tables.layers, repulsion
        )
        if not self._address:
            raise ValueError("ms_inference_create: the tables of the model are inconsistent")

    def __del__(self) -> None:
        if getattr(self, "_address", None):
            self._core.ms_inference_free(self._address)

    def edges(
        self, nodes: EdgeList, edges: EdgeArrays, x: int, node_energy: int, closest: int
    ) -> None:
        """Find the edges within r_max."""
        self._call("edges", *_graph(nodes, edges), x, node_energy, closest)

    def scatter(
        self, nodes: EdgeList, edges: EdgeArrays, table: int, density: int, out: int, norm: int
    ) -> None:
        """First layer."""
        self._call("scatter", *_graph(nodes, edges), table, density, out, norm)

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
        graph = _graph(nodes, edges)
        self._call("scatter_backward", *graph, table, density, out_bar, norm, dot)

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
        arrays = up, table, density, self.setup.blocks(layer, out), norm
        self._call("conv", layer, _Tile(*tile), *_graph(nodes, edges), *arrays)

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
        arrays = (up, table, density, self.setup.blocks(layer, out_bar), norm, dot, up_bar)
        self._call("conv_backward", layer, _Tile(*tile), *_graph(nodes, edges), *arrays)

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
        rows = self.setup.rows(layer, msg)
        self._call("contract", layer, _Tile(*tile), species, coefs, rows, out)

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
        """Gradient of the contraction."""
        arrays = species, coefs, self.setup.rows(layer, msg), out_bar, dot
        self._call("contract_backward", layer, _Tile(*tile), *arrays)

    def forces(
        self,
        nodes: EdgeList,
        edges: EdgeArrays,
        forces: int,
        virial: int,
        receiver_virial: int,
        sender_virial: int,
    ) -> None:
        """Sums of the edges' gradient."""
        arrays = (forces, virial, receiver_virial, sender_virial)
        self._call("forces", *_graph(nodes, edges), *arrays)

    def _call(self, name: str, *arguments: object) -> None:
        function: Callable = getattr(self._core, f"ms_inference_{name}")
        check(function(self._address, *arguments))


def _graph(nodes: EdgeList, edges: EdgeArrays) -> tuple[_Nodes, _Edges]:
    return _struct(_Nodes, nodes), _struct(_Edges, edges)


def _struct(kind: type[Structure], values: EdgeList | EdgeArrays) -> Structure:
    return kind(*(getattr(values, name) for name, _ in kind._fields_))


class _Tables:
    """Arguments of ``ms_inference_create``; keeps the arrays alive that they point to."""

    def __init__(self, setup: Setup) -> None:
        self._arrays: list[np.ndarray] = []
        self.sizes = _Sizes(
            *(int(setup.dtype == "float64"), setup.n_species, setup.l_max, setup.n_coef),
            *(setup.channels, setup.n_hidden, setup.n_knots),
            *(setup.r_0, setup.r_max),
            len(setup.contractions),
        )
        pairs = zip(setup.plans, setup.contractions, strict=True)
        self.layers = (_Layer * len(setup.contractions))(*(self._layer(*pair) for pair in pairs))
        self.repulsion = None if setup.repulsion is None else self._repulsion(setup.repulsion)

    def _pointer(self, array: np.ndarray, dtype: str, kind: type) -> object:
        self._arrays.append(np.ascontiguousarray(array, dtype=dtype))
        return self._arrays[-1].ctypes.data_as(POINTER(kind))

    def _layer(self, plan: ConvPlan | None, contraction: Contraction) -> _Layer:
        n_monomials, width = contraction.terms.shape
        return _Layer(
            *((Dims(), 0, None, None, 0, None) if plan is None else self._conv(plan)),
            *(n_monomials, width - 1, contraction.dim, contraction.dim_out),
            self._pointer(contraction.terms, "int32", c_int32),
        )

    def _conv(self, plan: ConvPlan) -> tuple:
        if plan.refusal:
            raise ValueError(f"plan {plan.name}: {plan.refusal}; use the exact path instead")
        blocks = (_OutputBlock * len(plan.outputs))(
            *(_OutputBlock(b.rows.start, b.irrep.dim, b.n_paths) for b in plan.outputs)
        )
        return (
            Dims(plan.dim_in, plan.dim_edge, plan.dim_out, plan.n_paths, len(plan.values), 1),
            plan.channels,
            self._pointer(plan.terms, "int32", Term),
            self._pointer(plan.values, "float64", c_double),
            len(blocks),
            blocks,
        )

    def _repulsion(self, repulsion: Repulsion) -> _Repulsion:
        pairs = (repulsion.charge, repulsion.inverse_length, repulsion.bond)
        return _Repulsion(
            *(self._pointer(pair, "float64", c_double) for pair in pairs),
            (c_double * 4)(*repulsion.coefficients),
            (c_double * 4)(*repulsion.decays),
            repulsion.p,
        )
