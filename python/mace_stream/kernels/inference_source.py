"""Writes the CUDA programs of the inference path: constants of a model, then a pass."""

from __future__ import annotations

from dataclasses import dataclass

from mace_stream.couplings import ConvPlan
from mace_stream.kernels.contraction_source import write_contraction
from mace_stream.kernels.groups import PathGroup, channel_width, pack_paths
from mace_stream.kernels.harmonics_source import write_harmonics
from mace_stream.kernels.inference import Contraction, Setup
from mace_stream.kernels.source import PAIR_AND_TERM, joined, pairs_and_terms

WARP = 32
MAX_WARPS = 4
"""Tiles of channels per block."""


@dataclass(frozen=True)
class Shape:
    """How a pass is launched."""

    threads: int
    grid_y: int = 1
    per_block: int = 1
    """Receivers, or nodes, of one block."""


@dataclass(frozen=True)
class Program:
    """Text of a program, its kernels, and how they are launched."""

    source: str
    instances: tuple[str, ...]
    shape: Shape


def edges_program(setup: Setup) -> Program:
    """Positions to edges."""
    zbl = setup.repulsion
    constants = [
        f"constexpr double R_0 = {setup.r_0!r}, R_MAX = {setup.r_max!r};",
        f"constexpr int ZBL_ORDER = {zbl.p if zbl else 0};",
        _doubles("ZBL_COEFFICIENTS", zbl.coefficients if zbl else [0.0] * 4),
        _doubles("ZBL_DECAYS", zbl.decays if zbl else [0.0] * 4),
    ]
    source = _program(setup, constants, "find_edges.cuh")
    return Program(source, ("find_edges",), Shape(4 * WARP, 1, 4))


def forces_program(setup: Setup) -> Program:
    """Gradients of the edge vectors to forces."""
    return Program(_program(setup, [], "sum_forces.cuh"), ("sum_forces",), Shape(4 * WARP))


def scatter_program(setup: Setup, density: bool, backward: bool) -> Program:
    """First layer."""
    width = 2 if setup.n_hidden % 2 == 0 and setup.dtype == "float32" else 1
    constants = [f"constexpr int N_HIDDEN = {setup.n_hidden}, WARPS = {MAX_WARPS};"]
    name = "scatter_backward" if backward else "scatter"
    instance = f"{name}<{width}, {_flag(density)}>"
    shape = Shape(MAX_WARPS * WARP, -(-setup.n_hidden // (width * WARP)), MAX_WARPS)
    return Program(_program(setup, constants, "scatter.cuh"), (instance,), shape)


ROWS = {False: 48, True: 40}
"""Output rows that a kernel holds, forward and backward, at 8 bytes of channels per thread."""


def conv_program(setup: Setup, plan: ConvPlan, density: bool, backward: bool) -> Program:
    """Convolution of a later layer; one kernel per group of paths."""
    width = channel_width(plan.channels, 4 if setup.dtype == "float32" else 8)
    groups = pack_paths(plan, ROWS[backward])
    tiles = -(-plan.channels // (width * WARP))
    warps = min(MAX_WARPS, tiles)
    constants = [
        f"constexpr int CHANNELS = {plan.channels}, N_PATHS = {plan.n_paths}, WARPS = {warps};",
        f"constexpr int N_BLOCKS = {len(plan.outputs)};",
        PAIR_AND_TERM,
        *(_group(plan, group, index) for index, group in enumerate(groups)),
    ]
    name = "radial_conv_backward" if backward else "radial_conv"
    instances = tuple(f"{name}<Group{g}, {width}, {_flag(density)}>" for g in range(len(groups)))
    source = _program(setup, constants, "radial_conv.cuh")
    return Program(source, instances, Shape(warps * WARP, -(-tiles // warps)))


def contraction_program(setup: Setup, contraction: Contraction, backward: bool) -> Program:
    """Symmetric contraction; ``NODES`` nodes of one species per thread."""
    nodes = 2 if backward else NODES_PER_PACK
    threads = min(128, -(-setup.channels // WARP) * WARP)
    source = "".join(
        [
            _types(setup),
            f"constexpr int CHANNELS = {setup.channels}, NODES = {nodes}, THREADS = {threads};\n",
            f"constexpr int DIM = {contraction.dim}, DIM_OUT = {contraction.dim_out};\n",
            f"constexpr int N_TERMS = {len(contraction.terms)};\n",
            '#include "packs.cuh"\n',
            write_contraction(contraction, nodes, backward=backward),
            f'#include "contraction{"_backward" if backward else ""}.cuh"\n',
        ]
    )
    instance = "contract_backward" if backward else "contract"
    return Program(source, (instance,), Shape(threads, 1, nodes))


NODES_PER_PACK = 4
"""The nodes of a species are padded to a multiple of this."""


def _types(setup: Setup) -> str:
    real = {"float32": "float", "float64": "double"}[setup.dtype]
    return f"using int32_t = int;\nusing int64_t = long long;\nusing Real = {real};\n"


def _program(setup: Setup, constants: list[str], file: str) -> str:
    common = [
        f"constexpr int DIM_EDGE = {(setup.l_max + 1) ** 2}, N_COEF = {setup.n_coef};",
        f"constexpr int N_SPECIES = {setup.n_species}, N_KNOTS = {setup.n_knots};",
        f"constexpr double INVERSE_STEP = {setup.inverse_step!r};",
    ]
    harmonics = write_harmonics(setup.l_max)
    return "\n".join([_types(setup), *common, harmonics, *constants, f'#include "{file}"', ""])


_GROUP = """\
struct Group{index} {{
  static constexpr bool FIRST = {first};
  static constexpr int N_IN = {n_in}, N_OUT = {n_out}, N_PATHS = {n_paths}, N_PAIRS = {n_pairs};
  static constexpr int ROWS_IN[] = {{{rows_in}}};
  static constexpr int PATHS[] = {{{paths}}};
  static constexpr int PATH_PAIRS[] = {{{path_pairs}}};
  static constexpr int OUT_BLOCK[] = {{{block}}};
  static constexpr int OUT_COMPONENT[] = {{{component}}};
  static constexpr int OUT_PATH[] = {{{path}}};
  static constexpr int OUT_PATHS[] = {{{of_paths}}};
  static constexpr Pair PAIRS[] = {{{pairs}}};
  static constexpr Term TERMS[] = {{{terms}}};
}};
"""


def _group(plan: ConvPlan, group: PathGroup, index: int) -> str:
    pairs, terms = pairs_and_terms(plan, group)
    firsts = [sum(pair[0] < p for pair in pairs) for p in range(len(group.paths) + 1)]
    places = [_place(plan, row) for row in group.rows_out]
    block, component, path, of_paths = zip(*places, strict=True)
    return _GROUP.format(
        index=index,
        first=_flag(index == 0),
        n_in=len(group.rows_in),
        n_out=len(group.rows_out),
        n_paths=len(group.paths),
        n_pairs=len(pairs),
        rows_in=joined(group.rows_in),
        paths=joined(group.paths),
        path_pairs=joined(firsts),
        block=joined(block),
        component=joined(component),
        path=joined(path),
        of_paths=joined(of_paths),
        pairs=joined(f"{{{joined(pair)}}}" for pair in pairs),
        terms=joined(f"{{{joined(map(repr, term))}}}" for term in terms),
    )


def _place(plan: ConvPlan, row: int) -> tuple[int, int, int, int]:
    """Number of the output block of a row, its component, its path, and the block's paths."""
    number = next(k for k, block in enumerate(plan.outputs) if row < block.rows.stop)
    block = plan.outputs[number]
    component, path = divmod(row - block.rows.start, block.n_paths)
    return number, component, path, block.n_paths


def _doubles(name: str, values) -> str:  # noqa: ANN001  any iterable of numbers
    return f"constexpr double {name}[] = {{{joined(repr(float(v)) for v in values)}}};"


def _flag(value: bool) -> str:
    return "true" if value else "false"
