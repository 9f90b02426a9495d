"""The convolution: tensor product of neighbours with spherical harmonics, summed per receiver."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mace_stream.couplings import ConvPlan
from mace_stream.torch.geometry import EDGE_BLOCK, edge_receiver, padded_indptr

MODES = ("auto", "streaming", "standard")


def resolve_mode(mode: str) -> tuple[str, str]:
    """Return the mode that will run and the reason.

    Raises:
        ValueError: The mode is unknown.
        NotImplementedError: The mode cannot serve.
    """
    if mode not in MODES:
        raise ValueError(f"conv mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if mode == "streaming":
        raise NotImplementedError(
            "conv mode 'streaming' is not available yet: no streaming kernel is built for this"
            " device; use mode 'auto' or 'standard'"
        )
    return "standard", "plain torch: no kernel built for this device"


def conv(
    node_feats: Tensor,
    edge_attrs: Tensor,
    path_weights: Tensor,
    indptr: Tensor,
    sender: Tensor,
    plan: ConvPlan,
    mode: str = "auto",
) -> Tensor:
    """Sum every edge's message into its receiver. Differentiable twice, allocates per edge.

    Args:
        node_feats: ``[n_nodes, dim_in, channels]``.
        edge_attrs: Spherical harmonics ``[n_edges, dim_edge]``.
        path_weights: ``[n_edges, n_paths, channels]``.
        indptr: Row pointers ``[n_receivers + 1]``, int64. Rows whose lengths are all multiples of
            ``EDGE_BLOCK`` spare a copy. Empty rows, no rows and no edges are valid.
        sender: Node of every edge's sender ``[n_edges]``, int64.
        plan: The tables of this convolution.
        mode: ``auto``, ``streaming`` or ``standard``.

    Returns:
        ``[n_receivers, dim_out, channels]``; the row order is that of ``plan``.

    Raises:
        ValueError: An argument has the wrong shape, or the mode is unknown.
        NotImplementedError: ``mode`` is ``streaming``.
    """
    resolve_mode(mode)
    _check_shapes(node_feats, edge_attrs, path_weights, indptr, sender, plan)
    if bool((indptr % EDGE_BLOCK).any()):
        padded = padded_indptr(indptr, EDGE_BLOCK)
        shift = (padded - indptr)[edge_receiver(indptr)]
        place = torch.arange(len(sender), device=sender.device) + shift
        edge_attrs, path_weights, sender = (
            x.new_zeros(int(padded[-1]), *x.shape[1:]).index_copy(0, place, x)
            for x in (edge_attrs, path_weights, sender)
        )
        indptr = padded
    return _BlockedConv.apply(node_feats, edge_attrs, path_weights, indptr, sender, plan)


def _check_shapes(node_feats, edge_attrs, path_weights, indptr, sender, plan):  # noqa: ANN001, ANN202
    n_edges = len(sender)
    expected = {
        "node_feats": (node_feats, (len(node_feats), plan.dim_in, node_feats.shape[-1])),
        "edge_attrs": (edge_attrs, (n_edges, plan.dim_edge)),
        "path_weights": (path_weights, (n_edges, plan.n_paths, node_feats.shape[-1])),
        "indptr": (indptr, (max(1, len(indptr)),)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")


class _BlockedConv(torch.autograd.Function):
    """Sums over blocks of edges as batched matrix products, then over the blocks of a receiver.

    For path p and edge e, ``M_p[e, m_in, m_out] = sum_m_edge coupling_p Y[e, m_edge]`` is shared by
    all channels. A block's message is ``M_p^T (w_p x)`` with (edge, m_in) as the inner index, so
    no array of [n_edges, dim_out, channels] is formed. Nothing per edge is kept for the
    backward pass but the inputs; that pass is made of plain operations and so differentiable.
    """

    @staticmethod
    def forward(ctx, node_feats, edge_attrs, path_weights, indptr, sender, plan):  # noqa: ANN001, ANN205
        ctx.save_for_backward(node_feats, edge_attrs, path_weights, indptr, sender)
        ctx.plan = plan
        channels = node_feats.shape[-1]
        feats = node_feats.index_select(0, sender)
        matrices = _edge_matrices(edge_attrs, plan)
        n_blocks = len(sender) // EDGE_BLOCK
        partial = node_feats.new_empty(n_blocks, plan.dim_out, channels)
        for index, path in enumerate(plan.paths):
            weighted = feats[:, path.rows_in] * path_weights[:, index, None]
            partial[:, path.rows_out] = _blocks(matrices[index]).mT @ _blocks(weighted)
        return _sum_rows(partial, indptr // EDGE_BLOCK)

    @staticmethod
    def backward(ctx, message_bar):  # noqa: ANN001, ANN205
        node_feats, edge_attrs, path_weights, indptr, sender = ctx.saved_tensors
        plan = ctx.plan
        feats = node_feats.index_select(0, sender)
        matrices = _edge_matrices(edge_attrs, plan)
        block_bar = message_bar.index_select(0, edge_receiver(indptr // EDGE_BLOCK))
        feats_bar = {}
        weights_bar, matrices_bar = torch.empty_like(path_weights), []
        for index, path in enumerate(plan.paths):
            x, w = feats[:, path.rows_in], path_weights[:, index, None]
            path_bar = block_bar[:, path.rows_out]
            product_bar = (_blocks(matrices[index]) @ path_bar).view_as(x)
            weights_bar[:, index] = (product_bar * x).sum(1)
            matrices_bar.append(_blocks(x * w) @ path_bar.mT)
            if ctx.needs_input_grad[0]:
                key = (path.rows_in.start, path.rows_in.stop)
                before = feats_bar.get(key)
                feats_bar[key] = (
                    product_bar * w if before is None else torch.addcmul(before, product_bar, w)
                )
        attrs_bar = _edge_matrices_vjp(matrices_bar, edge_attrs, plan)
        node_bar = None
        if ctx.needs_input_grad[0]:
            node_bar = torch.zeros_like(node_feats)
            node_bar = node_bar.index_add(0, sender, _join_rows(feats_bar, feats))
        return node_bar, attrs_bar, weights_bar, None, None, None


def _blocks(per_edge: Tensor) -> Tensor:
    """View [n_edges, m_in, columns] as [n_blocks, EDGE_BLOCK * m_in, columns]."""
    n_blocks = len(per_edge) // EDGE_BLOCK
    return per_edge.unflatten(0, (n_blocks, EDGE_BLOCK)).flatten(1, 2)


@lru_cache(maxsize=64)
def _couplings(plan: ConvPlan, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Couplings of every path as matrices [m_edge, m_in * m_out]."""
    matrices = (path.coupling.transpose(1, 0, 2) for path in plan.paths)
    flat = (matrix.reshape(len(matrix), -1) for matrix in matrices)
    return [torch.from_numpy(matrix).to(device, dtype) for matrix in flat]


def _edge_matrices(edge_attrs: Tensor, plan: ConvPlan) -> list[Tensor]:
    """M_p [n_edges, m_in, m_out] of every path."""
    couplings = _couplings(plan, edge_attrs.dtype, edge_attrs.device)
    matrices = []
    for path, coupling in zip(plan.paths, couplings, strict=True):
        m_in, _, m_out = path.coupling.shape
        matrices.append((edge_attrs[:, path.rows_edge] @ coupling).unflatten(1, (m_in, m_out)))
    return matrices


def _edge_matrices_vjp(matrices_bar: list[Tensor], edge_attrs: Tensor, plan: ConvPlan) -> Tensor:
    """Cotangent of ``edge_attrs`` given those of M_p, in blocks."""
    couplings = _couplings(plan, edge_attrs.dtype, edge_attrs.device)
    by_rows: dict[tuple[int, int], Tensor] = {}
    for path, coupling, bar in zip(plan.paths, couplings, matrices_bar, strict=True):
        key = (path.rows_edge.start, path.rows_edge.stop)
        part = bar.reshape(len(edge_attrs), coupling.shape[1]) @ coupling.mT
        by_rows[key] = by_rows[key] + part if key in by_rows else part
    return _join_rows(by_rows, edge_attrs)


def _join_rows(by_rows: dict[tuple[int, int], Tensor], like: Tensor) -> Tensor:
    """Concatenate row blocks along dimension 1, zeros where no block lies."""
    parts, stop = [], 0
    for (first, last), part in sorted(by_rows.items(), key=lambda item: item[0]):
        parts += [torch.zeros_like(like[:, stop:first]), part]
        stop = last
    parts.append(torch.zeros_like(like[:, stop:]))
    return torch.cat([part for part in parts if part.shape[1]] or parts[:1], dim=1)


def _sum_rows(partial: Tensor, indptr: Tensor) -> Tensor:
    total = partial.new_zeros(len(indptr) - 1, *partial.shape[1:])
    return total.index_add_(0, edge_receiver(indptr), partial)
