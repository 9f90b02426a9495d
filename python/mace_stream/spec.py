"""What a ``.mace`` file holds: the architecture as JSON metadata, the parameters as named tensors.

A ``.mace`` file is one safetensors file. Its metadata has one key, ``mace_stream``, whose value is
the JSON form of :class:`ModelSpec`. Nothing in the file is executable.

Parameters and buffers are the *raw* numbers of the source model: normalisation constants such as
``1/sqrt(fan_in)`` are applied when a model is built, in float64, so that a file saved in float32
gives the same float64 energies as its source. Irreps are written as in e3nn (``"32x0e+32x1o"``);
``{ir}`` below stands for one irrep, ``0e`` or ``1o``; ``{t}`` is the layer, from 0; C is the number
of channels, Z the number of elements, H the number of heads.

=============================================  ==============================  =====================
tensor                                         shape                           norm applied at load
=============================================  ==============================  =====================
``atomic_energies``                            [H, Z] eV
``scale``, ``shift``                           [H]; 1 and 0 where absent
``node_embedding.weight``                      [Z, C]                          1/sqrt(Z)
``radial.bessel.{frequencies,prefactor}``      [n_basis], []
``radial.gaussian.{centers,coefficient}``      [n_basis], []
``radial.chebyshev.orders``                    [n_basis]
``radial.cutoff.{p,r_max}``                    []
``radial.agnesi.{a,p,q,covalent_radii}``       [], [], [], [119]
``radial.soft.{alpha,covalent_radii}``         [], [119]
``zbl.{c,p,a_exp,a_prefactor,covalent_radii}`` [4], [], [], [], [119]
``layers.{t}.linear_up.{ir}``                  [C_in, C_up]                    1/sqrt(C_in)
``layers.{t}.radial.{k}``                      [in, out], last out = paths*C   1/sqrt(in)
``layers.{t}.w3j.{ir_in}.{l_edge}.{ir_out}``   [2l_in+1, 2l_edge+1, 2l_out+1]
``layers.{t}.linear.{ir}``                     [paths_ir*C_up, C]              1/sqrt(paths_ir*C_up)
``layers.{t}.avg_num_neighbors``               [] (blocks R and RR)
``layers.{t}.density``                         [n_basis, 1] (blocks D and DR)  1/sqrt(n_basis)
``layers.{t}.skip.{ir}``                       [C_in, Z, C_out]                1/sqrt(C_in*Z)
``layers.{t}.product.{ir}.weight.{nu}``        [Z or 1, K, C]
``layers.{t}.product.{ir}.U.{nu}.indices``     [nnz, 1+nu+1]: m, mu.., k
``layers.{t}.product.{ir}.U.{nu}.values``      [nnz]
``layers.{t}.product.linear.{ir}``             [C, C_out]                      1/sqrt(C)
``embedding.{input}.table``                    [classes, E] (categorical)
``embedding.{input}.{k}``, ``….{k}.bias``      [1, E], [E, E] (continuous)
``embedding.project``                          [sum of E, C]
``embedding.readout``                          [C, H]                          1/sqrt(C)
``readouts.{r}.linear``                        [C, H] (kind linear)            1/sqrt(C)
``readouts.{r}.linear_1``                      [C, H*hidden] (nonlinear)       1/sqrt(C)
``readouts.{r}.linear_2``                      [H*hidden, H] (nonlinear)       1/sqrt(H_file*hidden)
=============================================  ==============================  =====================

Block NL has, in place of ``linear``, ``avg_num_neighbors``, ``density`` and ``skip``, with G the
number of message irreps of l > 0, and networks of linear layers with biases, each but the last
followed by a layer norm and silu:

=============================================  ==============================  =====================
``layers.{t}.{source,target}_embedding``       [Z, C_in]                       1/sqrt(Z)
``layers.{t}.radial.{k}``                      [in, out]; first in = n_basis
                                               + 2 C_in
``layers.{t}.radial.{k}.bias``                 [out]
``layers.{t}.radial.{k}.norm.{weight,bias}``   [out], not for the last k
``layers.{t}.density.{k}…``                    as ``radial``; last out = 1
``layers.{t}.{alpha,beta}``                    []
``layers.{t}.linear_1.{ir}``                   [paths_ir*C_up, C], for ``0e``  1/sqrt(paths_ir*C_up)
                                               [.., (1+G)*C]: scalars, gates
``layers.{t}.residual.{ir}``                   [C_up, C or (1+G)*C]            1/sqrt(C_up)
``layers.{t}.linear_2.{ir}``                   [C, C]                          1/sqrt(C)
``layers.{t}.skip.{ir}``                       [C_in, C_out]                   1/sqrt(C_in)
=============================================  ==============================  =====================

``H_file`` is :attr:`ModelSpec.n_heads_source`: keeping one head of many leaves that factor as it
was.

Tensors have the file's dtype, except that ``indices`` are int16, and that ``atomic_energies``,
``scale``, ``shift``, ``w3j``, ``avg_num_neighbors`` and ``radial.gaussian.coefficient`` are float64
in every file: the source computes with them in double precision or adds them to large sums.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

FORMAT_VERSION = 1
METADATA_KEY = "mace_stream"
BLOCKS = ("R", "RR", "D", "DR", "NL")
INPUT_DEFAULTS = {"total_charge": 0.0, "total_spin": 1.0}
"""Inputs that a model may take, of the whole system: charge in units of e, spin multiplicity."""
LAYER_NORM_EPS = 1e-5
"""Added to the variance in the layer norms of block NL."""


@dataclass(frozen=True)
class RadialSpec:
    """How a distance becomes ``n_basis`` radial features."""

    basis: str
    """``bessel``, ``gaussian`` or ``chebyshev``."""
    n_basis: int
    transform: str
    """``none``, ``agnesi`` or ``soft``."""


@dataclass(frozen=True)
class Path:
    """One allowed coupling (input block, edge harmonic) -> output, in weight order."""

    ir_in: str
    l_edge: int
    ir_out: str


@dataclass(frozen=True)
class GateSpec:
    """The gate of block NL: scalars through one activation, the rest times another's values."""

    activation: str
    activation_scale: float
    """Second-moment constants, as stored by the source model."""
    gate_activation: str
    gate_activation_scale: float


@dataclass(frozen=True)
class InputSpec:
    """A number of the whole system, such as its charge, that is embedded into node features."""

    name: str
    """``total_charge`` or ``total_spin``."""
    kind: str
    """``categorical`` (a row of a table) or ``continuous`` (through a small network)."""
    width: int
    n_classes: int
    """Rows of the table; 0 for ``continuous``."""
    offset: int
    """Added to the number to give the row."""
    has_bias: bool
    """Whether the network of ``continuous`` has biases."""


@dataclass(frozen=True)
class LayerSpec:
    """One interaction and the product basis after it."""

    block: str
    """``R``, ``RR``, ``D``, ``DR``: agnostic, residual, density, density residual; ``NL``."""
    irreps_in: str
    """Node features that enter."""
    irreps_up: str
    """After ``linear_up``: what the convolution reads."""
    irreps_message: str
    """After the linear layer that follows the convolution."""
    irreps_out: str
    """After the product basis."""
    paths: tuple[Path, ...]
    radial_widths: tuple[int, ...]
    """Widths of the radial network, input and output included."""
    radial_activation: str
    radial_activation_scale: float
    """The activation's second-moment constant, as stored by the source model."""
    correlation: int
    use_sc: bool
    """Whether the skip connection is added after the product basis."""
    agnostic_product: bool = False
    """Whether all elements share the weights of the product basis."""
    gate: GateSpec | None = None
    """Block NL only."""
    density_widths: tuple[int, ...] = ()
    """Block NL only: widths of the density's network, input and output included."""


@dataclass(frozen=True)
class ReadoutSpec:
    """One contribution to the site energy."""

    kind: str
    """``linear`` or ``nonlinear``."""
    layer: int
    """Layer whose output it reads."""
    hidden: int
    """Hidden width per head; 0 for ``linear``."""
    activation: str
    activation_scale: float


@dataclass(frozen=True)
class ModelSpec:
    """Architecture of a model: everything but its numbers."""

    architecture: str
    """``MACE`` or ``ScaleShiftMACE``."""
    dtype: str
    """``float32`` or ``float64``: of the tensors in the file."""
    elements: tuple[int, ...]
    """Atomic numbers, in the model's order."""
    r_max: float
    """Cutoff in Å."""
    heads: tuple[str, ...]
    n_heads_source: int
    l_max: int
    radial: RadialSpec
    pair_repulsion: str
    """``none`` or ``zbl``."""
    layers: tuple[LayerSpec, ...]
    readouts: tuple[ReadoutSpec, ...]
    apply_cutoff: bool = True
    """Whether the radial features, rather than the path weights, are multiplied by the cutoff."""
    inputs: tuple[InputSpec, ...] = ()
    embedding_readout: bool = False
    """Whether the node embedding itself is read out: a constant energy per element."""
    provenance: dict = field(default_factory=dict)
    """Source file name, SHA-256, class, versions of mace-torch and torch, licence where known."""
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """Return the JSON text stored in the file's metadata."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """Rebuild a specification.

        Raises:
            ValueError: The text comes from another format version, or misses or adds a field.
        """
        data = json.loads(text)
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(
                f"format_version: expected {FORMAT_VERSION}, got {version}; "
                "convert the model again with this version of mace-stream"
            )
        return _build(cls, data)


_NESTED = {
    "radial": RadialSpec,
    "layers": LayerSpec,
    "readouts": ReadoutSpec,
    "paths": Path,
    "gate": GateSpec,
    "inputs": InputSpec,
}


def _build(cls: type, data: dict) -> Any:
    """Make dataclass ``cls`` from plain JSON data, refusing unknown and missing fields.

    Fields with a default are younger than the format and may be missing.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}
    required = {name for name, f in fields.items() if _has_no_default(f)}
    odd = sorted((set(data) - set(fields)) | (required - set(data)))
    if odd:
        raise ValueError(
            f"{cls.__name__}: missing or unknown fields {odd}; convert the model again"
        )
    return cls(**{name: _revive(name, value) for name, value in data.items()})


def _has_no_default(field_: dataclasses.Field) -> bool:
    missing = dataclasses.MISSING
    return field_.default is missing and field_.default_factory is missing


def _revive(name: str, value: Any) -> Any:
    nested = _NESTED.get(name)
    if isinstance(value, list):
        return tuple(_build(nested, item) if nested else item for item in value)
    return _build(nested, value) if nested and value is not None else value
