"""The convolution by other packages, where they are installed, and by ours, behind one face.

An implementation takes node features, harmonics and weights in its own layout and returns messages
in its own layout. ``own`` brings our arrays into that layout, ``ours`` brings messages back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mace_stream.bench.cases import L_MAX, Problem, irrep_name
from mace_stream.couplings import Irrep
from mace_stream.torch.conv import conv, plain_conv

Arrays = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Implementation:
    """One way to do a convolution."""

    call: Callable[[Tensor, Tensor, Tensor], Tensor]
    own: Callable[[Tensor, Tensor, Tensor], Arrays]
    ours: Callable[[Tensor], Tensor]


def unchanged(*arrays: Tensor) -> Arrays:
    """Return our layout as it is."""
    return arrays


def streaming(problem: Problem, mode: str = "streaming") -> Implementation:
    """Our kernels."""

    def call(node_feats: Tensor, edge_attrs: Tensor, path_weights: Tensor) -> Tensor:
        arrays = node_feats, edge_attrs, path_weights
        return conv(*arrays, problem.indptr, problem.sender, problem.plan, mode)

    return Implementation(call, unchanged, lambda message: message)


def standard(problem: Problem) -> Implementation:
    """Our kernels for edges in any order."""
    return streaming(problem, "standard")


def plain(problem: Problem) -> Implementation:
    """Plain torch."""

    def call(node_feats: Tensor, edge_attrs: Tensor, path_weights: Tensor) -> Tensor:
        arrays = node_feats, edge_attrs, path_weights
        return plain_conv(*arrays, problem.indptr, problem.sender, problem.plan)

    return Implementation(call, unchanged, lambda message: message)


def oeq_atomic(problem: Problem, deterministic: bool = False) -> Implementation:
    """OpenEquivariance; layout ``mul_ir``, one block of outputs per path."""
    import openequivariance as oeq

    case = problem.case
    irreps_in = "+".join(f"{case.channels}x{irrep_name(degree)}" for degree in case.degrees)
    irreps_edge = "+".join(f"1x{irrep_name(degree)}" for degree in range(L_MAX + 1))
    irreps_out = "+".join(f"{case.channels}x{path.ir_out}" for path in problem.paths)
    blocks_in = [irrep_name(degree) for degree in case.degrees]
    instructions = [
        (blocks_in.index(path.ir_in), path.l_edge, index, "uvu", True)
        for index, path in enumerate(problem.paths)
    ]
    tensor_product = oeq.TPProblem(
        *(irreps_in, irreps_edge, irreps_out, instructions),
        shared_weights=False,
        internal_weights=False,
    )
    module = oeq.TensorProductConv(tensor_product, deterministic=deterministic)
    order = torch.argsort(problem.sender * len(problem.node_feats) + problem.receiver)
    permutation = order if deterministic else None

    def call(node_feats: Tensor, edge_attrs: Tensor, path_weights: Tensor) -> Tensor:
        graph = problem.receiver, problem.sender, permutation
        return module(node_feats, edge_attrs, path_weights, *graph)

    def own(node_feats: Tensor, edge_attrs: Tensor, path_weights: Tensor) -> Arrays:
        blocks = [
            node_feats[:, _rows(degree, case.degrees)].transpose(1, 2).flatten(1)
            for degree in case.degrees
        ]
        return torch.cat(blocks, 1), edge_attrs, path_weights.flatten(1)

    return Implementation(call, own, lambda message: _from_paths(message, problem, "mul_ir"))


def oeq_deterministic(problem: Problem) -> Implementation:
    """OpenEquivariance without atomics."""
    return oeq_atomic(problem, deterministic=True)


def cueq(problem: Problem) -> Implementation:
    """cuEquivariance, method ``uniform_1d``; layout ``ir_mul``."""
    import cuequivariance as cue
    import cuequivariance_ops_torch  # noqa: F401  without it the naive method would run
    import cuequivariance_torch as cuet

    case = problem.case
    irreps_in = "+".join(f"{case.channels}x{irrep_name(degree)}" for degree in case.degrees)
    harmonics = "+".join(f"1x{irrep_name(degree)}" for degree in range(L_MAX + 1))
    targets = "+".join(f"1x{irrep_name(degree)}" for degree in range(L_MAX + 1))
    descriptor = cue.descriptors.channelwise_tensor_product(
        cue.Irreps("O3", irreps_in), cue.Irreps("O3", harmonics), cue.Irreps("O3", targets)
    )
    polynomial = descriptor.flatten_coefficient_modes().squeeze_modes().polynomial
    dtype = problem.node_feats.dtype
    module = cuet.SegmentedPolynomial(polynomial, math_dtype=dtype, method="uniform_1d").cuda()

    def call(node_feats: Tensor, edge_attrs: Tensor, path_weights: Tensor) -> Tensor:
        inputs = [path_weights, node_feats, edge_attrs]
        return module(inputs, {1: problem.sender}, {0: node_feats}, {0: problem.receiver})[0]

    def own(node_feats: Tensor, edge_attrs: Tensor, path_weights: Tensor) -> Arrays:
        return node_feats.flatten(1), edge_attrs, path_weights.flatten(1)

    return Implementation(call, own, lambda message: _from_paths(message, problem, "ir_mul"))


OURS = {"streaming": streaming, "standard": standard}
PEERS = {
    "oeq": {"oeq_atomic": oeq_atomic, "oeq_deterministic": oeq_deterministic},
    "cueq": {"cueq": cueq},
    "plain": {"plain": plain},
}


def _rows(degree: int, degrees: tuple[int, ...]) -> slice:
    start = sum(2 * lower + 1 for lower in degrees if lower < degree)
    return slice(start, start + 2 * degree + 1)


def _from_paths(message: Tensor, problem: Problem, layout: str) -> Tensor:
    """Rows of our plan from flat blocks, one per path."""
    channels = problem.case.channels
    ours = message.new_empty(len(message), problem.plan.dim_out, channels)
    start = 0
    for path, block in zip(problem.paths, problem.plan.paths, strict=True):
        dim = Irrep.parse(path.ir_out).dim
        part = message[:, start : start + dim * channels]
        shaped = part.unflatten(1, (dim, channels) if layout == "ir_mul" else (channels, dim))
        ours[:, block.rows_out] = shaped if layout == "ir_mul" else shaped.transpose(1, 2)
        start += dim * channels
    return ours
