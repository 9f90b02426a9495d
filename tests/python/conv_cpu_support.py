"""The core library's C face through ctypes, problems for it, and what to compare with."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import numpy as np
import torch
from test_couplings import harmonics, plan_of, unit_vectors

from mace_stream import reference
from mace_stream.couplings import ConvPlan
from mace_stream.torch.conv import plain_conv

RAGGED = [3, 0, 11, 1, 0, 37]
"""Edges per receiver."""


# ---- the C face ----


class Dims(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32)
        for name in ("dim_in", "dim_edge", "dim_out", "n_paths", "n_terms", "is_double")
    ]


class Graph(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_nodes", "n_receivers", "n_edges", "channels")),
        *(
            (name, ctypes.c_void_p)
            for name in ("indptr", "sender", "receiver", "sender_indptr", "edge_of")
        ),
    ]


class Place(ctypes.Structure):
    _fields_ = [("device", ctypes.c_int32), ("stream", ctypes.c_void_p)]


CPU = Place(-1, None)


def load(path):
    library = ctypes.CDLL(str(path))
    library.ms_conv_create.restype = ctypes.c_void_p
    for name in ("forward", "backward", "double_backward"):
        getattr(library, f"ms_conv_{name}").restype = ctypes.c_char_p
    return library


def pointer(array):
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


@dataclass(frozen=True)
class Problem:
    """A convolution's inputs and graph."""

    plan: ConvPlan
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray]
    indptr: np.ndarray
    sender: np.ndarray

    @property
    def receiver(self):
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    @property
    def message_shape(self):
        return len(self.indptr) - 1, self.plan.dim_out, self.arrays[0].shape[-1]

    def cast(self, dtype):
        return replace(self, arrays=tuple(array.astype(dtype) for array in self.arrays))


def create(library, dims, terms, values):
    """Address of a plan, or None."""
    terms = np.ascontiguousarray(terms, dtype=np.int32)
    values = np.ascontiguousarray(values, dtype=np.float64)
    return library.ms_conv_create(ctypes.byref(dims), pointer(terms), pointer(values))


def dims_of(plan, dtype=np.float64):
    is_double = int(dtype == np.float64)
    return Dims(plan.dim_in, plan.dim_edge, plan.dim_out, plan.n_paths, len(plan.values), is_double)


class Core:
    """One plan of the library and one graph; outputs are filled with NaN before every call."""

    def __init__(self, library, problem, *, any_order=None, by_sender=True):
        self.library, self.problem = library, problem
        self.dtype = problem.arrays[0].dtype
        plan = problem.plan
        dims = dims_of(plan, self.dtype)
        self.plan = ctypes.c_void_p(create(library, dims, plan.terms, plan.values))
        assert self.plan.value
        sender = problem.sender.astype(np.int32)
        self.order = np.arange(len(sender)) if any_order is None else any_order
        n_nodes = len(problem.arrays[0])
        counts = np.bincount(sender, minlength=n_nodes)
        self.keep = {
            "indptr": problem.indptr if any_order is None else None,
            "sender": sender[self.order],
            "receiver": None if any_order is None else problem.receiver.astype(np.int32)[any_order],
            "sender_indptr": np.concatenate([[0], np.cumsum(counts)]) if by_sender else None,
            "edge_of": np.argsort(sender[self.order], kind="stable") if by_sender else None,
        }
        self.graph = Graph(
            n_nodes,
            len(problem.indptr) - 1,
            len(sender),
            problem.arrays[0].shape[-1],
            *map(pointer, self.keep.values()),
        )

    def __del__(self):
        self.library.ms_conv_free(self.plan)

    def call(self, name, inputs, outputs):
        """Raises ValueError with the library's message."""
        function = getattr(self.library, f"ms_conv_{name}")
        pointers = map(pointer, (*inputs, *outputs))
        scratch = [] if name == "forward" else [None]
        error = function(self.plan, CPU, ctypes.byref(self.graph), *pointers, *scratch)
        if error:
            raise ValueError(error.decode())

    def poisoned(self, *shape):
        return np.full(shape, np.nan, self.dtype)

    def per_edge(self, array):
        """In the order the library gets the edges in."""
        return None if array is None else np.ascontiguousarray(array[self.order])

    def inputs(self, arrays):
        node, attrs, weights = arrays
        return node, self.per_edge(attrs), self.per_edge(weights)

    def back(self, array):
        """From the library's order of edges."""
        result = np.empty_like(array)
        result[self.order] = array
        return result

    def forward(self, arrays=None):
        message = self.poisoned(*self.problem.message_shape)
        self.call("forward", self.inputs(arrays or self.problem.arrays), [message])
        return message

    def backward(self, message_bar, nodes=True):
        bars = [self.poisoned(*array.shape) for array in self.problem.arrays]
        outputs = bars if nodes else [None, *bars[1:]]
        self.call("backward", (*self.inputs(self.problem.arrays), message_bar), outputs)
        return bars[0] if nodes else None, self.back(bars[1]), self.back(bars[2])

    def double_backward(self, message_bar, cts):
        grads = [self.poisoned(*array.shape) for array in self.problem.arrays]
        bar_grad = self.poisoned(*self.problem.message_shape)
        inputs = (*self.inputs(self.problem.arrays), message_bar, *self.inputs(cts))
        self.call("double_backward", inputs, [*grads, bar_grad])
        return grads[0], self.back(grads[1]), self.back(grads[2]), bar_grad


# ---- problems ----


def problem_of(plan, channels, rows, seed=0, ghosts=2):
    rng = np.random.default_rng(seed)
    n_edges, n_nodes = sum(rows), len(rows) + ghosts
    l_max = round(plan.dim_edge**0.5) - 1
    arrays = (
        rng.normal(size=(n_nodes, plan.dim_in, channels)),
        harmonics(unit_vectors(n_edges, seed), l_max) if n_edges else np.zeros((0, plan.dim_edge)),
        rng.normal(size=(n_edges, plan.n_paths, channels)),
    )
    indptr = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    return Problem(plan, arrays, indptr, rng.integers(0, n_nodes, n_edges))


def problem(l_in=1, rows=RAGGED, seed=0, channels=5):
    return problem_of(plan_of(l_in, channels), channels, rows, seed)


def random_normal(problem, shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(problem.arrays[0].dtype)


def cotangents(problem, seed=7):
    message_bar = random_normal(problem, problem.message_shape, seed)
    cts = [random_normal(problem, a.shape, seed + k) for k, a in enumerate(problem.arrays, 1)]
    return message_bar, cts


def oracle(problem, arrays=None):
    return reference.conv(*(arrays or problem.arrays), problem.indptr, problem.sender, problem.plan)


def torch_backward(problem, message_bar, cts=None):
    """Cotangents of plain torch; given ``cts``, the VJP of those."""
    leaves = [torch.tensor(array, requires_grad=True) for array in problem.arrays]
    graph = map(torch.as_tensor, (problem.indptr, problem.sender))
    bar = torch.tensor(message_bar, requires_grad=True)
    message = plain_conv(*leaves, *graph, problem.plan)
    bars = torch.autograd.grad(message, leaves, bar, create_graph=cts is not None)
    if cts is None:
        return [bar.numpy() for bar in bars]
    total = sum((bar * torch.as_tensor(ct)).sum() for bar, ct in zip(bars, cts, strict=True))
    return [grad.numpy() for grad in torch.autograd.grad(total, [*leaves, bar])]


def assert_equal(actual, expected, bound=1e-12):
    """To a relative bound of the largest entry."""
    assert actual.shape == expected.shape
    scale = np.abs(expected).max(initial=1e-300)
    np.testing.assert_allclose(actual / scale, expected / scale, rtol=0, atol=bound)
