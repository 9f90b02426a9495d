"""How the stages of a step are started: launch by launch, or as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch


@dataclass(frozen=True)
class Stage:
    """A part of a step."""

    run: Callable[[], object]
    is_fixed: bool = False
    """Whether it makes the same launches on the same addresses until arrays grow."""


def merged(stages: Iterable[Stage]) -> list[Stage]:
    """Join fixed stages that follow each other."""
    return [
        stage
        for is_fixed, group in groupby(stages, key=lambda stage: stage.is_fixed)
        for stage in ([_joined(list(group))] if is_fixed else group)
    ]


def _joined(stages: Sequence[Stage]) -> Stage:
    def run() -> None:
        for stage in stages:
            stage.run()

    return Stage(run, is_fixed=True)


class PlainRun:
    """Runs a step kernel by kernel."""

    n_captures = 0
    text = "none: the step is launched kernel by kernel"

    def __call__(self, stages: Sequence[Stage]) -> None:
        """Run all stages."""
        for stage in stages:
            stage.run()

    def forget(self) -> None:
        """Nothing is kept."""


class GraphedRun:
    """Captures the fixed stages of a step and replays them, until addresses change.

    The first step after that runs as it is, for libraries to set themselves up.
    """

    text = "one per step, or per stage between exchanges; captured again when arrays grow"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.n_captures = 0
        self.forget()

    def __call__(self, stages: Sequence[Stage]) -> None:
        """Run all stages, those that are fixed as graphs."""
        if not self._is_warm:
            self._is_warm = True
            PlainRun()(stages)
            return
        if not self._graphs:
            self._capture(stages)
        graphs = iter(self._graphs)
        for stage in stages:
            (next(graphs).replay if stage.is_fixed else stage.run)()

    def _capture(self, stages: Sequence[Stage]) -> None:
        torch.cuda.synchronize(self.device)
        pool = torch.cuda.graph_pool_handle()
        with torch.cuda.device(self.device):
            for stage in (stage for stage in stages if stage.is_fixed):
                self._graphs.append(torch.cuda.CUDAGraph())
                with torch.cuda.graph(self._graphs[-1], pool=pool):
                    stage.run()
        self.n_captures += 1

    def forget(self) -> None:
        """Drop the graphs before the arrays that they know are freed."""
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._is_warm = False
