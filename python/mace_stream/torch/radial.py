"""From distances to path weights: transform, basis, cutoff, network; and the ZBL repulsion."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from mace_stream.spec import LayerSpec, ModelSpec
from mace_stream.torch.folding import Parameters, activation


def polynomial_cutoff(x: Tensor, p: int) -> Tensor:
    """Smooth step from 1 at x = 0 to 0 at x = 1, exactly 0 beyond.

    Equation (8) of Gasteiger, Groß and Günnemann, arXiv:2003.03123.
    """
    envelope = 1 + x**p * (-(p + 1) * (p + 2) / 2 + x * (p * (p + 2) - x * (p * (p + 1) / 2)))
    return torch.where(x < 1, envelope, 0.0)


class RadialEmbedding(nn.Module):
    """Radial features ``[n_edges, n_basis]``: basis of the transformed distance times cutoff."""

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        super().__init__()
        radial = params.under("radial")
        self.transform = _look_up("transform", spec.radial.transform, _TRANSFORMS)(spec, radial)
        self.basis = _look_up("basis", spec.radial.basis, _BASES)(radial)
        self.p = round(radial.scalar("cutoff.p"))
        self.r_max = radial.scalar("cutoff.r_max")

    def forward(self, length: Tensor, sender_species: Tensor, receiver_species: Tensor) -> Tensor:
        """Embed lengths [n_edges, 1]; a length of ``r_max`` or more gives exact zeros."""
        distance = self.transform(length, sender_species, receiver_species)
        return self.basis(distance) * polynomial_cutoff(length / self.r_max, self.p)


class BesselBasis(nn.Module):
    """``prefactor sin(frequency_n d) / d``."""

    def __init__(self, params: Parameters) -> None:
        super().__init__()
        self.prefactor = params.scalar("bessel.prefactor")
        self.register_buffer("frequencies", params.cast(params.tensor("bessel.frequencies")))

    def forward(self, distance: Tensor) -> Tensor:
        """Expand [n_edges, 1] to [n_edges, n_basis]."""
        return torch.sin(distance * self.frequencies) * (self.prefactor / distance)


class GaussianBasis(nn.Module):
    """``exp(coefficient (d - center_n)^2)``."""

    def __init__(self, params: Parameters) -> None:
        super().__init__()
        self.coefficient = params.scalar("gaussian.coefficient")
        self.register_buffer("centers", params.cast(params.tensor("gaussian.centers")))

    def forward(self, distance: Tensor) -> Tensor:
        """Expand [n_edges, 1] to [n_edges, n_basis]."""
        return torch.exp(self.coefficient * (distance - self.centers) ** 2)


class ChebyshevBasis(nn.Module):
    """Chebyshev polynomials of the first kind of the distance as it is, by their recurrence."""

    def __init__(self, params: Parameters) -> None:
        super().__init__()
        self.orders = [round(order) for order in params.array("chebyshev.orders").tolist()]

    def forward(self, distance: Tensor) -> Tensor:
        """Expand [n_edges, 1] to [n_edges, n_basis]."""
        values = [torch.ones_like(distance), distance]
        while len(values) <= max(self.orders):
            values.append(2 * distance * values[-1] - values[-2])
        return torch.cat([values[order] for order in self.orders], dim=1)


class NoTransform(nn.Module):
    """The distance itself."""

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        super().__init__()
        del spec, params

    def forward(self, length: Tensor, sender: Tensor, receiver: Tensor) -> Tensor:
        """Return ``length``."""
        del sender, receiver
        return length


class AgnesiTransform(nn.Module):
    """``1 / (1 + a s^q / (1 + s^(q-p)))`` with s = r / mean covalent radius.

    Witt et al., J. Chem. Phys. 159, 164101 (2023), doi:10.1063/5.0158783.
    """

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        super().__init__()
        params = params.under("agnesi")
        self.a, self.p, self.q = (params.scalar(name) for name in "apq")
        radii = params.tensor("covalent_radii")[list(spec.elements)]
        self.register_buffer("half_radius", params.cast(radii / 2))

    def forward(self, length: Tensor, sender: Tensor, receiver: Tensor) -> Tensor:
        """Transform [n_edges, 1] given the species of both ends."""
        s = length / (self.half_radius[sender] + self.half_radius[receiver])[:, None]
        return 1 / (1 + self.a * s**self.q / (1 + s ** (self.q - self.p)))


class SoftTransform(nn.Module):
    """Smooth step from three quarters of the bond length (short) to the distance itself (long)."""

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        super().__init__()
        params = params.under("soft")
        self.alpha = params.scalar("alpha")
        radii = params.tensor("covalent_radii")[list(spec.elements)]
        self.register_buffer("radius", params.cast(radii))

    def forward(self, length: Tensor, sender: Tensor, receiver: Tensor) -> Tensor:
        """Transform [n_edges, 1] given the species of both ends."""
        bond = (self.radius[sender] + self.radius[receiver])[:, None]
        low, high = 3 / 4 * bond, 4 / 3 * bond
        step = 1 + torch.tanh(self.alpha / (high - low) * (length - (low + high) / 2))
        return low + (length - low) * step / 2


class RadialNetwork(nn.Module):
    """Path weights ``[n_edges, n_paths, channels]`` from radial features; no biases."""

    def __init__(self, layer: LayerSpec, params: Parameters) -> None:
        super().__init__()
        self.activation = activation(layer.radial_activation)
        self.n_paths = len(layer.paths)
        self.n_layers = len(layer.radial_widths) - 1
        for k in range(self.n_layers):
            scale = layer.radial_activation_scale if k > 0 else 1.0
            self.register_buffer(f"weight_{k}", params.cast(scale * params.linear(f"radial.{k}")))

    @property
    def last_weight(self) -> Tensor:
        """What maps hidden features to path weights, [H, n_paths * channels]."""
        return getattr(self, f"weight_{self.n_layers - 1}")

    def hidden(self, edge_feats: Tensor) -> Tensor:
        """Map [n_edges, n_basis] to the last hidden features [n_edges, H]."""
        hidden = edge_feats
        for k in range(self.n_layers - 1):
            hidden = self.activation(hidden @ getattr(self, f"weight_{k}"))
        return hidden

    def forward(self, edge_feats: Tensor) -> Tensor:
        """Map [n_edges, n_basis] to [n_edges, n_paths, channels]."""
        return (self.hidden(edge_feats) @ self.last_weight).unflatten(1, (self.n_paths, -1))


class ZBLRepulsion(nn.Module):
    """Screened nuclear repulsion of Ziegler, Biersack and Littmark, half a pair per directed edge.

    The envelope ends at the sum of the covalent radii, and in any case at ``r_max``.
    """

    COULOMB = 14.3996
    """e^2 / (4 pi epsilon_0) in eV Å, as in the models' source."""
    BOHR = 0.529
    DECAYS = (3.2, 0.9423, 0.4028, 0.2016)

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        super().__init__()
        params = params.under("zbl")
        numbers = torch.tensor(spec.elements, dtype=torch.float64)
        power = numbers ** params.scalar("a_exp")
        self.p = round(params.scalar("p"))
        self.r_max = spec.r_max
        self.coefficients = params.array("c").tolist()
        screening = power / (params.scalar("a_prefactor") * self.BOHR)
        self.register_buffer("charge", params.cast(numbers * sqrt(0.5 * self.COULOMB)))
        self.register_buffer("inverse_length", params.cast(screening))
        radii = params.tensor("covalent_radii")[list(spec.elements)]
        self.register_buffer("radius", params.cast(radii))

    def forward(self, length: Tensor, sender_species: Tensor, receiver_species: Tensor) -> Tensor:
        """Return eV per edge, [n_edges], for lengths [n_edges, 1]."""
        r = length.squeeze(1)
        s = r * (self.inverse_length[sender_species] + self.inverse_length[receiver_species])
        terms = zip(self.coefficients, self.DECAYS, strict=True)
        screening = sum(c * torch.exp(-decay * s) for c, decay in terms)
        bond = self.radius[sender_species] + self.radius[receiver_species]
        envelope = torch.where(r < self.r_max, polynomial_cutoff(r / bond, self.p), 0.0)
        return (
            self.charge[sender_species] * self.charge[receiver_species] / r * screening * envelope
        )


_BASES = {"bessel": BesselBasis, "gaussian": GaussianBasis, "chebyshev": ChebyshevBasis}
_TRANSFORMS = {"none": NoTransform, "agnesi": AgnesiTransform, "soft": SoftTransform}


def _look_up(what: str, name: str, table: dict[str, type]) -> type:
    if name not in table:
        raise ValueError(f"radial {what}: expected one of {sorted(table)}, got {name!r}")
    return table[name]
