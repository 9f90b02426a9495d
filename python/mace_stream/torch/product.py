"""The product basis: symmetric contraction of messages with themselves, then a linear layer.

For one element the contraction is a polynomial of the message components of each channel. Its
coefficients, generalised couplings U of the file times the element's weights, are folded at
load. A monomial is split into a left part and a right part, so that the polynomial of degree up
to four is ``sum_lr left_l W[m, l, r] right_r`` with monomials of degree up to two on either side:
one batched matrix product per element and an elementwise sum.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mace_stream.couplings import FeatureLayout, Irrep
from mace_stream.couplings.monomials import MAX_CORRELATION, MonomialSplit, by_monomial
from mace_stream.spec import LayerSpec
from mace_stream.torch.folding import Parameters
from mace_stream.torch.linear import IrrepLinear, SpeciesGroups

NODES_PER_PIECE = 64
"""On a CPU, monomials exist for this many nodes at a time."""


class Product(nn.Module):
    """Symmetric contraction, linear layer, and the skip connection."""

    def __init__(self, layer: LayerSpec, params: Parameters) -> None:
        super().__init__()
        layout_out = FeatureLayout.parse(layer.irreps_out)
        params = params.under("product")
        self.use_sc = layer.use_sc
        self.contraction = Contraction(layer, params)
        self.linear = IrrepLinear(layout_out, layout_out, params.under("linear"))

    def forward(self, message: Tensor, skip: Tensor | None, groups: SpeciesGroups) -> Tensor:
        """Map [n, dim_message, C] to [n, dim_out, C]."""
        feats = self.linear(self.contraction(message, groups))
        return feats + skip if self.use_sc and skip is not None else feats


class Contraction(nn.Module):
    """``sum_nu sum_k w_nu[z, k, c] U_nu[m, mu.., k] A_mu1 .. A_munu`` per node and channel."""

    def __init__(self, layer: LayerSpec, params: Parameters) -> None:
        super().__init__()
        if not 1 <= layer.correlation <= MAX_CORRELATION:
            raise ValueError(
                f"correlation: expected 1 to {MAX_CORRELATION}, got {layer.correlation};"
                " this version does not support it"
            )
        layout_in = FeatureLayout.parse(layer.irreps_message)
        layout_out = FeatureLayout.parse(layer.irreps_out)
        self.channels = layout_out.channels
        self.dim_out = layout_out.dim
        self.split = MonomialSplit(layout_in.dim, layer.correlation)
        self._pair_index = torch.from_numpy(self.split.pair_index)
        self._tables = [
            _OutputTable(irrep, self.split, layer, params) for irrep in layout_out.irreps
        ]
        self._dtype = params.dtype
        self._folded: dict[int, Tensor] = {}

    def forward(self, message: Tensor, groups: SpeciesGroups) -> Tensor:
        """Map [n, dim_message, C] to [n, dim_out, C]."""
        pieces = _pieces(groups, message.device)
        nodes = groups.gather(message).split([count for _, count in pieces])
        parts = [
            self._contract(part, self.fold(species, message.device))
            for (species, _), part in zip(pieces, nodes, strict=True)
        ]
        if not parts:
            return message.new_zeros(0, self.dim_out, self.channels) + 0 * message.sum()
        return groups.scatter(parts)

    def _contract(self, message: Tensor, weight: Tensor) -> Tensor:
        """Evaluate the polynomials of one element, ``weight`` [C, dim_out * n_left, n_right]."""
        left, right = _monomials(self.split, self._pair_index, message.permute(1, 2, 0))
        columns = (weight @ right.transpose(0, 1)).unflatten(1, (self.dim_out, -1))
        return (columns * left.transpose(0, 1)[:, None]).sum(2).permute(2, 1, 0)

    def fold(self, species: int, device: str | torch.device = "cpu") -> Tensor:
        """Coefficients of one element, [C, dim_out * n_left, n_right]; kept after the first use."""
        if species not in self._folded:
            tables = [table.fold(species) for table in self._tables]
            weight = torch.cat(tables).T.contiguous().unflatten(1, (-1, self.split.n_right))
            self._folded[species] = weight.to(device, self._dtype)
        return self._folded[species]


def _pieces(groups: SpeciesGroups, device: torch.device) -> list[tuple[int, int]]:
    """(species, number of nodes) of runs short enough for their monomials to stay in cache."""
    longest = NODES_PER_PIECE if device.type == "cpu" else None
    pieces = []
    for species, first, last in groups.segments:
        step = longest or last - first
        pieces += [(species, min(step, last - start)) for start in range(first, last, step)]
    return pieces


def _monomials(
    split: MonomialSplit, pair_index: Tensor, components: Tensor
) -> tuple[Tensor, Tensor]:
    """Split ``components`` [dim, C, n] into [n_left, C, n] and [n_right, C, n]."""
    variables = torch.cat([torch.ones_like(components[:1]), components])
    powers = [variables[:1], variables, None]
    if 2 in (split.left_degree, split.right_degree):
        first, second = pair_index.to(components.device)
        powers[2] = variables.index_select(0, first) * variables.index_select(0, second)
    return powers[split.left_degree], powers[split.right_degree]


class _OutputTable:
    """Couplings of one output irrep, gathered by monomial, and the weights of all elements."""

    def __init__(
        self, irrep: Irrep, split: MonomialSplit, layer: LayerSpec, params: Parameters
    ) -> None:
        params = params.under(str(irrep))
        self.size = irrep.dim * split.n_left * split.n_right
        self.channels = FeatureLayout.parse(layer.irreps_out).channels
        self.orders = []
        for nu in range(1, layer.correlation + 1):
            weights = params.tensor(f"weight.{nu}")
            indices, values = params.array(f"U.{nu}.indices"), params.array(f"U.{nu}.values")
            rows, couplings = by_monomial(indices, values, weights.shape[1], split)
            tables = torch.from_numpy(rows), torch.from_numpy(couplings)
            self.orders.append((*tables, weights))

    def fold(self, species: int) -> Tensor:
        """Coefficients [dim * n_left * n_right, C] of one element."""
        coefficients = torch.zeros(self.size, self.channels, dtype=torch.float64)
        for rows, couplings, weights in self.orders:
            mine = weights[species if len(weights) > 1 else 0]
            coefficients = coefficients.index_add(0, rows, couplings @ mine)
        return coefficients
