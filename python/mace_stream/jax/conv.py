"""The convolution: tensor product of neighbours with spherical harmonics, summed per receiver."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from mace_stream.couplings import ConvPlan, resolve_mode
from mace_stream.couplings.blocks import ProductBlock
from mace_stream.jax import ops
from mace_stream.kernels.conv_kernel import kernel_name


def conv(
    node_feats: ArrayLike,
    edge_attrs: ArrayLike,
    path_weights: ArrayLike,
    indptr: ArrayLike,
    sender: ArrayLike,
    plan: ConvPlan,
    mode: str = "auto",
    *,
    deterministic: bool = False,
) -> Array:
    """Sum every edge's message into its receiver, on the device that JAX chose.

    Works under ``jit``, ``grad``, ``jvp``, ``vmap`` (one call after the other) and ``checkpoint``;
    values, row pointers and senders may change without a new compilation, shapes may not. First and
    second derivatives are kernels too; the third is refused. Results repeat bit for bit on a CPU,
    and on CUDA in mode ``streaming`` but for the cotangent of ``node_feats``. Compiled functions
    hold the plan's address: they cannot be exported to another process. Where the instructions of
    ``plan`` mix channels, all is plain JAX and differentiable at will.

    Args:
        node_feats: ``[n_nodes, dim_in, channels]``, float32, or float64 under ``jax_enable_x64``.
        edge_attrs: Spherical harmonics ``[n_edges, dim_edge]``.
        path_weights: ``[n_edges, n_paths, channels]``.
        indptr: Row pointers ``[n_receivers + 1]``, int32 or int64; receivers are the first nodes.
            Empty rows, no rows and no edges are valid. Every edge belongs to a row: edges that only
            pad an array go to some receiver, with weights of zero.
        sender: Node of every edge's sender ``[n_edges]``, int32 or int64.
        plan: The tables of this convolution.
        mode: ``auto``, ``streaming`` or ``standard``.
        deterministic: Sum the cotangent of ``node_feats`` by sender instead of by atomics.

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
    inputs = [jnp.asarray(x) for x in (node_feats, edge_attrs, path_weights, indptr, sender)]
    _check(*inputs, plan)
    if plan.products:
        return plain_conv(*inputs, plan)
    *arrays, indptr, sender = inputs
    rows, receiver = indptr, ops.absent(jnp.int32)
    if chosen == "standard":
        rows, receiver = ops.absent(jnp.int32), ops.edge_receiver(indptr, len(sender))
    kernel = kernel_name(plan, arrays[0].dtype.name)
    settings = ops.Settings(len(indptr) - 1, kernel, deterministic)
    return ops.conv_forward(*arrays, rows, sender.astype(jnp.int32), receiver, settings)


def plain_conv(
    node_feats: ArrayLike,
    edge_attrs: ArrayLike,
    path_weights: ArrayLike,
    indptr: ArrayLike,
    sender: ArrayLike,
    plan: ConvPlan,
) -> Array:
    """Do the same in plain JAX: slow, but differentiable any number of times.

    The yardstick of the kernels' errors; arguments as those of :func:`conv`.
    """
    inputs = [jnp.asarray(x) for x in (node_feats, edge_attrs, path_weights, indptr, sender)]
    node_feats, edge_attrs, path_weights, indptr, sender = inputs
    receiver = ops.edge_receiver(indptr, len(sender))
    feats = node_feats[sender]
    message = jnp.zeros((len(indptr) - 1, plan.dim_out, node_feats.shape[-1]), feats.dtype)
    for index, path in enumerate(plan.paths):
        coupling = jnp.asarray(path.coupling, feats.dtype)
        weighted = feats[:, path.rows_in] * path_weights[:, index, None]
        harmonics = edge_attrs[:, path.rows_edge]
        parts = jnp.einsum(
            "imo,em,eic->eoc", coupling, harmonics, weighted, precision=jax.lax.Precision.HIGHEST
        )
        message = message.at[receiver, path.rows_out].add(parts)
    for product in plan.products:
        parts = _multiply(product, feats, edge_attrs, path_weights)
        message = message.at[receiver, product.rows_out].add(parts)
    return message


def _multiply(product: ProductBlock, feats: Array, edge_attrs: Array, path_weights: Array) -> Array:
    """Messages of all edges ``[n_edges, mul_out * dim_out, 1]``, one batched product per edge."""
    coupling, n_edges = jnp.asarray(product.coupling, feats.dtype), len(feats)
    mul_in, mul_edge, _ = product.muls
    dim_in, dim_edge, _ = product.coupling.shape
    feats = feats[:, product.rows_in, 0].reshape(n_edges, mul_in, dim_in)
    harmonics = edge_attrs[:, product.rows_edge].reshape(n_edges, mul_edge, dim_edge)
    weights = path_weights[:, product.rows_weight, 0].reshape(n_edges, *product.weight_shape)
    exactly = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    coupled = exactly("imo,evm,eui->euvo", coupling, harmonics, feats)
    equation = "euvw,euvo->ewo" if product.mode == "uvw" else "euv,euvo->euo"
    n_rows = product.rows_out.stop - product.rows_out.start
    return exactly(equation, weights, coupled).reshape(n_edges, n_rows, 1)


def _check(
    node_feats: Array,
    edge_attrs: Array,
    path_weights: Array,
    indptr: Array,
    sender: Array,
    plan: ConvPlan,
) -> None:
    n_edges, channels = sender.size, plan.channels
    n_nodes = node_feats.shape[0] if node_feats.ndim else 0
    expected = {
        "node_feats": (node_feats, (n_nodes, plan.dim_in, channels)),
        "edge_attrs": (edge_attrs, (n_edges, plan.dim_edge)),
        "path_weights": (path_weights, (n_edges, plan.n_paths, channels)),
        "indptr": (indptr, (max(1, indptr.size),)),
        "sender": (sender, (n_edges,)),
    }
    for name, (array, shape) in expected.items():
        if array.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
    for name, array in (("edge_attrs", edge_attrs), ("path_weights", path_weights)):
        if array.dtype != node_feats.dtype:
            raise ValueError(f"{name}: expected {node_feats.dtype}, got {array.dtype}")
    for name, array in (("indptr", indptr), ("sender", sender)):
        if array.dtype not in (jnp.int32, jnp.int64):
            raise ValueError(f"{name}: expected int32 or int64, got {array.dtype}")
