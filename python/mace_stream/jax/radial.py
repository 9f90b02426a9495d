"""From distances to path weights: transform, basis, cutoff, network; and the ZBL repulsion.

Functions of the distance have constants, not parameters: they are evaluated in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.jax.folding import Parameters, Tree, activation
from mace_stream.spec import LAYER_NORM_EPS, LayerSpec, ModelSpec


def polynomial_cutoff(x: Array, p: int) -> Array:
    """Smooth step from 1 at x = 0 to 0 at x = 1, exactly 0 beyond.

    Equation (8) of Gasteiger, Groß and Günnemann, arXiv:2003.03123.
    """
    envelope = 1 + x**p * (-(p + 1) * (p + 2) / 2 + x * (p * (p + 2) - x * (p * (p + 1) / 2)))
    return jnp.where(x < 1, envelope, 0.0)


class RadialEmbedding:
    """Radial features ``[n_edges, n_basis]``: basis of the transformed distance times cutoff.

    Where the file says so, the cutoff is kept apart, to be applied to the path weights.
    """

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        radial = params.under("radial")
        self.transform = _look_up("transform", spec.radial.transform, _TRANSFORMS)(spec, radial)
        self.basis = _look_up("basis", spec.radial.basis, _BASES)(radial)
        self.p = round(radial.scalar("cutoff.p"))
        self.r_max = radial.scalar("cutoff.r_max")
        self.apply_cutoff = spec.apply_cutoff

    def __call__(
        self, length: Array, sender_species: Array, receiver_species: Array
    ) -> tuple[Array, Array | None]:
        """Embed lengths [n_edges, 1]: features, and the cutoff [n_edges, 1] if it is kept apart.

        A length of ``r_max`` or more gives exact zeros of what has the cutoff.
        """
        basis = self.basis(self.transform(length, sender_species, receiver_species))
        cutoff = polynomial_cutoff(length / self.r_max, self.p)
        return (basis * cutoff, None) if self.apply_cutoff else (basis, cutoff)


class BesselBasis:
    """``prefactor sin(frequency_n d) / d``."""

    def __init__(self, params: Parameters) -> None:
        self.prefactor = params.scalar("bessel.prefactor")
        self.frequencies = params.array("bessel.frequencies")

    def __call__(self, distance: Array) -> Array:
        """Expand [n_edges, 1] to [n_edges, n_basis]."""
        return jnp.sin(distance * self.frequencies) * (self.prefactor / distance)


class GaussianBasis:
    """``exp(coefficient (d - center_n)^2)``."""

    def __init__(self, params: Parameters) -> None:
        self.coefficient = params.scalar("gaussian.coefficient")
        self.centers = params.array("gaussian.centers")

    def __call__(self, distance: Array) -> Array:
        """Expand [n_edges, 1] to [n_edges, n_basis]."""
        return jnp.exp(self.coefficient * (distance - self.centers) ** 2)


class ChebyshevBasis:
    """Chebyshev polynomials of the first kind of the distance as it is, by their recurrence."""

    def __init__(self, params: Parameters) -> None:
        self.orders = [round(order) for order in params.array("chebyshev.orders").tolist()]

    def __call__(self, distance: Array) -> Array:
        """Expand [n_edges, 1] to [n_edges, n_basis]."""
        values = [jnp.ones_like(distance), distance]
        while len(values) <= max(self.orders):
            values.append(2 * distance * values[-1] - values[-2])
        return jnp.concatenate([values[order] for order in self.orders], axis=1)


class NoTransform:
    """The distance itself."""

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        del spec, params

    def __call__(self, length: Array, sender: Array, receiver: Array) -> Array:
        """Return ``length``."""
        del sender, receiver
        return length


class AgnesiTransform:
    """``1 / (1 + a s^q / (1 + s^(q-p)))`` with s = r / mean covalent radius.

    Witt et al., J. Chem. Phys. 159, 164101 (2023), doi:10.1063/5.0158783.
    """

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        params = params.under("agnesi")
        self.a, self.p, self.q = (params.scalar(name) for name in "apq")
        self.half_radius = params.array("covalent_radii")[list(spec.elements)] / 2

    def __call__(self, length: Array, sender: Array, receiver: Array) -> Array:
        """Transform [n_edges, 1] given the species of both ends."""
        half_radius = jnp.asarray(self.half_radius)
        s = length / (half_radius[sender] + half_radius[receiver])[:, None]
        return 1 / (1 + self.a * s**self.q / (1 + s ** (self.q - self.p)))


class SoftTransform:
    """Smooth step from three quarters of the bond length (short) to the distance itself (long)."""

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        params = params.under("soft")
        self.alpha = params.scalar("alpha")
        self.radius = params.array("covalent_radii")[list(spec.elements)]

    def __call__(self, length: Array, sender: Array, receiver: Array) -> Array:
        """Transform [n_edges, 1] given the species of both ends."""
        radius = jnp.asarray(self.radius)
        bond = (radius[sender] + radius[receiver])[:, None]
        low, high = 3 / 4 * bond, 4 / 3 * bond
        step = 1 + jnp.tanh(self.alpha / (high - low) * (length - (low + high) / 2))
        return low + (length - low) * step / 2


@dataclass(frozen=True)
class EdgeFeatures:
    """What radial networks read of edges, in the model's precision."""

    basis: Array
    """Radial features [n_edges, n_basis]."""
    cutoff: Array | None
    """[n_edges, 1] where it is to be applied to a network's output."""
    sender: Array
    receiver: Array
    """Species of both ends, [n_edges]."""

    def with_cutoff(self, values: Array) -> Array:
        """Multiply [n_edges, k] by the cutoff where it was kept apart."""
        return values if self.cutoff is None else values * self.cutoff


class RadialNetwork:
    """Path weights ``[n_edges, n_paths, channels]`` from radial features; no biases."""

    def __init__(self, layer: LayerSpec, params: Parameters) -> None:
        self.activation = activation(layer.radial_activation)
        self.n_paths = len(layer.paths)
        self.n_layers = len(layer.radial_widths) - 1
        self.parameters: Tree = {}
        for k in range(self.n_layers):
            scale = layer.radial_activation_scale if k > 0 else 1.0
            self.parameters[f"weight_{k}"] = params.cast(scale * params.linear(f"radial.{k}"))

    def hidden(self, tree: Tree, edges: EdgeFeatures) -> Array:
        """Return the last hidden features [n_edges, H], in which path weights are linear."""
        hidden = edges.basis
        for k in range(self.n_layers - 1):
            hidden = self.activation(hidden @ tree[f"weight_{k}"])
        return edges.with_cutoff(hidden)

    def __call__(self, tree: Tree, edges: EdgeFeatures) -> Array:
        """Map features of edges to path weights [n_edges, n_paths, channels]."""
        return _by_path(self.hidden(tree, edges) @ tree[f"weight_{self.n_layers - 1}"], self)


class NormalizedNetwork:
    """Linear layers with biases, each but the last followed by a layer norm and silu.

    It reads radial features and the elements of both ends. Its first layer is linear in both, so
    that each element adds a row of a table, folded in float64. The last layer's bias is the weight
    of one more hidden feature, which is 1.
    """

    def __init__(self, widths: Sequence[int], name: str, n_basis: int, params: Parameters) -> None:
        self.n_layers = len(widths) - 1
        mine = params.under(name)
        first, bias = mine.array("0"), mine.array("0.bias")
        n_species_features = (len(first) - n_basis) // 2
        of_sender, of_receiver = first[n_basis:-n_species_features], first[-n_species_features:]
        sender = params.linear("source_embedding") @ of_sender
        receiver = params.linear("target_embedding") @ of_receiver + bias
        folded = {"basis": first[:n_basis], "sender": sender, "receiver": receiver}
        for k in range(self.n_layers - 1):
            folded[f"norm_weight_{k}"] = mine.array(f"{k}.norm.weight")
            folded[f"norm_bias_{k}"] = mine.array(f"{k}.norm.bias")
        for k in range(1, self.n_layers):
            stacked = [mine.array(str(k)), mine.array(f"{k}.bias")[None]]
            folded[f"weight_{k}"] = mine.join(stacked)
        self.parameters: Tree = {key: params.cast(array) for key, array in folded.items()}

    def features(self, tree: Tree, edges: EdgeFeatures) -> Array:
        """Return the last hidden features [n_edges, H], in which the output is linear."""
        hidden = edges.basis @ tree["basis"]
        hidden = hidden + tree["sender"][edges.sender] + tree["receiver"][edges.receiver]
        for k in range(self.n_layers - 1):
            if k > 0:
                hidden = _with_one(hidden) @ tree[f"weight_{k}"]
            hidden = jax.nn.silu(_normalize(hidden, tree, k))
        return _with_one(hidden)

    def __call__(self, tree: Tree, edges: EdgeFeatures) -> Array:
        """Map features of edges to the output [n_edges, width]."""
        return self.features(tree, edges) @ tree[f"weight_{self.n_layers - 1}"]


def _normalize(x: Array, tree: Tree, k: int) -> Array:
    """Layer norm number k, Ba, Kiros and Hinton, arXiv:1607.06450."""
    centered = x - jnp.mean(x, axis=1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(centered**2, axis=1, keepdims=True) + LAYER_NORM_EPS)
    return centered * scale * tree[f"norm_weight_{k}"] + tree[f"norm_bias_{k}"]


class NormalizedRadialNetwork(NormalizedNetwork):
    """Path weights ``[n_edges, n_paths, channels]`` of block NL."""

    def __init__(self, layer: LayerSpec, n_basis: int, params: Parameters) -> None:
        super().__init__(layer.radial_widths, "radial", n_basis, params)
        self.n_paths = len(layer.paths)

    def hidden(self, tree: Tree, edges: EdgeFeatures) -> Array:
        """Return the last hidden features [n_edges, H], in which path weights are linear."""
        return edges.with_cutoff(self.features(tree, edges))

    def __call__(self, tree: Tree, edges: EdgeFeatures) -> Array:
        """Map features of edges to path weights [n_edges, n_paths, channels]."""
        return _by_path(self.hidden(tree, edges) @ tree[f"weight_{self.n_layers - 1}"], self)


def _by_path(x: Array, network: RadialNetwork | NormalizedRadialNetwork) -> Array:
    return x.reshape(len(x), network.n_paths, x.shape[1] // network.n_paths)


def _with_one(x: Array) -> Array:
    return jnp.concatenate([x, jnp.ones_like(x[:, :1])], axis=1)


class ZBLRepulsion:
    """Screened nuclear repulsion of Ziegler, Biersack and Littmark, half a pair per directed edge.

    The envelope ends at the sum of the covalent radii, and in any case at ``r_max``.
    """

    COULOMB = 14.3996
    """e^2 / (4 pi epsilon_0) in eV Å, as in the models' source."""
    BOHR = 0.529
    DECAYS = (3.2, 0.9423, 0.4028, 0.2016)

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        params = params.under("zbl")
        numbers = np.array(spec.elements, dtype=np.float64)
        power = numbers ** params.scalar("a_exp")
        self.p = round(params.scalar("p"))
        self.r_max = spec.r_max
        self.coefficients = params.array("c").tolist()
        self.inverse_length = power / (params.scalar("a_prefactor") * self.BOHR)
        self.charge = numbers * sqrt(0.5 * self.COULOMB)
        self.radius = params.array("covalent_radii")[list(spec.elements)]

    def __call__(self, length: Array, sender_species: Array, receiver_species: Array) -> Array:
        """Return eV per edge, [n_edges], for lengths [n_edges, 1]."""
        ends, r = (sender_species, receiver_species), length[:, 0]
        inverse_length, bond = _sum_of(self.inverse_length, *ends), _sum_of(self.radius, *ends)
        terms = zip(self.coefficients, self.DECAYS, strict=True)
        screening = sum(c * jnp.exp(-decay * r * inverse_length) for c, decay in terms)
        envelope = jnp.where(r < self.r_max, polynomial_cutoff(r / bond, self.p), 0.0)
        charge = jnp.asarray(self.charge)
        return charge[sender_species] * charge[receiver_species] / r * screening * envelope


def _sum_of(table: np.ndarray, first: Array, second: Array) -> Array:
    """Sum the entries of both ends."""
    return jnp.asarray(table)[first] + jnp.asarray(table)[second]


_BASES = {"bessel": BesselBasis, "gaussian": GaussianBasis, "chebyshev": ChebyshevBasis}
_TRANSFORMS = {"none": NoTransform, "agnesi": AgnesiTransform, "soft": SoftTransform}


def _look_up(what: str, name: str, table: dict[str, type]) -> type:
    if name not in table:
        raise ValueError(f"radial {what}: expected one of {sorted(table)}, got {name!r}")
    return table[name]
