"""Real spherical harmonics in e3nn's order and "component" normalisation, y the polar axis."""

from __future__ import annotations

from math import factorial, sqrt
from typing import TypeVar

Array = TypeVar("Array")


def spherical_harmonics(x: Array, y: Array, z: Array, l_max: int) -> list[Array]:
    """Return the ``(l_max + 1)**2`` components of unit vectors, degree by degree, m from -l to l.

    Only sums and products of ``x``, ``y``, ``z`` are formed, so any array type will do: NumPy real
    or complex, or torch with gradients. ``sum_m Y_lm**2 = 2 l + 1``.

    With y as polar axis and z as the origin of the azimuth, ``Y_lm`` is
    ``sqrt(2l+1) n_lm d^m P_l(y)/dy^m`` times the real (m >= 0) or imaginary part of
    ``(z + i x)^m``; ``n_lm**2 = 2 (l-m)!/(l+m)!``, half of that for m = 0. The recurrence is
    that of DLMF 14.10.3.
    """
    one = x * 0 + 1
    cosine, sine = _azimuth(z, x, one, l_max)
    legendre = _legendre(y, one, l_max)
    columns = []
    for degree in range(l_max + 1):
        for m in range(-degree, degree + 1):
            norm = _norm(degree, abs(m))
            angular = sine[-m] if m < 0 else cosine[m]
            columns.append(norm * legendre[degree, abs(m)] * angular)
    return columns


def _norm(degree: int, m: int) -> float:
    square = (2 * degree + 1) * factorial(degree - m) / factorial(degree + m)
    return sqrt(square if m == 0 else 2 * square)


def _azimuth(z: Array, x: Array, one: Array, l_max: int) -> tuple[list[Array], list[Array]]:
    """Real and imaginary parts of ``(z + i x)^m`` for m = 0..l_max."""
    cosine, sine = [one], [0 * one]
    for _ in range(l_max):
        cosine, sine = (
            [*cosine, z * cosine[-1] - x * sine[-1]],
            [*sine, z * sine[-1] + x * cosine[-1]],
        )
    return cosine, sine


def _legendre(y: Array, one: Array, l_max: int) -> dict[tuple[int, int], Array]:
    """The m-th derivative of the Legendre polynomial of degree l, for all m <= l <= l_max."""
    table: dict[tuple[int, int], Array] = {(0, 0): one}
    for m in range(l_max + 1):
        if m > 0:
            table[m, m] = (2 * m - 1) * table[m - 1, m - 1]
        if m < l_max:
            table[m + 1, m] = (2 * m + 1) * y * table[m, m]
        for degree in range(m + 2, l_max + 1):
            above, below = table[degree - 1, m], table[degree - 2, m]
            table[degree, m] = ((2 * degree - 1) * y * above - (degree + m - 1) * below) / (
                degree - m
            )
    return table
