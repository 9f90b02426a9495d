"""Real Wigner 3j symbols in the convention of e3nn: y is the polar axis, Frobenius norm one.

A symbol is fixed up to its sign. e3nn 0.4 ships a table whose signs follow no formula, and other
versions may differ, so a model's own symbols are read from its file; these serve checks.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import factorial, sqrt

import numpy as np

L_MAX = 6
"""Highest degree whose signs are known."""

_FLIPPED = frozenset(
    [(1, l, l) for l in range(2, 7)]  # noqa: E741  the field's name for a degree
    + [(3, 4, 6), (4, 4, 5), (4, 5, 6), (5, 5, 5), (5, 6, 6)]
)
"""Ascending degrees where e3nn 0.4.4's table has the other sign than the formula below."""


@cache
def wigner_3j(l1: int, l2: int, l3: int) -> np.ndarray:
    """Return the invariant tensor of three real irreps, shape ``[2l1+1, 2l2+1, 2l3+1]``.

    Exchanging two degrees exchanges two axes and multiplies by ``(-1)**(l1 + l2 + l3)``.

    Raises:
        ValueError: The degrees break the triangle rule, or one exceeds ``L_MAX``.
    """
    if not abs(l1 - l2) <= l3 <= l1 + l2:
        raise ValueError(f"wigner_3j: degrees {l1}, {l2}, {l3} break the triangle rule")
    if max(l1, l2, l3) > L_MAX:
        raise ValueError(f"wigner_3j: expected degrees up to {L_MAX}, got {l1}, {l2}, {l3}")
    order = sorted(range(3), key=[l1, l2, l3].__getitem__)
    ascending = tuple(sorted((l1, l2, l3)))
    odd = order in ([1, 0, 2], [0, 2, 1], [2, 1, 0])
    sign = (-1) ** sum(ascending) if odd else 1
    sign *= -1 if ascending in _FLIPPED else 1
    symbol = sign * _ascending_symbol(*ascending).transpose(np.argsort(order))
    symbol.setflags(write=False)
    return symbol


def _ascending_symbol(l1: int, l2: int, l3: int) -> np.ndarray:
    """Clebsch-Gordan coefficients of SU(2), carried to the real basis, of unit norm."""
    first, second, third = (_real_to_complex(degree) for degree in (l1, l2, l3))
    coupling = np.einsum("am,bn,cp,abc->mnp", first, second, third.conj(), _su2(l1, l2, l3)).real
    coupling /= np.linalg.norm(coupling)
    return np.where(np.abs(coupling) < 1e-14, 0.0, coupling)


def _real_to_complex(degree: int) -> np.ndarray:
    """Columns are real harmonics (m = -l..l) written in complex ones, with e3nn's phase (-i)^l."""
    basis = np.zeros((2 * degree + 1, 2 * degree + 1), dtype=complex)
    basis[degree, degree] = 1.0
    for m in range(1, degree + 1):
        sign = (-1) ** m
        basis[degree - m, [degree + m, degree - m]] = 1 / sqrt(2), -1j / sqrt(2)
        basis[degree + m, [degree + m, degree - m]] = sign / sqrt(2), 1j * sign / sqrt(2)
    return (-1j) ** degree * basis


def _su2(l1: int, l2: int, l3: int) -> np.ndarray:
    table = np.zeros((2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1))
    for m1 in range(-l1, l1 + 1):
        for m2 in range(-l2, l2 + 1):
            if abs(m1 + m2) <= l3:
                table[l1 + m1, l2 + m2, l3 + m1 + m2] = _clebsch_gordan(l1, m1, l2, m2, l3)
    return table


def _clebsch_gordan(l1: int, m1: int, l2: int, m2: int, l3: int) -> float:
    """<l1 m1 l2 m2 | l3 m1+m2> by Racah's sum, exact until the square root."""
    m3 = m1 + m2
    fact = factorial
    square = Fraction(
        (2 * l3 + 1) * fact(l3 + l1 - l2) * fact(l3 - l1 + l2) * fact(l1 + l2 - l3),
        fact(l1 + l2 + l3 + 1),
    )
    square *= fact(l3 + m3) * fact(l3 - m3)
    square *= fact(l1 - m1) * fact(l1 + m1) * fact(l2 - m2) * fact(l2 + m2)
    total = Fraction(0)
    for k in range(l1 + l2 - l3 + 1):
        terms = (k, l1 + l2 - l3 - k, l1 - m1 - k, l2 + m2 - k, l3 - l2 + m1 + k, l3 - l1 - m2 + k)
        if min(terms) >= 0:
            denominator = 1
            for term in terms:
                denominator *= fact(term)
            total += Fraction((-1) ** k, denominator)
    return float(total) * sqrt(square)
