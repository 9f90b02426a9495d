"""Readouts: scalars of one layer to one energy per node, for one head."""

from __future__ import annotations

from torch import Tensor, nn

from mace_stream.couplings import FeatureLayout, Irrep
from mace_stream.spec import ModelSpec, ReadoutSpec
from mace_stream.torch.folding import Parameters, activation


class Readout(nn.Module):
    """Linear or one-hidden-layer readout, cut down to one head, scale folded in."""

    def __init__(
        self, spec: ModelSpec, readout: ReadoutSpec, head: int, params: Parameters
    ) -> None:
        """Fold the scale of head number ``head``.

        Raises:
            ValueError: Kind or activation is not supported.
        """
        super().__init__()
        layout = FeatureLayout.parse(spec.layers[readout.layer].irreps_out)
        self.rows = layout.rows(Irrep(0, 1))
        self.layer = readout.layer
        scale = params.array("scale")[head]
        params = params.under(f"readouts.{spec.readouts.index(readout)}")
        if readout.kind == "linear":
            self.hidden = None
            weight = params.linear("linear")[:, head]
        elif readout.kind == "nonlinear":
            self.activation = activation(readout.activation)
            kept = slice(head * readout.hidden, (head + 1) * readout.hidden)
            self.register_buffer("hidden", params.cast(params.linear("linear_1")[:, kept]))
            fan_in = spec.n_heads_source * readout.hidden
            weight = params.tensor("linear_2")[kept, head] / fan_in**0.5
            weight = weight * readout.activation_scale
        else:
            raise ValueError(f"readout: expected linear or nonlinear, got {readout.kind!r}")
        self.register_buffer("weight", params.cast(scale * weight))

    def forward(self, node_feats: Tensor) -> Tensor:
        """Map [n, dim, C] to energies [n] in eV, float64."""
        scalars = node_feats[:, self.rows].squeeze(1)
        if self.hidden is not None:
            scalars = self.activation(scalars @ self.hidden)
        return (scalars @ self.weight).double()
