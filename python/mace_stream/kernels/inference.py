"""What the passes of the inference path have in common: sizes, arrays, and their meaning.

:mod:`mace_stream.kernels.inference_cpu` and :mod:`mace_stream.kernels.inference_cuda` each offer a
class with the methods of :class:`Passes`. Arrays go in as addresses; ``Real`` is the precision's
type. Layouts and formulas are in docs/inference.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mace_stream.couplings import ConvPlan


@dataclass(frozen=True)
class Repulsion:
    """Screened nuclear repulsion (ZBL) of every ordered pair of present species, float64 [S, S].

    ``V(r) = charge / r * sum_k c_k exp(-decay_k * inverse_length * r) * envelope(r / bond)``, the
    polynomial envelope of order ``p``; half a pair per directed edge and the head's scale are
    folded into ``charge``.
    """

    charge: np.ndarray
    inverse_length: np.ndarray
    bond: np.ndarray
    coefficients: tuple[float, float, float, float]
    decays: tuple[float, float, float, float]
    p: int


@dataclass(frozen=True)
class Contraction:
    """A polynomial of the message components of one channel.

    ``terms`` int32 [K, 1 + correlation]: output row, then sorted factors, -1 where the degree is
    lower. The coefficients [S, K, C] are an argument of the passes.
    """

    terms: np.ndarray
    dim: int
    dim_out: int


@dataclass(frozen=True)
class Setup:
    """All that is fixed when a model is loaded."""

    dtype: str
    """``float32`` or ``float64``."""
    n_species: int
    l_max: int
    channels: int
    r_0: float
    r_max: float
    n_knots: int
    n_coef: int
    """Coefficients of the radial polynomials: 4 or 6."""
    n_hidden: int
    """Width of the first layer's radial features."""
    plans: tuple[ConvPlan | None, ...]
    """Convolution of every layer; None for the first."""
    contractions: tuple[Contraction, ...]
    """Of every layer."""
    repulsion: Repulsion | None = None

    @property
    def inverse_step(self) -> float:
        """Knots per Å."""
        return self.n_knots / (self.r_max - self.r_0)

    def blocks(self, layer: int, arrays: Sequence[int]) -> ctypes.Array:
        """Return the addresses of the output blocks of a layer's convolution for its pass.

        Raises:
            ValueError: There are not as many as the plan has.
        """
        plan = self.plans[layer]  # the core library says so where there is none
        return _pointers(arrays, len(arrays if plan is None else plan.outputs))

    def rows(self, layer: int, arrays: Sequence[int]) -> ctypes.Array:
        """Return the addresses of the rows of a layer's messages for its pass.

        Raises:
            ValueError: There are not as many as the contraction reads.
        """
        return _pointers(arrays, self.contractions[layer].dim)


@dataclass(frozen=True)
class EdgeList:
    """A neighbor list: addresses and sizes. Rows are receivers, slots are candidates for edges."""

    n_nodes: int
    n_senders: int
    n_slots: int
    first: int
    """int64 [n_nodes + 1]"""
    node_atom: int
    """int32 [n_nodes]: row of the positions that is the receiver's"""
    slot_atom: int
    """int32 [n_slots]: row of the positions that is the sender's"""
    slot_node: int
    """int32 [n_slots]"""
    species: int
    """int32 [n_senders]"""


@dataclass(frozen=True)
class EdgeArrays:
    """The edges of one step: addresses of what the pass ``edges`` writes. See ms_edges."""

    count: int
    """int32 [n_nodes]"""
    sender: int
    """int32 [n_slots]"""
    row: int
    """int32 [n_slots]: row of the radial tables, pair * n_knots + knot"""
    t: int
    """Real [n_slots]: place between two knots, 0 to 1"""
    dir: int
    """Real [n_slots, 4]: unit vector of edge_vec, 1 / length"""
    grad: int
    """Real [n_slots, 3]: dE/d(edge_vec)"""


def _pointers(arrays: Sequence[int], expected: int) -> ctypes.Array:
    if len(arrays) != expected:
        raise ValueError(f"expected {expected} arrays, got {len(arrays)}")
    return (ctypes.c_void_p * expected)(*arrays)


class Passes(Protocol):
    """The passes. 0 stands for an array that is not there; ``tile`` is a range of receivers."""

    def edges(
        self, nodes: EdgeList, edges: EdgeArrays, x: int, node_energy: int, closest: int
    ) -> None:
        """Find the edges within r_max at positions ``x``; set ``grad`` and ``node_energy``."""

    def scatter(
        self, nodes: EdgeList, edges: EdgeArrays, table: int, density: int, out: int, norm: int
    ) -> None:
        """First layer: sum radial features times harmonics over each row."""

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
        """Add the first layer's gradient to ``grad``."""

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
        """Convolution of a later layer; ``out`` are its plan's output blocks."""

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
        """Add the convolution's gradients to ``grad`` and ``up_bar``."""

    def contract(
        self,
        layer: int,
        tile: tuple[int, int],
        species: int,
        coefs: int,
        msg: Sequence[int],
        out: int,
    ) -> None:
        """Symmetric contraction; ``msg`` are its rows [n, C]."""

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
        """Overwrite ``msg`` with its cotangent; ``dot`` [n_nodes] gets <msg_bar, msg>."""

    def forces(
        self,
        nodes: EdgeList,
        edges: EdgeArrays,
        forces: int,
        virial: int,
        receiver_virial: int,
        sender_virial: int,
    ) -> None:
        """Sum ``grad`` into float64 forces [n_senders, 3], virial [9], per-node virials [n, 9]."""
