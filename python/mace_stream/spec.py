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
``layers.{t}.product.{ir}.weight.{nu}``        [Z, K, C]
``layers.{t}.product.{ir}.U.{nu}.indices``     [nnz, 1+nu+1]: m, mu.., k
``layers.{t}.product.{ir}.U.{nu}.values``      [nnz]
``layers.{t}.product.linear.{ir}``             [C, C_out]                      1/sqrt(C)
``readouts.{r}.linear``                        [C, H] (kind linear)            1/sqrt(C)
``readouts.{r}.linear_1``                      [C, H*hidden] (nonlinear)       1/sqrt(C)
``readouts.{r}.linear_2``                      [H*hidden, H] (nonlinear)       1/sqrt(H_file*hidden)
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
BLOCKS = ("R", "RR", "D", "DR")


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
class LayerSpec:
    """One interaction and the product basis after it."""

    block: str
    """``R``, ``RR``, ``D`` or ``DR``: agnostic, residual, density, density residual."""
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
    """Whether the element-dependent skip connection is added after the product basis."""


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


_NESTED = {"radial": RadialSpec, "layers": LayerSpec, "readouts": ReadoutSpec, "paths": Path}


def _build(cls: type, data: dict) -> Any:
    """Make dataclass ``cls`` from plain JSON data, refusing unknown and missing fields."""
    names = {f.name for f in dataclasses.fields(cls)}
    if set(data) != names:
        odd = sorted(set(data) ^ names)
        raise ValueError(
            f"{cls.__name__}: missing or unknown fields {odd}; convert the model again"
        )
    return cls(**{name: _revive(name, value) for name, value in data.items()})


def _revive(name: str, value: Any) -> Any:
    nested = _NESTED.get(name)
    if isinstance(value, list):
        return tuple(_build(nested, item) if nested else item for item in value)
    return _build(nested, value) if nested else value
