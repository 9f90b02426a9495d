"""Writes the constants of one pass of one convolution, as the CUDA files expect them."""

from __future__ import annotations

import numpy as np

from mace_stream.couplings import ConvPlan
from mace_stream.kernels.groups import Launch, PathGroup

_PREAMBLE = """\
using int32_t = int;
using int64_t = long long;
using Real = {real};
constexpr int BLOCK = {threads}, STAGES = {stages};
constexpr int DIM_IN = {dim_in}, DIM_EDGE = {dim_edge}, DIM_OUT = {dim_out}, N_PATHS = {n_paths};
"""

PAIR_AND_TERM = """\
struct Pair {
  int path, in, first_term, n_terms;
};
struct Term {
  int edge, out;
  double value;
};
"""

_GROUP = """\
struct Group{index} {{
  static constexpr bool FIRST = {first};
  static constexpr int N_IN = {n_in}, N_OUT = {n_out}, N_PATHS = {n_paths}, N_PAIRS = {n_pairs};
  static constexpr int ROWS_IN[] = {{{rows_in}}};
  static constexpr int ROWS_OUT[] = {{{rows_out}}};
  static constexpr int PATHS[] = {{{paths}}};
  static constexpr Pair PAIRS[] = {{{pairs}}};
  static constexpr Term TERMS[] = {{{terms}}};
}};
"""


def write_source(plan: ConvPlan, launch: Launch, pass_name: str, dtype: str) -> str:
    """Return the program of one pass: constants, then the files of the pass.

    Args:
        plan: The convolution.
        launch: Its groups and shape, from :func:`mace_stream.kernels.groups.plan_launch`.
        pass_name: Name of the kernel template and of its file.
        dtype: ``float32`` or ``float64``.
    """
    preamble = _PREAMBLE.format(
        real={"float32": "float", "float64": "double"}[dtype],
        threads=launch.threads,
        stages=max(launch.stages, 2),
        dim_in=plan.dim_in,
        dim_edge=plan.dim_edge,
        dim_out=plan.dim_out,
        n_paths=plan.n_paths,
    )
    groups = [_group_text(plan, group, index) for index, group in enumerate(launch.groups)]
    includes = [f'#include "{pass_name}.cuh"\n', '#include "sum_tiles.cuh"\n']
    return "".join([preamble, PAIR_AND_TERM, *groups, *includes])


def _group_text(plan: ConvPlan, group: PathGroup, index: int) -> str:
    pairs, terms = pairs_and_terms(plan, group)
    return _GROUP.format(
        index=index,
        first="true" if index == 0 else "false",
        n_in=len(group.rows_in),
        n_out=len(group.rows_out),
        n_paths=len(group.paths),
        n_pairs=len(pairs),
        rows_in=joined(group.rows_in),
        rows_out=joined(group.rows_out),
        paths=joined(group.paths),
        pairs=joined(f"{{{joined(pair)}}}" for pair in pairs),
        terms=joined(f"{{{joined(map(repr, term))}}}" for term in terms),
    )


def pairs_and_terms(
    plan: ConvPlan, group: PathGroup
) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, int, float]]]:
    """Couplings sorted by (path, input row), with indices local to the group."""
    pairs: list[tuple[int, int, int, int]] = []
    terms: list[tuple[int, int, float]] = []
    row_in, row_edge, path, row_out = plan.terms.T
    for local_path, global_path in enumerate(group.paths):
        for local_in, global_in in enumerate(group.rows_in):
            mine = np.flatnonzero((path == global_path) & (row_in == global_in))
            if mine.size == 0:
                continue
            pairs.append((local_path, local_in, len(terms), len(mine)))
            terms += [
                (int(row_edge[k]), group.rows_out.index(row_out[k]), float(plan.values[k]))
                for k in mine
            ]
    return pairs, terms


def joined(items) -> str:  # noqa: ANN001  any iterable of printable items
    """Return the items, printed, with commas between them."""
    return ", ".join(map(str, items))
