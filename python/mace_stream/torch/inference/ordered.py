"""Passes that give the same bits every time, on a CPU with several threads."""

from __future__ import annotations

from typing import Any

from mace_stream.kernels.inference import Passes
from mace_stream.torch.placement import borrowed_threads


class OrderedPasses:
    """Runs on one thread what several threads would add to shared sums in varying order.

    Args:
        passes: Of the CPU.
    """

    def __init__(self, passes: Passes) -> None:
        self._passes = passes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._passes, name)

    def conv_backward(self, *arguments: Any) -> None:
        """As :meth:`Passes.conv_backward`: many receivers add to one sender's cotangent."""
        with borrowed_threads(1):
            self._passes.conv_backward(*arguments)
