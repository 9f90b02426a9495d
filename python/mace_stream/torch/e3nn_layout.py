"""Between e3nn's flat vectors (``mul_ir``) and the convolution's arrays."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mace_stream.couplings import ConvPlan
from mace_stream.couplings.tensor_product import first_places
from mace_stream.torch.conv import conv


class E3nnConv(nn.Module):
    """A convolution on e3nn's vectors: ``o3.TensorProduct`` and a sum over edges in one.

    The converters cost a copy each; a model that keeps ``[n, dim, channels]`` between its layers
    needs none of them. All are differentiable.

    Args:
        plan: From :meth:`ConvPlan.from_irreps`.
        mode: ``auto``, ``streaming`` or ``standard``.
        deterministic: As in :func:`mace_stream.torch.conv`.

    Raises:
        ValueError: The plan was not made from e3nn's instructions.
    """

    def __init__(self, plan: ConvPlan, mode: str = "auto", *, deterministic: bool = False) -> None:
        super().__init__()
        if plan.e3nn is None:
            raise ValueError("plan: expected one made by ConvPlan.from_irreps")
        self.plan, self.mode, self.deterministic = plan, mode, deterministic
        self.node_feats = Places(plan.e3nn.node_index, plan.e3nn.dim_in)
        self.path_weights = Places(plan.e3nn.weight_index, plan.e3nn.n_weights)
        self.message = Places(plan.e3nn.message_index, plan.e3nn.dim_out)

    def forward(
        self, nodes: Tensor, harmonics: Tensor, weights: Tensor, indptr: Tensor, sender: Tensor
    ) -> Tensor:
        """Return messages ``[n_receivers, irreps_out.dim]``.

        Args:
            nodes: ``[n_nodes, irreps_in.dim]``.
            harmonics: ``[n_edges, irreps_sh.dim]``, edges grouped by receiver.
            weights: ``[n_edges, weight_numel]``.
            indptr: Row pointers ``[n_receivers + 1]``, int64.
            sender: ``[n_edges]``, int32 or int64.
        """
        arrays = self.node_feats.gather(nodes), harmonics, self.path_weights.gather(weights)
        settings = {"mode": self.mode, "deterministic": self.deterministic}
        return self.message.add_up(conv(*arrays, indptr, sender, self.plan, **settings))


class Places(nn.Module):
    """Where the numbers of ``[n, rows, channels]`` stand in flat vectors ``[n, size]``."""

    def __init__(self, index: np.ndarray, size: int) -> None:
        super().__init__()
        self.shape, self.size = index.shape, size
        self.same_order = np.array_equal(index.reshape(-1), np.arange(size))
        self.has_ones = bool((index < 0).any())
        flat = np.where(index < 0, size, index).reshape(-1)
        first = np.flatnonzero(first_places(index))
        self.register_buffer("index", torch.as_tensor(flat), persistent=False)
        self.register_buffer("first", torch.as_tensor(first), persistent=False)

    def gather(self, flat: Tensor) -> Tensor:
        """Read ``[n, rows, channels]``; what stands for several channels is repeated."""
        self._check(flat, (self.size,))
        if self.same_order:
            return flat.unflatten(1, self.shape)
        if self.has_ones:
            flat = torch.cat([flat, flat.new_ones(len(flat), 1)], dim=1)
        return flat.index_select(1, self.index).unflatten(1, self.shape)

    def add_up(self, array: Tensor) -> Tensor:
        """Sum into ``[n, size]`` what belongs to one place; the adjoint of :meth:`gather`."""
        self._check(array, self.shape)
        array = array.flatten(1)
        if self.same_order:
            return array
        flat = array.new_zeros(len(array), self.size + self.has_ones)
        return flat.index_add(1, self.index, array)[:, : self.size]

    def pick(self, array: Tensor) -> Tensor:
        """Undo :meth:`gather`: every place from its first occurrence, zero where it has none."""
        self._check(array, self.shape)
        flat = array.new_zeros(len(array), self.size)
        values = array.flatten(1).index_select(1, self.first)
        return flat.index_copy(1, self.index[self.first], values)

    def put(self, flat: Tensor) -> Tensor:
        """Undo :meth:`add_up`: every place into its first occurrence, zero in the others."""
        self._check(flat, (self.size,))
        array = flat.new_zeros(len(flat), len(self.index))
        values = flat.index_select(1, self.index[self.first])
        return array.index_copy(1, self.first, values).unflatten(1, self.shape)

    def _check(self, array: Tensor, shape: tuple[int, ...]) -> None:
        if tuple(array.shape[1:]) != tuple(shape):
            raise ValueError(
                f"expected shape (n, {', '.join(map(str, shape))}), got {tuple(array.shape)}"
            )
