"""The convolution: tensor product of neighbours with spherical harmonics, summed per receiver."""

from __future__ import annotations

import torch
from torch import Tensor

from mace_stream.couplings import MODES, ConvPlan, resolve_mode
from mace_stream.couplings.blocks import ProductBlock
from mace_stream.kernels.conv_kernel import kernel_name
from mace_stream.torch.conv_derivatives import convolve

__all__ = ["MODES", "conv", "edge_receiver", "plain_conv", "resolve_mode"]


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
    on a CPU, and on CUDA in mode ``streaming`` but for the cotangent of ``node_feats``. Where the
    instructions of ``plan`` mix channels, all is plain torch and differentiable at will.

    Args:
        node_feats: ``[n_nodes, dim_in, channels]``, float32 or float64.
        edge_attrs: Spherical harmonics ``[n_edges, dim_edge]``.
        path_weights: ``[n_edges, n_paths, channels]``.
        indptr: Row pointers ``[n_receivers + 1]``, int64; receivers are the first nodes. Empty
            rows, no rows and no edges are valid. The last is the number of edges.
        sender: Node of every edge's sender ``[n_edges]``, int32 or int64. Values are checked on a
            CPU only.
        plan: The tables of this convolution.
        mode: ``auto``, ``streaming`` or ``standard``.
        deterministic: Sum the cotangent of ``node_feats`` by sender instead of by atomics, so
            that everything repeats bit for bit.

    Returns:
        ``[n_receivers, dim_out, channels]``; the row order is that of ``plan``.

    Raises:
        ValueError: An argument has the wrong shape or dtype, or the mode is unknown or cannot
            serve this plan.
    """
    chosen, reason = resolve_mode(mode, plan)
    if deterministic and chosen == "standard":
        raise ValueError(
            f"deterministic: expected False in mode standard ({reason}), whose sums take any order"
        )
    _check(node_feats, edge_attrs, path_weights, indptr, sender, plan)
    if plan.products:
        return plain_conv(node_feats, edge_attrs, path_weights, indptr, sender, plan)
    n_receivers = indptr.shape[0] - 1
    rows, receiver = indptr, None
    if chosen == "standard":
        rows, receiver = None, edge_receiver(indptr, sender.shape[0])
    kernel = kernel_name(plan, str(node_feats.dtype).removeprefix("torch."))
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
    receiver = edge_receiver(indptr, sender.shape[0])
    feats = node_feats[sender]
    message = node_feats.new_zeros(len(indptr) - 1, plan.dim_out, node_feats.shape[-1])
    rows = torch.arange(plan.dim_out, device=feats.device)
    for path, weights in zip(plan.paths, path_weights.unbind(1), strict=False):
        coupling = torch.as_tensor(path.coupling, dtype=feats.dtype, device=feats.device)
        matrices = torch.tensordot(edge_attrs[:, path.rows_edge], coupling, ([1], [1]))
        weighted = feats[:, path.rows_in] * weights[:, None]
        pairs = zip(matrices.unbind(1), weighted.unbind(1), strict=True)
        parts = sum(column[..., None] * row[:, None] for column, row in pairs)
        message = message.index_add(1, rows[path.rows_out], _summed(parts, receiver, message))
    for product in plan.products:
        parts = _multiply(product, feats, edge_attrs, path_weights)
        message = message.index_add(1, rows[product.rows_out], _summed(parts, receiver, message))
    return message


def _summed(parts: Tensor, receiver: Tensor, message: Tensor) -> Tensor:
    """Sum the edges of every receiver."""
    sums = parts.new_zeros(len(message), *parts.shape[1:])
    return sums.index_add(0, receiver, parts)


def _multiply(
    product: ProductBlock, feats: Tensor, edge_attrs: Tensor, path_weights: Tensor
) -> Tensor:
    """Messages of all edges ``[n_edges, mul_out * dim_out, 1]``, one batched product per edge."""
    coupling = torch.as_tensor(product.coupling, dtype=feats.dtype, device=feats.device)
    mul_in, mul_edge, _ = product.muls
    feats = feats[:, product.rows_in, 0].unflatten(1, (mul_in, -1))
    harmonics = edge_attrs[:, product.rows_edge].unflatten(1, (mul_edge, -1))
    weights = path_weights[:, product.rows_weight, 0].unflatten(1, product.weight_shape)
    coupled = torch.einsum("imo,evm,eui->euvo", coupling, harmonics, feats)
    equation = "euvw,euvo->ewo" if product.mode == "uvw" else "euv,euvo->euo"
    return torch.einsum(equation, weights, coupled).flatten(1)[..., None]


def edge_receiver(indptr: Tensor, n_edges: int | None = None) -> Tensor:
    """Return the row of every edge, shape ``[n_edges]``.

    Waits for the device unless the number of edges is given.
    """
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff(), output_size=n_edges)


def _check(
    node_feats: Tensor,
    edge_attrs: Tensor,
    path_weights: Tensor,
    indptr: Tensor,
    sender: Tensor,
    plan: ConvPlan,
) -> None:
    floats = {"node_feats": node_feats, "edge_attrs": edge_attrs, "path_weights": path_weights}
    n_edges = sender.shape[0]
    shapes = {
        "node_feats": (node_feats.shape[0], plan.dim_in, plan.channels),
        "edge_attrs": (n_edges, plan.dim_edge),
        "path_weights": (n_edges, plan.n_paths, plan.channels),
        "indptr": (max(1, indptr.shape[0]),),
        "sender": (n_edges,),
    }
    for name, tensor in (floats | {"indptr": indptr, "sender": sender}).items():
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"{name}: expected shape {shapes[name]}, got {tuple(tensor.shape)}")
        if tensor.device != node_feats.device:
            raise ValueError(f"{name}: expected on {node_feats.device}, got {tensor.device}")
    for name, tensor in floats.items():
        if tensor.dtype != node_feats.dtype:
            raise ValueError(f"{name}: expected {node_feats.dtype}, got {tensor.dtype}")
    if indptr.dtype != torch.int64:
        raise ValueError(f"indptr: expected torch.int64, got {indptr.dtype}")
    if sender.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"sender: expected torch.int32 or torch.int64, got {sender.dtype}")
