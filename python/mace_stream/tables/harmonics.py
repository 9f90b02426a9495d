"""Spherical harmonics as polynomials of the unit vector's components, for generated code."""

from __future__ import annotations

from dataclasses import dataclass

from mace_stream.couplings import spherical_harmonics

Terms = dict[tuple[int, int, int], float]
"""Coefficient of ``x^a y^b z^c`` under (a, b, c); those that are zero are left out."""


@dataclass(frozen=True)
class _Polynomial:
    """Just enough arithmetic to pass for an array in the recurrences of the harmonics."""

    terms: Terms

    def __add__(self, other: _Polynomial | float) -> _Polynomial:
        total = dict(self.terms)
        for powers, value in _as_terms(other).items():
            total[powers] = total.get(powers, 0.0) + value
        return _Polynomial({powers: value for powers, value in total.items() if value != 0})

    def __sub__(self, other: _Polynomial | float) -> _Polynomial:
        return self + _Polynomial(_as_terms(other)) * -1.0

    def __mul__(self, other: _Polynomial | float) -> _Polynomial:
        total = _Polynomial({})
        for (a, b, c), left in self.terms.items():
            for (d, e, f), right in _as_terms(other).items():
                total += _Polynomial({(a + d, b + e, c + f): left * right})
        return total

    def __truediv__(self, other: float) -> _Polynomial:
        return _Polynomial({powers: value / other for powers, value in self.terms.items()})

    __rmul__ = __mul__


def _as_terms(other: _Polynomial | float) -> Terms:
    return other.terms if isinstance(other, _Polynomial) else {(0, 0, 0): float(other)}


def harmonic_polynomials(l_max: int) -> list[Terms]:
    """Return ``Y_lm(x, y, z)``, ``(l_max + 1)**2`` polynomials, m from -l to l within each l.

    They are those of :func:`mace_stream.couplings.spherical_harmonics`: equal to it, as
    polynomials, off the unit sphere too. Not homogeneous: ``x^2 + y^2 + z^2 = 1`` has been used.
    """
    x, y, z = (_Polynomial({powers: 1.0}) for powers in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))
    return [harmonic.terms for harmonic in spherical_harmonics(x, y, z, l_max)]


def harmonic_gradients(l_max: int) -> list[tuple[Terms, Terms, Terms]]:
    """Return the derivatives of every one of them with respect to x, y and z.

    The derivative with respect to the vector itself follows by projection on the plane
    perpendicular to it, and division by its length.
    """
    return [
        (_derivative(terms, 0), _derivative(terms, 1), _derivative(terms, 2))
        for terms in harmonic_polynomials(l_max)
    ]


def _derivative(terms: Terms, axis: int) -> Terms:
    slope: Terms = {}
    for powers, value in terms.items():
        if powers[axis] > 0:
            lowered = tuple(power - (k == axis) for k, power in enumerate(powers))
            slope[lowered] = value * powers[axis]
    return slope
