"""Linear maps between features ``[n_nodes, dim, channels]``: one matrix product per irrep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mace_stream.couplings import FeatureLayout, Irrep, OutputBlock
from mace_stream.torch.folding import Parameters


@dataclass(frozen=True)
class SpeciesGroups:
    """Nodes grouped by species, so that species-dependent weights need no copy per node.

    ``order`` sorts the nodes and is None where one species fills them all; ``segments`` holds
    (species, first, last + 1) in that order.
    """

    order: Tensor | None
    segments: tuple[tuple[int, int, int], ...]

    @classmethod
    def build(cls, species: Tensor, n_species: int) -> SpeciesGroups:
        """Group ``species`` [n_nodes]. Synchronizes with the device once."""
        counts = torch.bincount(species, minlength=n_species).tolist()
        segments, start = [], 0
        for index, count in enumerate(counts):
            if count:
                segments.append((index, start, start + count))
                start += count
        order = torch.argsort(species, stable=True) if len(segments) > 1 else None
        return cls(order, tuple(segments))

    def gather(self, x: Tensor, dim: int = 0) -> Tensor:
        """Bring nodes into grouped order."""
        return x if self.order is None else x.index_select(dim, self.order)

    def scatter(self, parts: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Join consecutive parts of the grouped nodes and undo :meth:`gather`."""
        joined = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
        if self.order is None:
            return joined
        return joined.index_select(dim, torch.argsort(self.order))


class IrrepLinear(nn.Module):
    """Mix channels within each irrep; an irrep without weights comes out as zero.

    A weight several times as wide as the layout's channels gives that many rows per component, as
    the scalars and gates of block NL.
    """

    def __init__(
        self, layout_in: FeatureLayout, layout_out: FeatureLayout, params: Parameters
    ) -> None:
        super().__init__()
        self.rows = [_rows_or_none(layout_in, irrep, params) for irrep in layout_out.irreps]
        self.dims = [irrep.dim for irrep in layout_out.irreps]
        self.channels_out = layout_out.channels
        for k, irrep in enumerate(layout_out.irreps):
            if self.rows[k] is not None:
                self.register_buffer(f"weight_{k}", params.cast(params.linear(str(irrep))))

    def forward(self, x: Tensor) -> Tensor:
        """Map [n_nodes, dim_in, C_in] to [n_nodes, dim_out, C_out]."""
        parts = []
        for k, (rows, dim) in enumerate(zip(self.rows, self.dims, strict=True)):
            if rows is None:
                parts.append(x.new_zeros(len(x), dim, self.channels_out))
            else:
                parts.append(_in_rows(x[:, rows] @ getattr(self, f"weight_{k}"), self.channels_out))
        return _join(parts)


class ElementLinear(nn.Module):
    """As :class:`IrrepLinear`, with weights ``[Z, C_in, C_out]`` of each node's own element.

    Weights ``[C_in, C_out]`` in the file serve all elements.
    """

    def __init__(
        self, layout_in: FeatureLayout, layout_out: FeatureLayout, params: Parameters
    ) -> None:
        super().__init__()
        self.rows = [_rows_or_none(layout_in, irrep, params) for irrep in layout_out.irreps]
        self.dims = [irrep.dim for irrep in layout_out.irreps]
        self.channels_out = layout_out.channels
        for k, irrep in enumerate(layout_out.irreps):
            if self.rows[k] is not None:
                weight = params.linear(str(irrep))
                weight = weight[None] if weight.dim() == 2 else weight.transpose(0, 1)
                self.register_buffer(f"weight_{k}", params.cast(weight.contiguous()))

    def weight(self, k: int, species: int) -> Tensor:
        """Matrix [C_in, C_out] of output irrep ``k`` for one element."""
        weights = getattr(self, f"weight_{k}")
        return weights[species if len(weights) > 1 else 0]

    def forward(self, x: Tensor, groups: SpeciesGroups) -> Tensor:
        """Map [n_nodes, dim_in, C_in] to [n_nodes, dim_out, C_out]."""
        grouped = groups.gather(x)
        parts = [self._map(grouped[first:last], z) for z, first, last in groups.segments]
        return groups.scatter(parts) if parts else self._map(x, 0)

    def _map(self, x: Tensor, species: int) -> Tensor:
        parts = []
        for k, (rows, dim) in enumerate(zip(self.rows, self.dims, strict=True)):
            if rows is None:
                parts.append(x.new_zeros(len(x), dim, self.channels_out))
            else:
                parts.append(x[:, rows] @ self.weight(k, species))
        return _join(parts)


class MessageLinear(nn.Module):
    """The linear layer after a convolution: all paths that end in one irrep, mixed.

    Wide weights give several rows, as in :class:`IrrepLinear`.
    """

    def __init__(
        self, outputs: Sequence[OutputBlock], layout_out: FeatureLayout, params: Parameters
    ) -> None:
        super().__init__()
        blocks = {block.irrep: block for block in outputs}
        missing = [str(irrep) for irrep in layout_out.irreps if irrep not in blocks]
        if missing:
            raise ValueError(f"message irreps {missing}: no path of the convolution ends there")
        self.blocks = [blocks[irrep] for irrep in layout_out.irreps]
        self.channels_out = layout_out.channels
        for k, block in enumerate(self.blocks):
            self.register_buffer(f"weight_{k}", params.cast(params.linear(str(block.irrep))))

    def forward(self, message: Tensor) -> Tensor:
        """Map [n_receivers, dim_out, C_up] to [n_receivers, dim_message, C]."""
        parts = []
        for k, block in enumerate(self.blocks):
            rows = message[:, block.rows].unflatten(1, (block.irrep.dim, block.n_paths)).flatten(2)
            parts.append(_in_rows(rows @ getattr(self, f"weight_{k}"), self.channels_out))
        return _join(parts)


def _in_rows(x: Tensor, channels: int) -> Tensor:
    """[n, d, k * channels] as [n, d * k, channels]."""
    return x if x.shape[2] == channels else x.reshape(len(x), -1, channels)


def _rows_or_none(layout: FeatureLayout, irrep: Irrep, params: Parameters) -> slice | None:
    return layout.rows(irrep) if str(irrep) in params.names() else None


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
