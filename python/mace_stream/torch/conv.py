"""The convolution: tensor product of neighbours with spherical harmonics, summed per receiver."""

from __future__ import annotations

import torch
from torch import Tensor

from mace_stream.couplings import ConvPlan
from mace_stream.torch.conv_derivatives import convolve
from mace_stream.torch.ops import kernel_number

MODES = ("auto", "streaming", "standard")


def resolve_mode(mode: str) -> tuple[str, str]:
    """Return the mode that will run and the reason.

    Raises:
        ValueError: The mode is unknown.
    """
    if mode not in MODES:
        raise ValueError(f"conv mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if mode == "standard":
        return "standard", "asked for: edges in any order, sums by atomics"
    reason = "asked for" if mode == "streaming" else "chosen: every path keeps its channels (uvu)"
    return "streaming", f"{reason}; a receiver's edges are summed in registers"


def conv(
    node_feats: Tensor,
    edge_attrs: Tensor,
    path_weights: Tensor,
    indptr: Tensor,
    sender: Tensor,
    plan: ConvPlan,
    mode: str = "auto",
    *,
    deterministic: bool = False,
) -> Tensor:
    """Sum every edge's message into its receiver, on the arrays' device.

    First and second derivatives are kernels too; the third is refused. Results repeat bit for bit
    on a CPU, and on CUDA in mode ``streaming`` but for the cotangent of ``node_feats``.

    Args:
        node_feats: ``[n_nodes, dim_in, channels]``, float32 or float64.
        edge_attrs: Spherical harmonics ``[n_edges, dim_edge]``.
        path_weights: ``[n_edges, n_paths, channels]``.
        indptr: Row pointers ``[n_receivers + 1]``, int64; receivers are the first nodes. Empty
            rows, no rows and no edges are valid.
        sender: Node of every edge's sender ``[n_edges]``, int32 or int64.
        plan: The tables of this convolution.
        mode: ``auto``, ``streaming`` or ``standard``.
        deterministic: Sum the cotangent of ``node_feats`` by sender instead of by atomics.

    Returns:
        ``[n_receivers, dim_out, channels]``; the row order is that of ``plan``.

    Raises:
        ValueError: An argument has the wrong shape or dtype, or the mode is unknown.
    """
    chosen, _ = resolve_mode(mode)
    _check(node_feats, edge_attrs, path_weights, indptr, sender, plan)
    n_receivers = indptr.shape[0] - 1
    rows, receiver = indptr, None
    if chosen == "standard":
        rows, receiver = None, edge_receiver(indptr)
    kernel = kernel_number(plan, node_feats.dtype)
    arrays = node_feats, edge_attrs, path_weights
    return convolve(*arrays, rows, sender, receiver, n_receivers, kernel, deterministic)


def plain_conv(
    node_feats: Tensor,
    edge_attrs: Tensor,
    path_weights: Tensor,
    indptr: Tensor,
    sender: Tensor,
    plan: ConvPlan,
) -> Tensor:
    """Do the same in plain torch: slow, but differentiable any number of times.

    The yardstick of the kernels' errors; arguments as those of :func:`conv`.
    """
    receiver = edge_receiver(indptr)
    feats = node_feats[sender]
    message = node_feats.new_zeros(len(indptr) - 1, plan.dim_out, node_feats.shape[-1])
    for index, path in enumerate(plan.paths):
        coupling = torch.as_tensor(path.coupling, dtype=feats.dtype, device=feats.device)
        weighted = feats[:, path.rows_in] * path_weights[:, index, None]
        harmonics = edge_attrs[:, path.rows_edge]
        parts = torch.einsum("imo,em,eic->eoc", coupling, harmonics, weighted)
        rows = torch.arange(plan.dim_out, device=feats.device)[path.rows_out]
        message = message.index_put((receiver[:, None], rows), parts, accumulate=True)
    return message


def edge_receiver(indptr: Tensor) -> Tensor:
    """Return the row of every edge, shape ``[n_edges]``."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff())


def _check(
    node_feats: Tensor,
    edge_attrs: Tensor,
    path_weights: Tensor,
    indptr: Tensor,
    sender: Tensor,
    plan: ConvPlan,
) -> None:
    n_edges, channels = sender.shape[0], node_feats.shape[-1]
    expected = {
        "node_feats": (node_feats, (node_feats.shape[0], plan.dim_in, channels)),
        "edge_attrs": (edge_attrs, (n_edges, plan.dim_edge)),
        "path_weights": (path_weights, (n_edges, plan.n_paths, channels)),
        "indptr": (indptr, (max(1, indptr.shape[0]),)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
        if tensor.device != node_feats.device:
            raise ValueError(f"{name}: expected on {node_feats.device}, got {tensor.device}")
    for name, tensor in (("edge_attrs", edge_attrs), ("path_weights", path_weights)):
        if tensor.dtype != node_feats.dtype:
            raise ValueError(f"{name}: expected {node_feats.dtype}, got {tensor.dtype}")
    if indptr.dtype != torch.int64:
        raise ValueError(f"indptr: expected torch.int64, got {indptr.dtype}")
