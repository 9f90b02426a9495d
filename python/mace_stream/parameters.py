"""Tensors of a model file as float64, with the constants that belong to them; its couplings."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np

from mace_stream.couplings import ConvPlan
from mace_stream.spec import LayerSpec, ModelSpec


class Parameters:
    """Tensors under one prefix of a model file, read as float64; ``dtype`` is what they become."""

    def __init__(self, tensors: Mapping[str, np.ndarray], dtype: Any, prefix: str = "") -> None:
        self.dtype = dtype
        self.tensors = tensors
        self.prefix = prefix

    def under(self, prefix: str) -> Parameters:
        """The tensors whose names start with ``prefix`` and a dot."""
        return type(self)(self.tensors, self.dtype, f"{self.prefix}{prefix}.")

    def array(self, name: str) -> np.ndarray:
        """One tensor in float64 (integers as int64).

        Raises:
            ValueError: The file lacks it.
        """
        full_name = self.prefix + name
        if full_name not in self.tensors:
            raise ValueError(f"tensor {full_name}: missing; convert the model again")
        array = np.asarray(self.tensors[full_name])
        return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)

    def scalar(self, name: str) -> float:
        """One number."""
        return float(self.array(name))

    def linear(self, name: str) -> np.ndarray:
        """A weight ``[..., fan_in, out]`` or ``[C_in, Z, C_out]`` divided by ``sqrt(fan_in)``."""
        weight = self.array(name)
        return weight / sqrt(max(1, weight.size // weight.shape[-1]))

    def names(self) -> list[str]:
        """Names under the prefix, prefix removed."""
        start = len(self.prefix)
        return [name[start:] for name in self.tensors if name.startswith(self.prefix)]


def build_plan(spec: ModelSpec, layer: LayerSpec, params: Parameters) -> ConvPlan:
    """Build the convolution's tables with the coupling tensors of the file."""
    w3j = {
        (path.ir_in, path.l_edge, path.ir_out): params.array(
            f"w3j.{path.ir_in}.{path.l_edge}.{path.ir_out}"
        )
        for path in layer.paths
    }
    return ConvPlan.build(layer.irreps_up, spec.l_max, layer.paths, w3j)
