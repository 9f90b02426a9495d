"""Which paths share a kernel, and how wide and deep that kernel is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mace_stream.couplings import ConvPlan

WARP = 32
SHARED_BYTES_PER_BLOCK = 72 * 1024
"""Leaves room for two or three blocks on a multiprocessor."""
MAX_STAGE_BYTES = 20 * 1024


@dataclass(frozen=True)
class Tuning:
    """What one pass gets, as measured on an H200 (docs/kernels.md, "What was tried")."""

    stages: int
    """Edges on their way per warp."""
    rows_wide: int
    """Output rows that a kernel holds where a thread has 8 bytes of channels."""
    rows_narrow: int
    """Likewise with 4 bytes of channels."""
    sets: int
    """Sets of (weights, features, harmonics) that an edge brings."""


TUNING = {
    "conv_forward": Tuning(stages=3, rows_wide=80, rows_narrow=96, sets=1),
    "conv_backward": Tuning(stages=3, rows_wide=40, rows_narrow=80, sets=1),
    "conv_backward_sender": Tuning(stages=0, rows_wide=40, rows_narrow=80, sets=0),
    "conv_double_backward": Tuning(stages=2, rows_wide=24, rows_narrow=40, sets=2),
}


@dataclass(frozen=True)
class PathGroup:
    """Paths that one kernel serves; lists are sorted."""

    paths: tuple[int, ...]
    rows_in: tuple[int, ...]
    rows_out: tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """Shape of the kernels of one pass."""

    groups: tuple[PathGroup, ...]
    width: int
    """Neighboring channels of one thread."""
    threads: int
    stages: int
    shared_bytes: tuple[int, ...]
    """Per group."""


def plan_launch(plan: ConvPlan, pass_name: str, itemsize: int) -> Launch:
    """Divide the paths of ``plan`` among kernels for one pass.

    Args:
        plan: The convolution.
        pass_name: Key of :data:`TUNING`.
        itemsize: 4 for float32, 8 for float64.
    """
    tuning = TUNING[pass_name]
    width = channel_width(plan.channels, itemsize)
    pack = width * itemsize
    budget = tuning.rows_wide if pack >= 8 else tuning.rows_narrow
    groups = tuple(_pack_paths(plan, budget, tuning.sets, pack))
    stages = [_stage_bytes(group, plan, tuning.sets, pack, itemsize) for group in groups]
    per_warp = tuning.stages * max(stages)
    warps = max(1, min(4, SHARED_BYTES_PER_BLOCK // per_warp)) if per_warp else 4
    shared = tuple(warps * tuning.stages * stage for stage in stages)
    return Launch(groups, width, warps * WARP, tuning.stages, shared)


def channel_width(channels: int, itemsize: int) -> int:
    """Return 2 where pairs of float32 channels fill warps well, else 1."""
    if itemsize == 8 or channels % 2:
        return 1
    tiles = -(-channels // (2 * WARP))
    return 2 if channels >= 0.85 * tiles * 2 * WARP else 1


def pack_paths(plan: ConvPlan, budget: int) -> list[PathGroup]:
    """Divide the paths into groups of at most ``budget`` output rows, a path at least."""
    return list(_pack_paths(plan, budget, 0, 0))


def _pack_paths(plan: ConvPlan, budget: int, sets: int, pack: int) -> Iterator[PathGroup]:
    """Fill groups in the order of input blocks, so that groups share few features."""
    order = sorted(range(plan.n_paths), key=lambda p: (plan.paths[p].rows_in.start, p))
    chosen: list[int] = []
    for path in order:
        trial = _group(plan, [*chosen, path])
        too_long = len(trial.rows_out) > budget
        too_big = sets * WARP * pack * (len(trial.paths) + len(trial.rows_in)) > MAX_STAGE_BYTES
        if chosen and (too_long or too_big):
            yield _group(plan, chosen)
            chosen = []
        chosen.append(path)
    yield _group(plan, chosen)


def _group(plan: ConvPlan, paths: list[int]) -> PathGroup:
    rows_in = {row for p in paths for row in _rows(plan.paths[p].rows_in)}
    rows_out = {row for p in paths for row in _rows(plan.paths[p].rows_out)}
    return PathGroup(tuple(sorted(paths)), tuple(sorted(rows_in)), tuple(sorted(rows_out)))


def _rows(rows: slice) -> range:
    return range(rows.start, rows.stop, rows.step or 1)


def _stage_bytes(group: PathGroup, plan: ConvPlan, sets: int, pack: int, itemsize: int) -> int:
    """Size of ``Stage`` in edge_stream.cuh."""
    attrs = -(-plan.dim_edge // 4) * 4 * itemsize
    size = sets * (WARP * pack * (len(group.paths) + len(group.rows_in)) + attrs)
    return int(np.ceil(size / pack) * pack)
