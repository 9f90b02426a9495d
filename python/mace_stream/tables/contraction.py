"""The symmetric contraction as one polynomial of the message per output row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mace_stream.couplings import FeatureLayout, Irrep
from mace_stream.kernels.inference import Contraction
from mace_stream.spec import LayerSpec

ZERO = 64
"""Permutations that cancel leave less than this many rounding errors of the largest coupling."""


def contraction_terms(
    layer: LayerSpec, tensors: Mapping[str, np.ndarray], prefix: str, species: Sequence[int]
) -> tuple[Contraction, np.ndarray]:
    """Add up permutations of each monomial and fold the weights of every species in.

    ``sum_nu sum_k w_nu[z, k, c] U_nu[m, mu.., k] A_mu1 .. A_munu`` has one term for every output
    row m and every set of factors. Terms are ordered by output row, then by factors, shorter
    first, so that those which share leading factors stand together.

    Args:
        layer: The layer; its output irreps give the order of the rows.
        tensors: The numbers of a model file.
        prefix: Of the layer's product, such as ``layers.0.product.``
        species: Elements that are present, as indices into the model's.

    Returns:
        The terms, and their coefficients [S, K, C] in float64.
    """
    message = FeatureLayout.parse(layer.irreps_message)
    out = FeatureLayout.parse(layer.irreps_out)
    blocks = [
        _block_terms(layer, irrep, out.rows(irrep).start, tensors, f"{prefix}{irrep}.", species)
        for irrep in out.irreps
    ]
    terms = np.concatenate([block[0] for block in blocks])
    coefs = np.concatenate([block[1] for block in blocks], axis=1)
    order = np.lexsort(terms.T[::-1])
    terms = np.ascontiguousarray(terms[order], dtype=np.int32)
    return Contraction(terms, message.dim, out.dim), np.ascontiguousarray(coefs[:, order])


def _block_terms(
    layer: LayerSpec,
    irrep: Irrep,
    first_row: int,
    tensors: Mapping[str, np.ndarray],
    prefix: str,
    species: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Terms [K, 1 + correlation] and coefficients [S, K, C] of one output irrep."""
    terms, coefs = [], []
    for nu in range(1, layer.correlation + 1):
        weights = np.asarray(tensors[f"{prefix}weight.{nu}"], dtype=np.float64)
        weights = weights[list(species) if len(weights) > 1 else [0] * len(species)]
        indices = np.asarray(tensors[f"{prefix}U.{nu}.indices"], dtype=np.int64)
        values = np.asarray(tensors[f"{prefix}U.{nu}.values"])
        monomials, couplings = _add_permutations(indices, values, weights.shape[1])
        rows = np.full((len(monomials), 1 + layer.correlation), -1)
        rows[:, : 1 + nu] = monomials
        rows[:, 0] += first_row
        terms.append(rows)
        coefs.append(np.einsum("tk,skc->stc", couplings, weights))
    return np.concatenate(terms), np.concatenate(coefs, axis=1)


def _add_permutations(
    indices: np.ndarray, values: np.ndarray, n_k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Monomials (component, sorted factors) [n, 1 + nu] and their couplings [n, n_k]."""
    monomial = np.concatenate([indices[:, :1], np.sort(indices[:, 1:-1], axis=1)], axis=1)
    monomials, place = np.unique(monomial, axis=0, return_inverse=True)
    couplings = np.zeros((len(monomials), n_k))
    np.add.at(couplings, (place.reshape(-1), indices[:, -1]), values)
    smallest = ZERO * np.finfo(values.dtype).eps * np.abs(values).max(initial=0.0)
    kept = np.abs(couplings).max(axis=1, initial=0.0) > smallest
    return monomials[kept], couplings[kept]
