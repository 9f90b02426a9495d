"""Problems for the convolution in torch, on every device, and what to compare with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from mace_stream.couplings import ConvPlan
from mace_stream.torch.conv import conv, plain_conv

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NAMES = ("node_feats", "edge_attrs", "path_weights")
RAGGED = (3, 0, 11, 1, 0)
"""Edges per receiver."""
PATHS = {  # l_in, l_edge, l_out in weight order, from the irreps a model of that l_in has
    0: "000 011 022 033",
    1: "000 110 011 101 121 022 112 132 033 123",
    2: "000 110 220 011 101 121 211 231 022 112 132 202 222 033 123 213 233",
}


def natural(degree):
    return f"{degree}{'eo'[degree % 2]}"


def model_plan(l_in=1, channels=3, l_max=3):
    """The paths of a model whose features go up to ``l_in``."""
    triples = [tuple(map(int, text)) for text in PATHS[l_in].split()]
    return ConvPlan.from_irreps(
        "+".join(f"{channels}x{natural(degree)}" for degree in range(l_in + 1)),
        "+".join(natural(degree) for degree in range(l_max + 1)),
        "+".join(f"{channels}x{natural(out)}" for _, _, out in triples),
        [(a, b, k, "uvu", True) for k, (a, b, _) in enumerate(triples)],
    )


def small_plan(channels=1):
    """Degrees 0 and 1 on all sides: small enough for finite differences."""
    return ConvPlan.from_irreps(
        f"{channels}x0e+{channels}x1o",
        "0e+1o",
        f"{channels}x0e+{channels}x1o+{channels}x1o+{channels}x0e",
        [(a, b, k, "uvu", True) for k, (a, b) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)])],
    )


@dataclass(frozen=True)
class Problem:
    """A convolution's inputs and graph."""

    plan: ConvPlan
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    indptr: torch.Tensor
    sender: torch.Tensor

    def conv(self, *arrays, **settings):
        return conv(*(arrays or self.arrays), self.indptr, self.sender, self.plan, **settings)

    def plain(self, *arrays):
        return plain_conv(*(arrays or self.arrays), self.indptr, self.sender, self.plan)

    def to(self, dtype):
        return replace(self, arrays=tuple(array.to(dtype) for array in self.arrays))

    def leaves(self):
        return [array.clone().requires_grad_() for array in self.arrays]

    def numpy(self):
        """Arguments of the oracle."""
        arrays = [a.cpu().numpy() for a in (*self.arrays, self.indptr, self.sender)]
        return (*arrays, self.plan)


def problem(plan, rows=RAGGED, device="cpu", dtype=torch.float64, seed=0, ghosts=2):
    """Random inputs; the last ``ghosts`` nodes only send, repeated pairs occur."""
    generator = torch.Generator().manual_seed(seed)
    n_edges, n_nodes = sum(rows), len(rows) + ghosts
    shapes = (
        (n_nodes, plan.dim_in, plan.channels),
        (n_edges, plan.dim_edge),
        (n_edges, plan.n_paths, plan.channels),
    )
    arrays = tuple(torch.randn(s, generator=generator, dtype=dtype).to(device) for s in shapes)
    indptr = torch.tensor([0, *np.cumsum(rows)], dtype=torch.int64).to(device)
    sender = torch.randint(0, n_nodes, (n_edges,), generator=generator).to(device)
    return Problem(plan, arrays, indptr, sender)


def like(tensors, seed=1):
    """Random tensors of the same shapes."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device) for t in tensors
    )


def derivatives(function, leaves, seed=5):
    """Value, first derivatives along a random cotangent, and the second along random ones."""
    message = function(*leaves)
    (bar,) = (b.requires_grad_() for b in like([message], seed))
    first = torch.autograd.grad(message, leaves, bar, create_graph=True)
    total = sum((b * ct).sum() for b, ct in zip(first, like(first, seed + 1), strict=True))
    second = torch.autograd.grad(total, [*leaves, bar])
    return [t.detach() for t in (message, *first, *second)]


def gap(actual, expected):
    """Largest difference, relative to the largest entry."""
    assert actual.shape == expected.shape
    if actual.numel() == 0:
        return 0.0
    scale = max(expected.abs().max().item(), 1e-300)
    return ((actual - expected).abs().max() / scale).item()


def largest_gap(actual, expected):
    return max(gap(a, b) for a, b in zip(actual, expected, strict=True))


def assert_within_yardstick(actual, plain, exact, factor=2.0):
    """Let the kernel err at most ``factor`` times as much as plain code in the same precision.

    That is said of the root mean square. The largest error of one element moves with the order of
    sums, which atomics leave open in both, so that it may be as much again.
    """
    floor = torch.finfo(actual.dtype).eps * exact.abs().max().item()
    error, yardstick = (abs(values.double() - exact) for values in (actual, plain))
    allowed = factor * rms(yardstick) + floor, 2 * factor * yardstick.max().item() + floor
    found = rms(error), error.max().item()
    assert found[0] <= allowed[0], f"RMS error {found[0]:.2e}, allowed {allowed[0]:.2e}"
    assert found[1] <= allowed[1], f"largest error {found[1]:.2e}, allowed {allowed[1]:.2e}"


def rms(values):
    return values.square().mean().sqrt().item()
