"""From distances to path weights: transform, basis, cutoff, network; and the ZBL repulsion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from mace_stream.spec import LAYER_NORM_EPS, LayerSpec, ModelSpec
from mace_stream.torch.folding import Parameters, activation


def polynomial_cutoff(x: Tensor, p: int) -> Tensor:
    """Smooth step from 1 at x = 0 to 0 at x = 1, exactly 0 beyond.

    Equation (8) of Gasteiger, Groß and Günnemann, arXiv:2003.03123.
    """
    envelope = 1 + x**p * (-(p + 1) * (p + 2) / 2 + x * (p * (p + 2) - x * (p * (p + 1) / 2)))
    return torch.where(x < 1, envelope, 0.0)


class RadialEmbedding(nn.Module):
    """Radial features ``[n_edges, n_basis]``: basis of the transformed distance times cutoff.

    Where the file says so, the cutoff is kept apart, to be applied to the path weights.
    """

    def __init__(self, spec: ModelSpec, params: Parameters) -> None:
        super().__init__()
        radial = params.under("radial")
        self.transform = _look_up("transform", spec.radial.transform, _TRANSFORMS)(spec, radial)
        self.basis = _look_up("basis", spec.radial.basis, _BASES)(radial)
        self.p = round(radial.scalar("cutoff.p"))
        self.r_max = radial.scalar("cutoff.r_max")
        self.apply_cutoff = spec.apply_cutoff

    def forward(
        self, length: Tensor, sender_species: Tensor, receiver_species: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Embed lengths [n_edges, 1]: features, and the cutoff [n_edges, 1] if it is kept apart.

        A length of ``r_max`` or more gives exact zeros of what has the cutoff.
        """
        basis = self.basis(self.transform(length, sender_species, receiver_species))
        cutoff = polynomial_cutoff(length / self.r_max, self.p)
        return (basis * cutoff, None) if self.apply_cutoff else (basis, cutoff)


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


@dataclass(frozen=True)
class EdgeFeatures:
    """What radial networks read of edges, in the model's precision."""

    basis: Tensor
    """Radial features [n_edges, n_basis]."""
    cutoff: Tensor | None
    """[n_edges, 1] where it is to be applied to a network's output."""
    sender: Tensor
    receiver: Tensor
    """Species of both ends, [n_edges]."""

    def split(self, sizes: list[int]) -> list[EdgeFeatures]:
        """Cut into runs of edges."""
        n_parts = len(sizes)
        cutoffs = [None] * n_parts if self.cutoff is None else self.cutoff.split(sizes)
        arrays = (self.basis.split(sizes), cutoffs, self.sender.split(sizes))
        parts = zip(*arrays, self.receiver.split(sizes), strict=True)
        return [EdgeFeatures(*part) for part in parts]

    def with_cutoff(self, values: Tensor) -> Tensor:
        """Multiply [n_edges, k] by the cutoff where it was kept apart."""
        return values if self.cutoff is None else values * self.cutoff


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

    def hidden(self, edges: EdgeFeatures) -> Tensor:
        """Return the last hidden features [n_edges, H], in which path weights are linear."""
        hidden = edges.basis
        for k in range(self.n_layers - 1):
            hidden = self.activation(hidden @ getattr(self, f"weight_{k}"))
        return edges.with_cutoff(hidden)

    def forward(self, edges: EdgeFeatures) -> Tensor:
        """Map features of edges to path weights [n_edges, n_paths, channels]."""
        return (self.hidden(edges) @ self.last_weight).unflatten(1, (self.n_paths, -1))


class NormalizedNetwork(nn.Module):
    """Linear layers with biases, each but the last followed by a layer norm and silu.

    It reads radial features and the elements of both ends. Its first layer is linear in both, so
    that each element adds a row of a table, folded in float64. The last layer's bias is the weight
    of one more hidden feature, which is 1.
    """

    def __init__(self, widths: Sequence[int], name: str, n_basis: int, params: Parameters) -> None:
        super().__init__()
        self.n_layers = len(widths) - 1
        mine = params.under(name)
        first, bias = mine.tensor("0"), mine.tensor("0.bias")
        n_species_features = (len(first) - n_basis) // 2
        of_basis, of_sender, of_receiver = first.split([n_basis, *[n_species_features] * 2])
        sender = params.linear("source_embedding") @ of_sender
        receiver = params.linear("target_embedding") @ of_receiver + bias
        for buffer, tensor in (("basis", of_basis), ("sender", sender), ("receiver", receiver)):
            self.register_buffer(buffer, params.cast(tensor))
        for k in range(self.n_layers - 1):
            for what in ("weight", "bias"):
                norm = mine.tensor(f"{k}.norm.{what}")
                self.register_buffer(f"norm_{what}_{k}", params.cast(norm))
        for k in range(1, self.n_layers):
            weight, bias = mine.tensor(str(k)), mine.tensor(f"{k}.bias")
            stacked = torch.cat([weight, bias[None]])
            self.register_buffer(f"weight_{k}", params.cast(stacked))

    @property
    def last_weight(self) -> Tensor:
        """What maps hidden features to the output, [H, width]; the bias is its last row."""
        return getattr(self, f"weight_{self.n_layers - 1}")

    def features(self, edges: EdgeFeatures) -> Tensor:
        """Return the last hidden features [n_edges, H], in which the output is linear."""
        hidden = (
            edges.basis @ self.basis + self.sender[edges.sender] + self.receiver[edges.receiver]
        )
        for k in range(self.n_layers - 1):
            if k > 0:
                hidden = _with_one(hidden) @ getattr(self, f"weight_{k}")
            hidden = self._normalize(hidden, k)
            hidden = hidden * torch.sigmoid(hidden)
        return _with_one(hidden)

    def forward(self, edges: EdgeFeatures) -> Tensor:
        """Map features of edges to the output [n_edges, width]."""
        return self.features(edges) @ self.last_weight

    def _normalize(self, x: Tensor, k: int) -> Tensor:
        """Layer norm number k, Ba, Kiros and Hinton, arXiv:1607.06450; twice differentiable."""
        centered = x - x.mean(1, keepdim=True)
        scale = torch.rsqrt(centered.square().mean(1, keepdim=True) + LAYER_NORM_EPS)
        return centered * scale * getattr(self, f"norm_weight_{k}") + getattr(
            self, f"norm_bias_{k}"
        )


class NormalizedRadialNetwork(NormalizedNetwork):
    """Path weights ``[n_edges, n_paths, channels]`` of block NL."""

    def __init__(self, layer: LayerSpec, n_basis: int, params: Parameters) -> None:
        super().__init__(layer.radial_widths, "radial", n_basis, params)
        self.n_paths = len(layer.paths)

    def hidden(self, edges: EdgeFeatures) -> Tensor:
        """Return the last hidden features [n_edges, H], in which path weights are linear."""
        return edges.with_cutoff(self.features(edges))

    def forward(self, edges: EdgeFeatures) -> Tensor:
        """Map features of edges to path weights [n_edges, n_paths, channels]."""
        return (self.hidden(edges) @ self.last_weight).unflatten(1, (self.n_paths, -1))


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


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
