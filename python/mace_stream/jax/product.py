"""The product basis: symmetric contraction of messages with themselves, then a linear layer.

For one element the contraction is a polynomial of the message components of each channel. Its
coefficients are generalised couplings U of the file times the element's weights. A monomial is
split into a left part and a right part, so that the polynomial of degree up to four is
``sum_lr left_l W[m, l, r] right_r`` with monomials of degree up to two on either side: one batched
matrix product per block of nodes of one element, and an elementwise sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.couplings import FeatureLayout
from mace_stream.couplings.monomials import MAX_CORRELATION, MonomialSplit, by_monomial
from mace_stream.jax.folding import Parameters, Tree
from mace_stream.jax.linear import IrrepLinear, SpeciesGroups
from mace_stream.spec import LayerSpec


class Product:
    """Symmetric contraction, linear layer, and the skip connection."""

    def __init__(self, layer: LayerSpec, params: Parameters, kept: Sequence[int]) -> None:
        layout_out = FeatureLayout.parse(layer.irreps_out)
        params = params.under("product")
        self.use_sc = layer.use_sc
        self.contraction = Contraction(layer, params, kept)
        self.linear = IrrepLinear(layout_out, layout_out, params.under("linear"))
        self.parameters: Tree = {
            "contraction": self.contraction.parameters,
            "linear": self.linear.parameters,
        }

    def __call__(
        self, tree: Tree, message: Array, skip: Array | None, groups: SpeciesGroups
    ) -> Array:
        """Map [n, dim_message, C] to [n, dim_out, C]."""
        feats = self.contraction(tree["contraction"], message, groups)
        feats = self.linear(tree["linear"], feats)
        return feats + skip if self.use_sc and skip is not None else feats

    def fold(self, tree: Tree) -> Tree:
        """Return the tree with the contraction's coefficients in place of its weights."""
        return {**tree, "contraction": {"coefficients": self.contraction.fold(tree["contraction"])}}


class Contraction:
    """``sum_nu sum_k w_nu[z, k, c] U_nu[m, mu.., k] A_mu1 .. A_munu`` per node and channel."""

    def __init__(self, layer: LayerSpec, params: Parameters, kept: Sequence[int]) -> None:
        """Take the weights of the species ``kept``, in this order.

        Raises:
            ValueError: The correlation is not supported.
        """
        if not 1 <= layer.correlation <= MAX_CORRELATION:
            raise ValueError(
                f"correlation: expected 1 to {MAX_CORRELATION}, got {layer.correlation};"
                " this version does not support it"
            )
        layout_in = FeatureLayout.parse(layer.irreps_message)
        layout_out = FeatureLayout.parse(layer.irreps_out)
        self.dim_out, self.dtype = layout_out.dim, params.dtype
        self.n_species = 1 if layer.agnostic_product else len(kept)
        self.split = MonomialSplit(layout_in.dim, layer.correlation)
        self.dims = {str(irrep): irrep.dim for irrep in layout_out.irreps}
        self.parameters: Tree = {}
        self._couplings: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        species = np.array([0] if layer.agnostic_product else kept)
        for irrep in self.dims:
            for nu in range(1, layer.correlation + 1):
                weights, found = _order(params.under(irrep), nu, self.split)
                self.parameters[f"{irrep}.{nu}"] = weights[species]
                self._couplings[f"{irrep}.{nu}"] = found

    def __call__(self, tree: Tree, message: Array, groups: SpeciesGroups) -> Array:
        """Map [n, dim_message, C] to [n, dim_out, C], block after block."""
        folded = tree["coefficients"] if "coefficients" in tree else self.fold(tree)

        @jax.checkpoint
        def contract(block: tuple[Array, Array]) -> Array:
            row, nodes = block
            return self._contract(nodes, folded[row if self.n_species > 1 else 0])

        return groups.scatter(jax.lax.map(contract, (groups.row, groups.gather(message))))

    def _contract(self, message: Array, weight: Array) -> Array:
        """Evaluate the polynomials of one element, ``weight`` [C, dim_out * n_left, n_right]."""
        left, right = _monomials(self.split, message.transpose(1, 2, 0))
        columns = weight @ right.transpose(1, 0, 2)
        columns = columns.reshape(len(columns), self.dim_out, self.split.n_left, -1)
        return jnp.sum(columns * left.transpose(1, 0, 2)[:, None], axis=2).transpose(2, 1, 0)

    def fold(self, tree: Tree) -> Array:
        """Coefficients of all species kept, [n_species, C, dim_out * n_left, n_right].

        Computed in the weights' float64 and cast; differentiable.
        """
        tables = []
        for irrep, dim in self.dims.items():
            size = dim * self.split.n_left * self.split.n_right
            orders = [name for name in self._couplings if name.rpartition(".")[0] == irrep]
            channels = tree[orders[0]].shape[2]
            table = jnp.zeros((self.n_species, size, channels), tree[orders[0]].dtype)
            for name in orders:
                rows, couplings = self._couplings[name]
                table = table.at[:, rows].add(jnp.asarray(couplings) @ tree[name])
            tables.append(table)
        whole = jnp.concatenate(tables, axis=1).swapaxes(1, 2)
        return whole.reshape(*whole.shape[:2], -1, self.split.n_right).astype(self.dtype)


def _monomials(split: MonomialSplit, components: Array) -> tuple[Array, Array]:
    """Split ``components`` [dim, C, n] into [n_left, C, n] and [n_right, C, n]."""
    variables = jnp.concatenate([jnp.ones_like(components[:1]), components])
    powers = [variables[:1], variables, None]
    if 2 in (split.left_degree, split.right_degree):
        first, second = split.pair_index
        powers[2] = variables[first] * variables[second]
    return powers[split.left_degree], powers[split.right_degree]


def _order(
    params: Parameters, nu: int, split: MonomialSplit
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Weights [Z, K, C] of one degree, and its couplings gathered by monomial."""
    weights = params.array(f"weight.{nu}")
    indices, values = params.array(f"U.{nu}.indices"), params.array(f"U.{nu}.values")
    return weights, by_monomial(indices, values, weights.shape[1], split)
