"""Reading tensors of a model file as float64 and folding constants into them."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from mace_stream import parameters

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "none": lambda x: x,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Look an activation up by its name in the file.

    Raises:
        ValueError: It is not supported.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation: expected one of {sorted(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


class Parameters(parameters.Parameters):
    """Tensors under one prefix of a model file, read as float64, cast after folding.

    Where one is a tensor of torch, what is folded from it can be differentiated by it.
    """

    def array(self, name: str) -> np.ndarray:
        """As NumPy's.

        Raises:
            ValueError: The file lacks it, or a derivative by it would be lost.
        """
        given = self.tensors.get(self.prefix + name)
        if isinstance(given, Tensor) and given.requires_grad:
            raise ValueError(
                f"tensor {self.prefix}{name}: a constant of the model, which cannot be trained; "
                "mace_stream.tensors.trainable_names lists what can"
            )
        return super().array(name)

    def tensor(self, name: str) -> Tensor:
        """One tensor in float64."""
        given = self.tensors.get(self.prefix + name)
        if isinstance(given, Tensor):
            return given.double()
        return torch.from_numpy(np.array(self.array(name)))

    def number(self, name: str) -> float | Tensor:
        """One number; a tensor where a derivative by it is wanted."""
        number = self.tensor(name)
        return self.cast(number) if number.requires_grad else float(number)

    def linear(self, name: str) -> Tensor:
        """As NumPy's, a tensor."""
        weight = self.tensor(name)
        return weight / sqrt(max(1, weight.numel() // weight.shape[-1]))

    def cast(self, tensor: Tensor) -> Tensor:
        """Cast a folded float64 tensor to the model's precision."""
        return tensor.to(self.dtype)
