"""Runs the kernels of the inference path on random problems."""

from __future__ import annotations

import numpy as np

from mace_stream.kernels.inference import EdgeArrays, EdgeList
from mace_stream.kernels.inference_cpu import CpuPasses
from mace_stream.reference.inference import ReferencePasses, join_blocks, split_blocks
from mace_stream.testing.inference import random_problem

SETUPS = {
    "medium": {},
    "two_species_cubic": {"n_coef": 4, "n_species": 3, "channels": 19},
    "one_species": {"n_species": 1, "channels": 8},
    "scalars_only": {"irreps_up": (("0e",),), "dims_out": (1, 1), "channels": 33},
    "three_layers": {
        "irreps_up": (("0e", "1o", "2e"), ("0e", "1o")),
        "dims_out": (9, 4, 1),
        "channels": 3,
    },
    "l_max_4": {"l_max": 4, "irreps_up": (("0e", "1o", "2e", "3o"),), "share_of_terms": 0.02},
    "l_max_0": {"l_max": 0, "irreps_up": (("0e",),), "channels": 1, "n_hidden": 1},
    "wide": {"channels": 128, "n_hidden": 64, "share_of_terms": 0.1},
    "correlation_1": {"correlation": 1, "channels": 7},
    "correlation_2": {"correlation": 2, "repulsion": False},
    "correlation_4": {"correlation": 4, "l_max": 2, "share_of_terms": 0.2},
}


class Run:
    """Kernels on one problem; what they write is filled with NaN, or -1, before."""

    def __init__(self, core, setup, problem, with_density=True):
        self.setup, self.problem = setup, problem
        self.real = np.dtype(setup.dtype)
        self.passes = self.make_passes(core, with_density)
        nodes = problem.nodes
        self.lists = [
            nodes.first.astype(np.int64),
            *(
                getattr(nodes, name).astype(np.int32)
                for name in ("node_atom", "slot_atom", "slot_node", "species")
            ),
        ]
        sizes = (nodes.n_nodes, nodes.n_senders, nodes.n_slots)
        self.nodes = EdgeList(*sizes, *map(self.address, self.lists))
        self.density = self.cast(problem.density) if with_density else None
        self.edges = self.edge_arrays(problem.edges)
        self.norm = self.poisoned(nodes.n_nodes)

    def make_passes(self, core, with_density):
        return CpuPasses(self.setup, core)

    def address(self, array):
        return address(array)

    def cast(self, array):
        return np.array(array, dtype=self.real, order="C")

    def poisoned(self, *shape, dtype=None):
        return np.full(shape, np.nan, dtype or self.real)

    def edge_arrays(self, edges):
        """The oracle's edges, without gradient."""
        counts = [np.ascontiguousarray(a, np.int32) for a in (edges.count, edges.sender, edges.row)]
        self.grad = np.zeros(edges.grad.shape, self.real)
        self.arrays = [*counts, self.cast(edges.t), self.cast(edges.dir), self.grad]
        return EdgeArrays(*map(self.address, self.arrays))

    def find_edges(self):
        """Count, sender, row, t, dir, grad, node energies, closest."""
        n, n_slots = self.nodes.n_nodes, self.nodes.n_slots
        ints = [np.full(size, -1, np.int32) for size in (n, n_slots, n_slots)]
        reals = [self.poisoned(n_slots), self.poisoned(n_slots, 4), self.poisoned(n_slots, 3)]
        energy, closest = self.poisoned(n, dtype=np.float64), np.array([np.inf])
        edges = EdgeArrays(*map(self.address, (*ints, *reals)))
        x = np.ascontiguousarray(self.problem.x)
        self.passes.edges(self.nodes, edges, *map(self.address, (x, energy, closest)))
        return *ints, *reals, energy, closest[0]

    def scatter(self):
        """Sums and norms."""
        p, n = self.problem, self.nodes.n_nodes
        out = self.poisoned(*p.scatter_bar.shape)
        table = self.cast(p.hidden)
        arrays = (table, self.density, out, self.norm)
        self.passes.scatter(self.nodes, self.edges, *map(self.address, arrays))
        return out, self.norm if self.density is not None else np.ones(n)

    def scatter_backward(self):
        """What is added to grad."""
        out, _ = self.scatter()
        bar, table = self.cast(self.problem.scatter_bar), self.cast(self.problem.hidden)
        dot = self.cast((np.float64(out) * bar).sum(axis=(0, 2, 3)))
        arrays = (table, self.density, bar, self.norm, dot)
        return self.added(
            lambda: self.passes.scatter_backward(self.nodes, self.edges, *map(self.address, arrays))
        )

    def conv(self, layer, tile):
        """Messages, flat, and norms of the tile."""
        p, plan = self.problem, self.setup.plans[layer]
        out = self.poisoned(plan.dim_out * (tile[1] - tile[0]) * plan.channels)
        up, table = self.cast(p.ups[layer]), self.cast(p.convs[layer])
        arrays = *map(self.address, (up, table, self.density)), self.blocks(layer, tile, out)
        self.passes.conv(layer, tile, self.nodes, self.edges, *arrays, self.address(self.norm))
        return out, self.norm[slice(*tile)]

    def blocks(self, layer, tile, flat):
        """Addresses of the output blocks, one after the other."""
        plan = self.setup.plans[layer]
        size = (tile[1] - tile[0]) * plan.channels * np.dtype(self.real).itemsize
        return [self.address(flat) + block.rows.start * size for block in plan.outputs]

    def rows(self, array):
        """Addresses of the rows of an array."""
        size = array[0].size * np.dtype(self.real).itemsize
        return [self.address(array) + row * size for row in range(len(array))]

    def conv_backward(self, layer, tile, bar, up_bar=True):
        """What is added to grad and to up_bar."""
        p, plan = self.problem, self.setup.plans[layer]
        bar, n = self.cast(bar), tile[1] - tile[0]
        out, _ = self.conv(layer, tile)
        dot = self.poisoned(self.nodes.n_nodes)
        product = split_blocks(plan, np.float64(out) * bar, n)
        dot[slice(*tile)] = product.sum(axis=(1, 2))
        ups_bar = np.ones(p.ups[layer].shape, self.real) if up_bar else None
        up, table = self.cast(p.ups[layer]), self.cast(p.convs[layer])
        arrays = *map(self.address, (up, table, self.density)), self.blocks(layer, tile, bar)
        arrays += tuple(map(self.address, (self.norm, dot, ups_bar)))
        grad = self.added(
            lambda: self.passes.conv_backward(layer, tile, self.nodes, self.edges, *arrays)
        )
        return grad, None if ups_bar is None else ups_bar - 1

    def added(self, call):
        """What a pass adds to grad; it meets ones."""
        self.grad[:] = 1
        call()
        return self.grad - 1

    def contract(self, layer, tile):
        p, contraction = self.problem, self.setup.contractions[layer]
        msg = self.cast(p.messages[layer][:, slice(*tile)])
        out = self.poisoned(contraction.dim_out, *msg.shape[1:])
        coefs = self.cast(p.coefs[layer])
        arrays = self.address(self.lists[4]), self.address(coefs), self.rows(msg)
        self.passes.contract(layer, tile, *arrays, self.address(out))
        return out

    def contract_backward(self, layer, tile, with_dot=True):
        """Cotangent of the messages, and dot."""
        p = self.problem
        msg, bar = (
            self.cast(array[layer][:, slice(*tile)]) for array in (p.messages, p.basis_bars)
        )
        dot = self.poisoned(self.nodes.n_nodes) if with_dot else None
        coefs = self.cast(p.coefs[layer])
        arrays = self.address(self.lists[4]), self.address(coefs), self.rows(msg)
        self.passes.contract_backward(layer, tile, *arrays, self.address(bar), self.address(dot))
        return msg, None if dot is None else dot[slice(*tile)]

    def forces(self, virials=True):
        """Forces, virial, and the virials of receivers and senders."""
        n, n_senders = self.nodes.n_nodes, self.nodes.n_senders
        self.grad[:] = self.problem.edges.grad
        shapes = [(n_senders, 3), (9,), (n, 9), (n_senders, 9)]
        out = [self.poisoned(*shape, dtype=np.float64) for shape in shapes]
        if not virials:
            out[2:] = None, None
        self.passes.forces(self.nodes, self.edges, *map(self.address, out))
        return out


def address(array):
    return 0 if array is None else array.ctypes.data


def run_of(core, setup, with_density=True, **sizes):
    problem = random_problem(setup, **sizes)
    return Run(core, setup, problem, with_density), ReferencePasses(setup)


def own(run, array):
    """Rows of slots that hold an edge."""
    return array[run.problem.edges.slots(run.problem.nodes)[0]]


def layers_with_conv(setup):
    return [layer for layer, plan in enumerate(setup.plans) if plan is not None]


def tiles_of(run):
    n = run.nodes.n_nodes
    return [(0, n), (0, n // 3), (n // 3, n), (n, n)]


def conv_bar_of(run, layer, tile):
    """Cotangent of a tile's messages, cut from that of all."""
    plan = run.setup.plans[layer]
    rows = split_blocks(plan, run.problem.conv_bars[layer], run.nodes.n_nodes)
    return join_blocks(plan, rows[slice(*tile)])
