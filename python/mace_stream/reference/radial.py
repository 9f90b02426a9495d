"""Radial functions of the oracle; analytic, so that complex lengths give derivatives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mace_stream.spec import LAYER_NORM_EPS, ModelSpec

Tensors = Mapping[str, np.ndarray]


def cutoff(x: np.ndarray, p: float) -> np.ndarray:
    """Polynomial that falls from 1 at x = 0 to 0 at x = 1; 0 beyond."""
    value = (
        1.0
        - (p + 1) * (p + 2) / 2 * x**p
        + p * (p + 2) * x ** (p + 1)
        - p * (p + 1) / 2 * x ** (p + 2)
    )
    return np.where(x.real < 1.0, value, 0.0)


def features(
    spec: ModelSpec, tensors: Tensors, r: np.ndarray, z_sender: np.ndarray, z_receiver: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Basis of the transformed distance ``[n_edges, n_basis]``, and the cutoff of the true one.

    ``z_sender`` and ``z_receiver`` are atomic numbers.
    """
    d = _transform(spec, tensors, r, z_sender, z_receiver)[:, None]
    name = spec.radial.basis
    if name == "bessel":
        frequencies = tensors["radial.bessel.frequencies"]
        basis = tensors["radial.bessel.prefactor"] * np.sin(frequencies * d) / d
    elif name == "gaussian":
        centers = tensors["radial.gaussian.centers"]
        basis = np.exp(tensors["radial.gaussian.coefficient"] * (d - centers) ** 2)
    elif name == "chebyshev":
        orders = tensors["radial.chebyshev.orders"].astype(int)
        basis = np.polynomial.chebyshev.chebvander(d[:, 0], orders.max())[:, orders]
    else:
        raise ValueError(f"radial basis: the oracle does not know {name!r}")
    x = r / tensors["radial.cutoff.r_max"]
    return basis, cutoff(x, float(tensors["radial.cutoff.p"]))[:, None]


def _transform(spec, tensors, r, z_sender, z_receiver):  # noqa: ANN001, ANN202  see features
    name = spec.radial.transform
    if name == "none":
        return r
    radii = tensors[f"radial.{name}.covalent_radii"]
    bond = radii[z_sender] + radii[z_receiver]
    if name == "agnesi":
        a, p, q = (tensors[f"radial.agnesi.{key}"] for key in "apq")
        s = r / (0.5 * bond)
        return 1.0 / (1.0 + a * s**q / (1.0 + s ** (q - p)))
    if name == "soft":
        near, far = 0.75 * bond, 4.0 / 3.0 * bond
        middle = 0.5 * (near + far)
        step = 0.5 * (1 + np.tanh(tensors["radial.soft.alpha"] * (r - middle) / (far - near)))
        return near + (r - near) * step
    raise ValueError(f"radial transform: the oracle does not know {name!r}")


def zbl(
    spec: ModelSpec, tensors: Tensors, r: np.ndarray, z_sender: np.ndarray, z_receiver: np.ndarray
) -> np.ndarray:
    """Half of the screened nuclear repulsion of each pair, in eV per directed edge."""
    c, p = tensors["zbl.c"], float(tensors["zbl.p"])
    exponent, radii = tensors["zbl.a_exp"], tensors["zbl.covalent_radii"]
    a = tensors["zbl.a_prefactor"] * 0.529 / (z_sender**exponent + z_receiver**exponent)
    decays = (3.2, 0.9423, 0.4028, 0.2016)
    screening = sum(c[k] * np.exp(-decays[k] * r / a) for k in range(4))
    energy = 0.5 * 14.3996 * z_sender * z_receiver / r * screening
    energy = energy * cutoff(r / (radii[z_sender] + radii[z_receiver]), p)
    return np.where(r.real < spec.r_max, energy, 0.0)


def normalized_network(tensors: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    """Linear layers with biases; each but the last is followed by a layer norm and silu."""
    k = 0
    while True:
        x = x @ tensors[f"{name}.{k}"] + tensors[f"{name}.{k}.bias"]
        if f"{name}.{k}.norm.weight" not in tensors:
            return x
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + LAYER_NORM_EPS)
        x = x * tensors[f"{name}.{k}.norm.weight"] + tensors[f"{name}.{k}.norm.bias"]
        x = x / (1 + np.exp(-x))
        k += 1
