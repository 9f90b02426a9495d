"""Matrices of the inference path, folded in float64 from the tensors of a model file.

Node features are component-major, [dim, n, C]: each irrep of a layer is one matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mace_stream.couplings import ConvPlan, FeatureLayout, Irrep
from mace_stream.embedding import embedding_energy, node_embedding
from mace_stream.folded.blocks import (
    Block,
    apply,
    element_linear,
    element_weight,
    irrep_linear,
    parts_of,
)
from mace_stream.parameters import Parameters, build_plan
from mace_stream.spec import LayerSpec, ModelSpec, ReadoutSpec

RESIDUAL = ("RR", "DR", "NL")
"""Blocks whose skip connection acts on the node features, not on the message."""


class UnsupportedModelError(NotImplementedError):
    """The inference path cannot run a model."""


@dataclass(frozen=True)
class Activation:
    """A function by its name in the file, times a number."""

    name: str
    scale: float


@dataclass(frozen=True)
class FoldedReadout:
    """``act(x W1) . w2`` or ``x . w2`` of the scalars x [n, C]; scale included."""

    row: int
    hidden: np.ndarray | None
    weight: np.ndarray
    activation: str = ""


@dataclass(frozen=True)
class FoldedGate:
    """What lies between the convolution's linear layer and the message in block NL.

    Rows of its input are scalars, a row of gates for every irrep of l > 0, and those irreps.
    """

    dims: tuple[int, ...]
    """Components of every gated irrep."""
    scalar: Activation
    factor: Activation
    """Of gates."""
    linear: tuple[Block, ...]
    """From the gate's output to the message."""
    residual: tuple[Block, ...]
    """From the node's own ``up`` to the gate's input; empty in the first layer."""
    constant: np.ndarray | None
    """First layer: the same, from the species, [S, n_gates + dim, C]."""


@dataclass(frozen=True)
class FoldedLayer:
    """One interaction, product and what is read out of them. Lists run over present species."""

    plan: ConvPlan
    message: tuple[tuple[Block, ...], ...]
    """From the convolution to the message, or to the gate, species by species. ``source`` are rows
    of [dim, n, K] for the first layer, and of the convolution's output blocks for the others."""
    up: tuple[Block, ...]
    """From node features to what the convolution reads; empty in the first layer."""
    product: tuple[Block, ...]
    """From the contraction to node features."""
    skip: tuple[tuple[Block, ...], ...]
    """From the layer's input features to its output, species by species; may be empty."""
    constant: np.ndarray | None
    """First layer: what the skip adds to each output row, [S, dim_out, C]."""
    readouts: tuple[FoldedReadout, ...]
    dim_message: int
    dim_out: int
    has_density: bool
    gate: FoldedGate | None


def fold_layers(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    head: int,
    species: Sequence[int],
    inputs: Mapping[str, float],
) -> list[FoldedLayer]:
    """Fold all that is linear in the layers of a model.

    Args:
        spec: Architecture.
        tensors: Numbers of the file.
        head: Number of the head.
        species: Elements that are present, as indices into the model's.
        inputs: Value of every input of the model.

    Raises:
        UnsupportedModelError: The inference path cannot run the model.
    """
    embedding = node_embedding(spec, tensors, inputs)
    return [
        _Folding(spec, t, tensors, species, embedding if t == 0 else None).layer(head)
        for t in range(len(spec.layers))
    ]


def site_constants(
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    head: int,
    species: Sequence[int],
    inputs: Mapping[str, float],
) -> np.ndarray:
    """Return isolated-atom energy and shift of every present species in eV, [S]."""
    params = Parameters(tensors, np.float64)
    embedding = node_embedding(spec, tensors, inputs)
    energies = params.array("atomic_energies")[head]
    energies = energies + embedding_energy(spec, tensors, embedding, head)
    return energies[list(species)] + params.array("shift")[head]


class _Folding:
    """One layer of a file on its way to matrices; ``embedding`` [Z, C] in the first layer."""

    def __init__(
        self,
        spec: ModelSpec,
        t: int,
        tensors: Mapping[str, np.ndarray],
        species: Sequence[int],
        embedding: np.ndarray | None,
    ) -> None:
        self.spec, self.t, self.species = spec, t, list(species)
        self.all = Parameters(tensors, np.float64)
        self.params = self.all.under(f"layers.{t}")
        self.given: LayerSpec = spec.layers[t]
        self.is_first = embedding is not None
        self.embedding = embedding
        self.residual = self.given.block in RESIDUAL
        self.gated = self.given.block == "NL"
        layer = self.given
        texts = layer.irreps_in, layer.irreps_up, layer.irreps_message, layer.irreps_out
        self.into, self.up, self.message, self.out = map(FeatureLayout.parse, texts)
        self.plan = build_plan(spec, layer, self.params)
        if self.plan.refusal:
            raise UnsupportedModelError(f"layer {t}: {self.plan.refusal}")

    def layer(self, head: int) -> FoldedLayer:
        joins = self.residual and self.given.use_sc
        skips = [
            tuple(element_linear(self.into, self.out, self.params.under("skip"), z))
            for z in (self.species if joins else ())
        ]
        constant = None
        if self.is_first and joins:
            rows = self.embedding[self.species][:, None]
            one_by_one = zip(skips, rows, strict=True)
            tables = [apply(b, x[None], self.out.dim, self.out.channels) for b, x in one_by_one]
            constant = np.concatenate(tables)
        linear = irrep_linear(self.out, self.out, self.params.under("product.linear"))
        readouts = [r for r in self.spec.readouts if r.layer == self.t]
        return FoldedLayer(
            plan=self.plan,
            message=tuple(tuple(self._message_blocks(z)) for z in self.species),
            up=() if self.is_first else tuple(self._linear_up()),
            product=tuple(linear),
            skip=() if self.is_first else tuple(skips),
            constant=constant,
            readouts=tuple(_fold_readout(self.spec, r, head, self.all) for r in readouts),
            dim_message=self.message.dim,
            dim_out=self.out.dim,
            has_density=self._has_density,
            gate=self._gate() if self.gated else None,
        )

    @property
    def _has_density(self) -> bool:
        return self.given.block not in ("R", "RR")

    def _linear_up(self) -> list[Block]:
        return irrep_linear(self.into, self.up, self.params.under("linear_up"))

    def _up_table(self) -> np.ndarray:
        """What the first layer's convolution reads of every element, [Z, dim_up, C_up]."""
        x = self.embedding[:, None]
        return apply(self._linear_up(), x, self.up.dim, self.up.channels)

    def _message_blocks(self, element: int) -> list[Block]:
        """Linear layer, mean norm of the first layer, and skip where it acts on the message.

        Weights several times as wide as the message give several rows: scalars and gates.
        """
        outputs = {block.irrep: block for block in self.plan.outputs}
        params = self.params.under("linear_1" if self.gated else "linear")
        blocks, row = [], 0
        for irrep in self.message.irreps:
            if irrep not in outputs:
                raise ValueError(f"message irrep {irrep}: no path of the convolution ends there")
            weight, source = params.linear(str(irrep)) / self._norm, outputs[irrep].rows
            if self.is_first:
                weight, source = self._first_weight(outputs[irrep], weight)
            if not self.residual:
                weight = weight @ element_weight(self.params.under("skip"), irrep, element)
            for part in parts_of(weight, self.message.channels):
                blocks.append(Block(source, slice(row, row + irrep.dim), part))
                row += irrep.dim
        return blocks

    @property
    def _norm(self) -> float:
        """The constant part of the norm; in later layers the tables hold the mean norm."""
        if not self._has_density:
            return self.params.scalar("avg_num_neighbors") if self.is_first else 1.0
        alpha = self.params.scalar("alpha") if self.gated else 1.0
        if alpha == 0.0:
            raise UnsupportedModelError("a density norm without a constant part")
        return alpha

    def _first_weight(self, block, linear: np.ndarray) -> tuple[np.ndarray, slice]:  # noqa: ANN001
        """From sums over sender species and radial features to one irrep, [S * H, C].

        The convolution of scalars with Y_l gives Y_l times a constant; so path weights, sender
        features and the linear layer are one matrix. Also the rows of Y_l.
        """
        paths = [
            (index, path)
            for index, path in enumerate(self.plan.paths)
            if block.rows.start <= path.rows_out.start < block.rows.stop
        ]
        if len(paths) != 1:
            raise UnsupportedModelError(
                f"first layer: expected one path that ends in {block.irrep}, got {len(paths)}; "
                "use radial exact"
            )
        (index, path) = paths[0]
        last = last_radial_weight(self.given, self.params)
        per_channel = last.reshape(len(last), len(self.given.paths), -1)[:, index]
        sent = self._up_table()[self.species, 0]
        weight = sent[:, None, :] * per_channel[None] * _constant_coupling(path.coupling)
        return weight.reshape(-1, weight.shape[2]) @ linear, path.rows_edge

    def _gate(self) -> FoldedGate:
        gate = self.given.gate
        residual = irrep_linear(self.up, self.message, self.params.under("residual"))
        dims, constant = tuple(irrep.dim for irrep in self.message.irreps[1:]), None
        if self.is_first:
            table, rows = self._up_table()[self.species], len(dims) + self.message.dim
            constant = apply(residual, table, rows, self.message.channels)
        return FoldedGate(
            dims=dims,
            scalar=Activation(gate.activation, gate.activation_scale),
            factor=Activation(gate.gate_activation, gate.gate_activation_scale),
            linear=tuple(irrep_linear(self.message, self.message, self.params.under("linear_2"))),
            residual=() if self.is_first else tuple(residual),
            constant=constant,
        )


def last_radial_weight(layer: LayerSpec, params: Parameters) -> np.ndarray:
    """What maps the last hidden features of a radial network to path weights, [H, width].

    In block NL the bias is its last row, the weight of a feature that is 1.
    """
    last = len(layer.radial_widths) - 2
    if layer.block == "NL":
        mine = params.under("radial")
        return np.concatenate([mine.array(str(last)), mine.array(f"{last}.bias")[None]])
    scale = layer.radial_activation_scale if last > 0 else 1.0
    return scale * params.linear(f"radial.{last}")


def _constant_coupling(coupling) -> float:  # noqa: ANN001
    """The number that a coupling of a scalar with Y_l multiplies Y_l by."""
    matrix = coupling[0]
    value = float(matrix[0, 0])
    if not np.allclose(matrix, value * np.eye(len(matrix)), rtol=1e-5, atol=1e-7):
        raise UnsupportedModelError("first layer: couplings are no multiple of the unit matrix")
    return value


def _fold_readout(
    spec: ModelSpec, readout: ReadoutSpec, head: int, params: Parameters
) -> FoldedReadout:
    """Cut a readout down to one head, scale folded in."""
    row = FeatureLayout.parse(spec.layers[readout.layer].irreps_out).rows(Irrep(0, 1)).start
    scale = params.array("scale")[head]
    params = params.under(f"readouts.{spec.readouts.index(readout)}")
    if readout.kind == "linear":
        return FoldedReadout(row, None, scale * params.linear("linear")[:, head])
    kept = slice(head * readout.hidden, (head + 1) * readout.hidden)
    fan_in = spec.n_heads_source * readout.hidden
    weight = params.array("linear_2")[kept, head] / fan_in**0.5 * readout.activation_scale
    hidden = params.linear("linear_1")[:, kept]
    return FoldedReadout(row, hidden, scale * weight, readout.activation)
