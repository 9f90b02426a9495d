"""The passes of the inference path as functions of JAX arrays.

What a pass changes in place is an argument and a result here; XLA gives both the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.folded import Tile
from mace_stream.jax.ops import PASSES_TARGET
from mace_stream.kernels.inference import EdgeArrays, EdgeList
from mace_stream.kernels.recording import FIRST_RESULT, CpuNotes, CudaNotes, mark


class Nodes(NamedTuple):
    """A neighbor list in the order of the passes; see :class:`EdgeList`."""

    first: Array
    node_atom: Array
    slot_atom: Array
    slot_node: Array
    species: Array


class Edges(NamedTuple):
    """The edges of one step; see :class:`EdgeArrays`."""

    count: Array
    sender: Array
    row: Array
    t: Array
    dir: Array
    grad: Array


class _Call:
    """Arrays and results of one call, and the marks that stand for them."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.results: list[jax.ShapeDtypeStruct] = []
        self.aliases: dict[int, int] = {}

    def read(self, array: Array | None, start: int = 0) -> int:
        """An array from element ``start`` on; 0 for none."""
        if array is None:
            return 0
        self.arrays.append(array)
        return mark(len(self.arrays) - 1, start * array.dtype.itemsize)

    def write(self, shape: Sequence[int], dtype: Any) -> int:
        """A new array."""
        self.results.append(jax.ShapeDtypeStruct(tuple(shape), dtype))
        return mark(FIRST_RESULT + len(self.results) - 1, 0)

    def change(self, array: Array | None, start: int = 0) -> int:
        """An array that is changed in place, from element ``start`` on; 0 for none."""
        if array is None:
            return 0
        self.arrays.append(array)
        self.aliases[len(self.arrays) - 1] = len(self.results)
        return self.write(array.shape, array.dtype) + start * array.dtype.itemsize

    def run(self, note: dict[str, Any]) -> list[Array]:
        """Call, when the program runs, what was noted; return the results."""
        numbers = np.array(note.pop("numbers"), np.int64)
        call = jax.ffi.ffi_call(PASSES_TARGET, self.results, input_output_aliases=self.aliases)
        return list(call(*self.arrays, numbers=numbers, **note))


class Calls:
    """Functions with the names of :class:`mace_stream.kernels.inference.Passes`.

    Args:
        passes: Take notes for the device's kernels.
    """

    def __init__(self, passes: CpuNotes | CudaNotes) -> None:
        self._passes, self._setup = passes, passes.setup
        self._real = np.dtype(passes.setup.dtype)

    def from_host(self, memory: np.ndarray) -> Array:
        """What stands in page-locked memory when the program runs."""
        call = _Call()
        target = call.write(memory.shape, memory.dtype)
        address, size = memory.ctypes.data, memory.nbytes
        (array,) = call.run(self._passes.note(lambda p: p.copy(target, address, size)))
        return array

    def to_host(self, array: Array, memory: np.ndarray, arrived: np.ndarray) -> Array:
        """The array. When its first number stands in ``arrived`` too, all stand in ``memory``.

        Both are page-locked. Copies of one stream follow each other.
        """
        call = _Call()
        source = call.change(array)

        def copies(passes: CudaNotes) -> None:
            for target in (memory, arrived):
                passes.copy(target.ctypes.data, source, target.nbytes)

        (array,) = call.run(self._passes.note(copies))
        return array

    def edges(self, nodes: Nodes, x: Array) -> tuple[Edges, Array, Array]:
        """Edges within r_max, node energies [n] and the smallest distance below r_0 [1]."""
        n, n_slots, call = len(nodes.node_atom), len(nodes.slot_atom), _Call()
        shapes = [(n,), (n_slots,), (n_slots,), (n_slots,), (n_slots, 4), (n_slots, 3)]
        dtypes = [np.int32] * 3 + [self._real] * 3
        written = EdgeArrays(*map(call.write, shapes, dtypes))
        node_energy = call.write((n,), np.float64)
        closest = call.change(jnp.full(1, jnp.inf, jnp.float64))
        of_nodes, at = _nodes(call, nodes), call.read(x)
        note = self._passes.note(lambda p: p.edges(of_nodes, written, at, node_energy, closest))
        *edges, energy, smallest = call.run(note)
        return Edges(*edges), energy, smallest

    def scatter(
        self,
        tile: Tile,
        nodes: Nodes,
        edges: Edges,
        table: Array,
        density: Array | None,
        norm: Array | None,
    ) -> tuple[Array, Array | None]:
        """Sums of the first layer [(l_max + 1)^2, n, S * H], and norms [n_nodes]."""
        setup, call = self._setup, _Call()
        width = setup.n_species * setup.n_hidden
        shape = (setup.l_max + 1) ** 2, tile.last - tile.first, width
        arrays = _nodes(call, nodes, tile), _edges(call, edges, tile)
        arrays += call.read(table), call.read(density), call.write(shape, self._real)
        changed = call.change(norm, tile.first)
        rows, *norms = call.run(self._passes.note(lambda p: p.scatter(*arrays, changed)))
        return rows, norms[0] if norms else None

    def scatter_backward(
        self,
        tile: Tile,
        nodes: Nodes,
        edges: Edges,
        table: Array,
        density: Array | None,
        rows_bar: Array,
        norm: Array | None,
        dot: Array,
    ) -> Edges:
        """Edges with the first layer's gradient added."""
        call = _Call()
        arrays = _nodes(call, nodes, tile), _edges(call, edges, tile, changed=True)
        arrays += tuple(map(call.read, (table, density, rows_bar)))
        arrays += call.read(norm, tile.first), call.read(dot, tile.first)
        (grad,) = call.run(self._passes.note(lambda p: p.scatter_backward(*arrays)))
        return edges._replace(grad=grad)

    def conv(
        self,
        layer: int,
        tile: Tile,
        nodes: Nodes,
        edges: Edges,
        up: Array,
        table: Array,
        density: Array | None,
        norm: Array | None,
    ) -> tuple[list[Array], Array | None]:
        """Convolution of a tile, output blocks [dim, n, n_paths * C], and norms [n_nodes]."""
        plan, call, range_ = self._setup.plans[layer], _Call(), (tile.first, tile.last)
        arrays = _nodes(call, nodes, n_senders=up.shape[1]), _edges(call, edges)
        arrays += tuple(map(call.read, (up, table, density)))
        shapes = [
            (block.irrep.dim, tile.last - tile.first, block.n_paths * plan.channels)
            for block in plan.outputs
        ]
        arrays += [call.write(shape, self._real) for shape in shapes], call.change(norm)
        found = call.run(self._passes.note(lambda p: p.conv(layer, range_, *arrays)))
        rows, norms = found[: len(shapes)], found[len(shapes) :]
        return rows, norms[0] if norms else None

    def conv_backward(
        self,
        layer: int,
        tile: Tile,
        nodes: Nodes,
        edges: Edges,
        up: Array,
        table: Array,
        density: Array | None,
        rows_bar: Sequence[Array],
        norm: Array | None,
        dot: Array,
        up_bar: Array,
    ) -> tuple[Edges, Array]:
        """Edges and the cotangent of ``up`` with the convolution's gradients added."""
        call, range_ = _Call(), (tile.first, tile.last)
        arrays = _nodes(call, nodes, n_senders=up.shape[1]), _edges(call, edges, changed=True)
        arrays += tuple(map(call.read, (up, table, density)))
        arrays += list(map(call.read, rows_bar)), call.read(norm), call.read(dot)
        changed = call.change(up_bar)
        note = self._passes.note(lambda p: p.conv_backward(layer, range_, *arrays, changed))
        grad, up_bar = call.run(note)
        return edges._replace(grad=grad), up_bar

    def contract(
        self, layer: int, tile: Tile, species: Array, coefs: Array, message: Sequence[Array]
    ) -> Array:
        """Symmetric contraction of a tile, [dim_out, n, C]; ``message`` [dim, n, C] in parts."""
        call, range_ = _Call(), (tile.first, tile.last)
        shape = self._setup.contractions[layer].dim_out, *message[0].shape[1:]
        rows = [row for part in message for row in _rows(call.read(part), part)]
        arrays = call.read(species), call.read(coefs), rows, call.write(shape, self._real)
        (out,) = call.run(self._passes.note(lambda p: p.contract(layer, range_, *arrays)))
        return out

    def contract_backward(
        self,
        layer: int,
        tile: Tile,
        species: Array,
        coefs: Array,
        message: Sequence[Array],
        out_bar: Array,
        dot: Array,
    ) -> tuple[list[Array], Array]:
        """Cotangent of the message, and ``dot`` [n_nodes] with that of the tile."""
        call, range_ = _Call(), (tile.first, tile.last)
        at = call.read(species), call.read(coefs)
        rows = [row for part in message for row in _rows(call.change(part), part)]
        arrays = *at, rows, call.read(out_bar), call.change(dot)
        note = self._passes.note(lambda p: p.contract_backward(layer, range_, *arrays))
        *message_bar, dot = call.run(note)
        return message_bar, dot

    def forces(self, nodes: Nodes, edges: Edges, *, per_node: bool = False) -> list[Array]:
        """Forces [n_senders, 3] and virial [9]; also [n_nodes, 9] and [n_senders, 9] per node."""
        n, n_senders, call = len(nodes.node_atom), len(nodes.species), _Call()
        shapes = [(n_senders, 3), (9,), *([(n, 9), (n_senders, 9)] if per_node else [])]
        written = [call.write(shape, np.float64) for shape in shapes]
        written += [0] * (4 - len(shapes))
        arrays = _nodes(call, nodes), _edges(call, edges)
        return call.run(self._passes.note(lambda p: p.forces(*arrays, *written)))


def _rows(first: int, array: Array) -> list[int]:
    """The rows of an array [dim, n, C] that starts at a mark."""
    size = array[0].size * array.dtype.itemsize
    return [first + row * size for row in range(len(array))]


def _nodes(call: _Call, nodes: Nodes, tile: Tile | None = None, n_senders: int = 0) -> EdgeList:
    """The list, or the rows of one tile of it."""
    first, last = (0, len(nodes.node_atom)) if tile is None else (tile.first, tile.last)
    return EdgeList(
        n_nodes=last - first,
        n_senders=n_senders or len(nodes.species),
        n_slots=len(nodes.slot_atom),
        first=call.read(nodes.first, first),
        node_atom=call.read(nodes.node_atom, first),
        slot_atom=call.read(nodes.slot_atom),
        slot_node=call.read(nodes.slot_node),
        species=call.read(nodes.species),
    )


def _edges(
    call: _Call, edges: Edges, tile: Tile | None = None, *, changed: bool = False
) -> EdgeArrays:
    """The edges, or those of one tile of receivers; their gradient may be changed."""
    return EdgeArrays(
        call.read(edges.count, 0 if tile is None else tile.first),
        *map(call.read, edges[1:5]),
        (call.change if changed else call.read)(edges.grad),
    )
