"""One evaluation: the layers forward and backward, in tiles of receivers of one species.

Only what a later pass reads is kept for all nodes: each layer's messages, the features between
layers, and their cotangents. The last layer goes forward and straight back, tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mace_stream.folded import Tile
from mace_stream.kernels.inference import Passes, Setup
from mace_stream.torch.inference.blocks import Block, linear, linear_transposed, multiply
from mace_stream.torch.inference.buffers import ListBuffers, address
from mace_stream.torch.inference.exchange import FeatureExchange
from mace_stream.torch.inference.runs import Stage, merged
from mace_stream.torch.inference.weights import Layer


@dataclass(frozen=True)
class Tables:
    """Radial tables and contraction coefficients on the device; lists run over layers."""

    hidden: Tensor
    convs: Sequence[Tensor | None]
    densities: Sequence[Tensor | None]
    coefs: Sequence[Tensor]


class Pipeline:
    """A model's layers over the arrays of one neighbor list.

    Args:
        setup: Sizes of the model.
        layers: Its folded matrices.
        tables: Its tables.
        passes: Kernels of the device.
        buffers: The neighbor list and the edges.
        tiles: Cover all nodes.
    """

    def __init__(
        self,
        setup: Setup,
        layers: Sequence[Layer],
        tables: Tables,
        passes: Passes,
        buffers: ListBuffers,
        tiles: Sequence[Tile],
    ) -> None:
        self.setup, self.layers, self.tables = setup, layers, tables
        self.passes, self.buffers, self.tiles = passes, buffers, tiles
        self.exchanges: Sequence[FeatureExchange] = ()
        """Of every later layer, on several ranks; for the current list."""
        self._allocate()

    def _allocate(self) -> None:
        n, n_senders = self.buffers.n_nodes, self.buffers.n_senders
        channels = self.setup.channels
        largest = max((tile.last - tile.first for tile in self.tiles), default=0)

        def empty(*shape: int) -> Tensor:
            return self.buffers.t.new_empty(*shape)

        dims = [layer.dim_out for layer in self.layers[:-1]]
        later = self.setup.plans[1:]
        self.feats = [empty(dim, n, channels) for dim in dims]
        self.feats_bar = [torch.empty_like(feats) for feats in self.feats]
        self.up = [empty(plan.dim_in, n_senders, plan.channels) for plan in later]
        self.up_bar = [torch.empty_like(up) for up in self.up]
        self.norm = [empty(n) if layer.has_density else None for layer in self.layers]
        self.dot = empty(n)
        self.kept = [
            {
                tile: empty(layer.dim_message, tile.last - tile.first, channels)
                for tile in self.tiles
            }
            for layer in self.layers[:-1]
        ]
        gated = [layer.dim_message for layer in self.layers if layer.gate is not None]
        self._gated = empty(largest * channels * max(gated, default=0))
        inputs = [layer.dim_message + layer.n_gates for layer in self.layers]
        self._gate_inputs = [
            {tile: empty(dim, tile.last - tile.first, channels) for tile in self.tiles}
            for dim, layer in zip(inputs[:-1], self.layers[:-1], strict=True)
            if layer.gate is not None
        ]
        self._last_gate_input = empty(largest * channels * inputs[-1] * bool(gated))
        n_paths = max((plan.dim_out * plan.channels for plan in later), default=0)
        sums = (self.setup.l_max + 1) ** 2 * self.setup.n_species * self.setup.n_hidden
        self._rows = empty(largest * max(n_paths, sums))
        self._message = empty(largest * channels * self.layers[-1].dim_message)
        self._product = empty(largest * channels * max(layer.dim_out for layer in self.layers))
        self._last = empty(2, largest * channels * self.layers[-1].dim_out)

    def stages(self) -> list[Stage]:
        """What turns positions in ``buffers.x`` into energies, forces and virial in ``buffers``."""
        if self.exchanges:
            return merged(self._stages_between_exchanges())
        return [Stage(self._run, is_fixed=True)]

    def _run(self) -> None:
        last, whole = len(self.layers) - 1, slice(0, self.buffers.n_nodes)
        self._find_edges()
        for t in range(last):
            self._forward_tiles(t, self.tiles)
            self._linear_up(t, whole)
        self._last_layer(self.tiles)
        for t in reversed(range(last)):
            self._linear_up_backward(t, whole)
            self._backward_tiles(t, self.tiles)
        self._sum_up()

    def _stages_between_exchanges(self) -> Iterator[Stage]:
        """While rows of the border travel, the inner nodes are worked on.

        Inner nodes have no neighbors on other ranks and nobody else needs their features, so that
        they neither wait for what comes nor for what is to be sent.
        """
        last, exchanges = len(self.layers) - 1, self.exchanges
        border = [tile for tile in self.tiles if tile.is_border]
        inner = [tile for tile in self.tiles if not tile.is_border]
        half = -(-len(inner) // 2)
        yield from _work(self._find_edges, *self._forwards(0, border))
        yield Stage(exchanges[0].send)
        yield from _work(*self._forwards(0, inner))
        for t in range(1, last):
            yield from _work(*_over(self._forward_tiles, t, inner))
            yield Stage(exchanges[t - 1].receive)
            yield from _work(*self._forwards(t, border))
            yield Stage(exchanges[t].send)
            yield from _work(*_over(self._linear_ups, t, inner))
        yield from _work(*_over(self._last_layer, inner[:half]))
        yield Stage(exchanges[-1].receive)
        yield from _work(*_over(self._last_layer, border))
        yield Stage(exchanges[-1].send_home)
        yield from _work(*_over(self._last_layer, inner[half:]))
        for t in reversed(range(last)):
            yield from _work(*self._backwards(t, inner))
            yield Stage(exchanges[t].receive_home)
            yield from _work(*self._backwards(t, border))
            if t > 0:
                yield Stage(exchanges[t - 1].send_home)
        yield from _work(self._sum_up)

    def _find_edges(self) -> None:
        buffers = self.buffers
        buffers.closest.fill_(float("inf"))
        arrays = map(address, (buffers.x, buffers.node_energy, buffers.closest))
        self.passes.edges(buffers.nodes(), buffers.edges(), *arrays)
        for bar in (*self.feats_bar, *self.up_bar):
            bar.zero_()

    def _forwards(self, t: int, tiles: Sequence[Tile]) -> list[partial]:
        """One layer, and what the next convolution reads of these tiles."""
        return _over(self._forward_tiles, t, tiles) + _over(self._linear_ups, t, tiles)

    def _backwards(self, t: int, tiles: Sequence[Tile]) -> list[partial]:
        return _over(self._linear_ups_back, t, tiles) + _over(self._backward_tiles, t, tiles)

    def _forward_tiles(self, t: int, tiles: Sequence[Tile]) -> None:
        for tile in tiles:
            self._forward(t, tile, self.kept[t][tile])

    def _backward_tiles(self, t: int, tiles: Sequence[Tile]) -> None:
        for tile in tiles:
            self._backward(t, tile, self.kept[t][tile])

    def _last_layer(self, tiles: Sequence[Tile]) -> None:
        """Forward and straight back."""
        last = len(self.layers) - 1
        for tile in tiles:
            message = _view(self._message, self.layers[last].dim_message, tile, self.setup)
            self._last[1].zero_()
            self._forward(last, tile, message)
            self._backward(last, tile, message)

    def _sum_up(self) -> None:
        buffers = self.buffers
        arrays = buffers.nodes(), buffers.edges()
        self.passes.forces(*arrays, address(buffers.node_forces), address(buffers.totals, 1), 0, 0)
        torch.sum(buffers.node_energy * buffers.mask, 0, keepdim=True, out=buffers.totals[:1])
        buffers.totals[10:].copy_(buffers.closest)
        torch.index_select(buffers.node_forces, 0, buffers.place, out=buffers.forces)

    # ---- one layer, one tile ----

    def _forward(self, t: int, tile: Tile, message: Tensor) -> None:
        """Edges to message to features; readouts add to the energies, and start the cotangents."""
        layer, range_ = self.layers[t], (tile.first, tile.last)
        rows = self._convolve(t, tile)
        mixed = message if layer.gate is None else self._gate_input(t, tile)
        for block in layer.message[tile.species]:
            multiply(mixed[block.target], _rows(rows, block, tile, t), block.weight)
        if layer.gate is not None:
            own = self._own(self.up, t, tile)
            layer.gate.forward(mixed, own, tile.species, self._gate_output(t, tile), message)
        product = _view(self._product, layer.dim_out, tile, self.setup)
        coefs = address(self.tables.coefs[t])
        self.passes.contract(
            *(t, range_, address(self.buffers.species), coefs),
            *(_row_addresses(message), address(product)),
        )
        feats, feats_bar = self._outputs(t, tile)
        linear(feats, product, layer.product)
        if layer.skip:
            inputs = self.feats[t - 1][:, tile.first : tile.last]
            for block in layer.skip[tile.species]:
                multiply(feats[block.target], inputs[block.source], block.weight, add=True)
        if layer.constant is not None:
            feats.add_(layer.constant[tile.species][:, None])
        energy = self.buffers.node_energy[tile.first : tile.last]
        for readout in layer.readouts:
            added, slope = readout.energy_and_slope(feats[readout.row])
            energy.add_(added)
            feats_bar[readout.row].add_(slope)

    def _backward(self, t: int, tile: Tile, message: Tensor) -> None:
        """From the cotangent of a layer's features to gradients of edges and input features."""
        layer, range_ = self.layers[t], (tile.first, tile.last)
        feats_bar = self._outputs(t, tile)[1]
        if layer.skip:
            inputs_bar = self.feats_bar[t - 1][:, tile.first : tile.last]
            for block in layer.skip[tile.species]:
                multiply(
                    inputs_bar[block.source], feats_bar[block.target], block.weight.T, add=True
                )
        product_bar = _view(self._product, layer.dim_out, tile, self.setup)
        linear_transposed(product_bar, feats_bar, layer.product)
        self.passes.contract_backward(
            *(t, range_, address(self.buffers.species), address(self.tables.coefs[t])),
            *(_row_addresses(message), address(product_bar), address(self.dot)),
        )
        mixed_bar = message
        if layer.gate is not None:
            mixed_bar = self._gate_input(t, tile)
            own, own_bar = self._own(self.up, t, tile), self._own(self.up_bar, t, tile)
            space = self._gate_output(t, tile)
            self.dot[tile.first : tile.last] = layer.gate.backward(
                mixed_bar, message, own, own_bar, tile.species, space
            )
        rows, written = self._row_space(t, tile), set()
        for block in layer.message[tile.species]:
            add = block.source.start in written
            target = _rows(rows, block, tile, t)
            multiply(target, mixed_bar[block.target], block.weight.T, add=add)
            written.add(block.source.start)
        self._convolve_backward(t, tile, rows)

    def _convolve(self, t: int, tile: Tile) -> Tensor:
        rows, nodes, edges = self._row_space(t, tile), *self._arrays(t, tile)
        density = address(self.tables.densities[t])
        if t == 0:
            norm = address(self.norm[0], tile.first) if density else 0
            table = address(self.tables.hidden)
            self.passes.scatter(nodes, edges, table, density, address(rows), norm)
        else:
            self.passes.conv(
                *(t, (tile.first, tile.last), nodes, edges, address(self.up[t - 1])),
                *(address(self.tables.convs[t]), density, self._blocks(t, tile)),
                address(self.norm[t]),
            )
        return rows

    def _convolve_backward(self, t: int, tile: Tile, rows: Tensor) -> None:
        nodes, edges = self._arrays(t, tile)
        density = address(self.tables.densities[t])
        if t == 0:
            norm = address(self.norm[0], tile.first) if density else 0
            dot, table = address(self.dot, tile.first), address(self.tables.hidden)
            self.passes.scatter_backward(nodes, edges, table, density, address(rows), norm, dot)
            return
        self.passes.conv_backward(
            *(t, (tile.first, tile.last), nodes, edges, address(self.up[t - 1])),
            *(address(self.tables.convs[t]), density, self._blocks(t, tile)),
            *(address(self.norm[t]), address(self.dot), address(self.up_bar[t - 1])),
        )

    # ---- between layers ----

    def _linear_up(self, t: int, rows: slice) -> None:
        """Features of layer ``t`` to what the next convolution reads, for own nodes."""
        linear(self.up[t][:, rows], self.feats[t][:, rows], self.layers[t + 1].up)

    def _linear_up_backward(self, t: int, rows: slice) -> None:
        feats_bar, up_bar = self.feats_bar[t][:, rows], self.up_bar[t][:, rows]
        for block in self.layers[t + 1].up:
            target, source = feats_bar[block.source], up_bar[block.target]
            multiply(target, source, block.weight.T, add=True)

    def _linear_ups(self, t: int, tiles: Sequence[Tile]) -> None:
        for tile in tiles:
            self._linear_up(t, slice(tile.first, tile.last))

    def _linear_ups_back(self, t: int, tiles: Sequence[Tile]) -> None:
        for tile in tiles:
            self._linear_up_backward(t, slice(tile.first, tile.last))

    # ---- where things lie ----

    def _arrays(self, t: int, tile: Tile) -> tuple:
        """The first layer's passes take the rows of a tile for a list of their own."""
        chosen = tile if t == 0 else None
        return self.buffers.nodes(chosen), self.buffers.edges(chosen)

    def _row_space(self, t: int, tile: Tile) -> Tensor:
        """[rows, nodes of the tile, K] of what the convolution of layer ``t`` sums."""
        n = tile.last - tile.first
        if t == 0:
            dim, width = (self.setup.l_max + 1) ** 2, self.setup.n_species * self.setup.n_hidden
        else:
            dim, width = self.setup.plans[t].dim_out, self.setup.plans[t].channels
        return self._rows[: dim * n * width].view(dim, n, width)

    def _blocks(self, t: int, tile: Tile) -> list[int]:
        """Addresses of the output blocks of the convolution of layer ``t``."""
        plan, n = self.setup.plans[t], tile.last - tile.first
        starts = [block.rows.start * n * plan.channels for block in plan.outputs]
        return [address(self._rows, start) for start in starts]

    def _gate_input(self, t: int, tile: Tile) -> Tensor:
        """[n_gates + dim, n, C]: kept for all nodes but in the last layer, as the messages are."""
        if t < len(self.layers) - 1:
            return self._gate_inputs[t][tile]
        layer = self.layers[t]
        dim = layer.dim_message + layer.n_gates
        return _view(self._last_gate_input, dim, tile, self.setup)

    def _gate_output(self, t: int, tile: Tile) -> Tensor:
        return _view(self._gated, self.layers[t].dim_message, tile, self.setup)

    def _own(self, up: Sequence[Tensor], t: int, tile: Tile) -> Tensor | None:
        """Rows of a tile's own nodes of what the convolution of layer ``t`` reads."""
        return up[t - 1][:, tile.first : tile.last] if t > 0 else None

    def _outputs(self, t: int, tile: Tile) -> tuple[Tensor, Tensor]:
        """Features of a tile after layer ``t``, and their cotangents."""
        if t < len(self.layers) - 1:
            rows = slice(tile.first, tile.last)
            return self.feats[t][:, rows], self.feats_bar[t][:, rows]
        feats, bar = (_view(part, self.layers[t].dim_out, tile, self.setup) for part in self._last)
        return feats, bar


def _over(method: Callable, *arguments: object) -> list[partial]:
    """The call of a method whose last argument are tiles; nothing where there are none."""
    return [partial(method, *arguments)] if arguments[-1] else []


def _work(*calls: Callable[[], None]) -> list[Stage]:
    """A stage that makes these calls, if there are any: a CUDA graph must not be empty."""

    def run() -> None:
        for call in calls:
            call()

    return [Stage(run, is_fixed=True)] if calls else []


def _rows(rows: Tensor, block: Block, tile: Tile, t: int) -> Tensor:
    """The part of the convolution's sums that one message block reads, [2l + 1, n, K]."""
    if t == 0:
        return rows[block.source]
    n, width = tile.last - tile.first, block.weight.shape[0]
    return rows[block.source].view(block.target.stop - block.target.start, n, width)


def _row_addresses(array: Tensor) -> list[int]:
    return [address(array, row * array.stride(0)) for row in range(len(array))]


def _view(buffer: Tensor, dim: int, tile: Tile, setup: Setup) -> Tensor:
    n = tile.last - tile.first
    return buffer[: dim * n * setup.channels].view(dim, n, setup.channels)
