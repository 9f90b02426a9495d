"""The product basis: symmetric contraction of messages with themselves, then a linear layer.

For one element the contraction is a polynomial of the message components of each channel. Its
coefficients, generalised couplings U of the file times the element's weights, are folded at
load. A monomial is split into a left part and a right part, so that the polynomial of degree up
to four is ``sum_lr left_l W[m, l, r] right_r`` with monomials of degree up to two on either side:
one batched matrix product per element and an elementwise sum.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import torch
from torch import Tensor, nn

from mace_stream.couplings import FeatureLayout, Irrep
from mace_stream.spec import LayerSpec
from mace_stream.torch.folding import Parameters
from mace_stream.torch.linear import IrrepLinear, SpeciesGroups

MAX_CORRELATION = 4


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
        self._tables = [
            _OutputTable(irrep, self.split, layer, params) for irrep in layout_out.irreps
        ]
        self._dtype = params.dtype
        self._folded: dict[int, Tensor] = {}

    def forward(self, message: Tensor, groups: SpeciesGroups) -> Tensor:
        """Map [n, dim_message, C] to [n, dim_out, C]."""
        components = groups.gather(message).permute(1, 2, 0).contiguous()
        left, right = self.split.monomials(components)
        parts = []
        for species, first, last in groups.segments:
            weight = self.fold(species, message.device)
            columns = weight @ right[..., first:last].transpose(0, 1)
            columns = columns.unflatten(1, (self.dim_out, -1))
            parts.append((columns * left[..., first:last].transpose(0, 1)[:, None]).sum(2))
        if not parts:
            return message.new_zeros(0, self.dim_out, self.channels) + 0 * message.sum()
        return groups.scatter(parts, dim=2).permute(2, 1, 0)

    def fold(self, species: int, device: str | torch.device = "cpu") -> Tensor:
        """Coefficients of one element, [C, dim_out * n_left, n_right]; kept after the first use."""
        if species not in self._folded:
            tables = [table.fold(species) for table in self._tables]
            weight = torch.from_numpy(np.concatenate(tables).reshape(-1, self.channels))
            weight = weight.T.contiguous().unflatten(1, (-1, self.split.n_right))
            self._folded[species] = weight.to(device, self._dtype)
        return self._folded[species]


class MonomialSplit:
    """Monomials of ``dim`` variables, every one written as left times right."""

    def __init__(self, dim: int, correlation: int) -> None:
        self.dim = dim
        self.correlation = correlation
        self.left_degree = 2 if correlation == 4 else 1
        self.right_degree = min(2, correlation - 1)
        pairs = list(combinations_with_replacement(range(dim), 2))
        self._pair_index = torch.tensor(pairs).T
        singles = [(mu,) for mu in range(dim)]
        left = singles + (pairs if self.left_degree == 2 else [])
        right = [()] + singles * (self.right_degree >= 1) + pairs * (self.right_degree == 2)
        self.left_index = {monomial: k for k, monomial in enumerate(left)}
        self.right_index = {monomial: k for k, monomial in enumerate(right)}

    @property
    def n_left(self) -> int:
        """Number of left parts."""
        return len(self.left_index)

    @property
    def n_right(self) -> int:
        """Number of right parts."""
        return len(self.right_index)

    def place(self, monomial: tuple[int, ...]) -> int:
        """Index of a sorted monomial in the flattened [n_left, n_right]."""
        cut = 2 if len(monomial) == MAX_CORRELATION else 1
        return self.left_index[monomial[:cut]] * self.n_right + self.right_index[monomial[cut:]]

    def monomials(self, components: Tensor) -> tuple[Tensor, Tensor]:
        """Split ``components`` [dim, C, n] into [n_left, C, n] and [n_right, C, n]."""
        left, right = [components], [torch.ones_like(components[:1])]
        if self.right_degree >= 1:
            right.append(components)
        if self.right_degree == 2:
            first, second = self._pair_index.to(components.device)
            pairs = components.index_select(0, first) * components.index_select(0, second)
            right.append(pairs)
            left += [pairs] if self.left_degree == 2 else []
        return torch.cat(left), torch.cat(right)


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
            weights = params.array(f"weight.{nu}")
            indices, values = params.array(f"U.{nu}.indices"), params.array(f"U.{nu}.values")
            rows, couplings = _by_monomial(indices, values, weights.shape[1], split)
            self.orders.append((rows, couplings, weights))

    def fold(self, species: int) -> np.ndarray:
        """Coefficients [dim * n_left * n_right, C] of one element."""
        coefficients = np.zeros((self.size, self.channels))
        for rows, couplings, weights in self.orders:
            coefficients[rows] += couplings @ weights[species if len(weights) > 1 else 0]
        return coefficients


def _by_monomial(
    indices: np.ndarray, values: np.ndarray, n_k: int, split: MonomialSplit
) -> tuple[np.ndarray, np.ndarray]:
    """Add up permutations of a monomial: rows of the flattened [m, left, right], and [rows, k]."""
    factors, inverse = np.unique(np.sort(indices[:, 1:-1], axis=1), axis=0, return_inverse=True)
    places = np.array([split.place(tuple(row)) for row in factors.tolist()], dtype=np.int64)
    row_of_value = indices[:, 0] * split.n_left * split.n_right + places[inverse.reshape(-1)]
    rows, inverse = np.unique(row_of_value, return_inverse=True)
    couplings = np.zeros((len(rows), n_k))
    np.add.at(couplings, (inverse.reshape(-1), indices[:, -1]), values)
    return rows, couplings
