"""Monomials of the symmetric contraction, split so that a polynomial is a matrix product."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np

MAX_CORRELATION = 4


class MonomialSplit:
    """Monomials of ``dim`` variables up to some degree, every one written as left times right.

    With one as an additional variable, number 0, all monomials up to degree two are products of
    two variables.
    """

    def __init__(self, dim: int, correlation: int) -> None:
        variables = range(dim + 1)
        pairs = list(combinations_with_replacement(variables, 2))
        self.pair_index = np.array(pairs).T
        """Factors of every pair of variables, [2, n_pairs]."""
        self.left_degree = 2 if correlation == MAX_CORRELATION else 1
        self.right_degree = min(2, correlation - 1)
        by_degree = [[()], [(v,) for v in variables], pairs]
        self._left_index = {key: k for k, key in enumerate(by_degree[self.left_degree])}
        self._right_index = {key: k for k, key in enumerate(by_degree[self.right_degree])}

    @property
    def n_left(self) -> int:
        """Number of left parts."""
        return len(self._left_index)

    @property
    def n_right(self) -> int:
        """Number of right parts."""
        return len(self._right_index)

    def place(self, monomial: tuple[int, ...]) -> int:
        """Index of a sorted monomial, of variables counted from 0, in [n_left, n_right]."""
        factors = [0] * (self.left_degree + self.right_degree - len(monomial))
        factors += [variable + 1 for variable in monomial]
        left, right = factors[self.right_degree :], factors[: self.right_degree]
        return self._left_index[tuple(left)] * self.n_right + self._right_index[tuple(right)]


def by_monomial(
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
