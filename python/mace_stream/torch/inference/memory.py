"""How much memory the inference path takes, counted from what it allocates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mace_stream.evaluation import explained_memory
from mace_stream.folded import TILE_SIZE, Tile, padded
from mace_stream.kernels.inference import Setup
from mace_stream.torch.inference.buffers import ListBuffers
from mace_stream.torch.inference.model import PreparedModel
from mace_stream.torch.inference.pipeline import Pipeline
from mace_stream.torch.inference.weights import Layer
from mace_stream.torch.placement import Placement

SMALLEST_TILE = 1024
"""With fewer nodes a GPU is idle, and their arrays are small beside the rest."""

NEW_LIST_BYTES = 96
"""Bytes per candidate while a new list is brought into the passes' order: three int32 arrays as
handed over, row numbers in int64, and three float64 vectors for the distance."""

PROBE = 1024
"""Nodes of the small lists from which it is read what one node takes; all is linear in them."""


@dataclass(frozen=True)
class ListSize:
    """Own nodes, own and other ranks' nodes, candidates for edges, and positions of a list."""

    n_nodes: int
    n_senders: int
    n_slots: int
    n_atoms: int


@dataclass(frozen=True)
class Memory:
    """Bytes that a neighbor list takes."""

    edges: int
    """List and edges."""
    features: int
    """What the layers keep for all nodes."""
    tile: int
    """What one tile after the other uses."""
    new_list: int
    """Taken for a moment by every new list."""

    @property
    def linear(self) -> int:
        """What grows with the number of atoms."""
        return self.edges + self.features + self.new_list

    @property
    def kept(self) -> int:
        """What stays from step to step."""
        return self.edges + self.features + self.tile

    @property
    def total(self) -> int:
        """All at once."""
        return self.linear + self.tile


def memory_of(
    setup: Setup, layers: Sequence[Layer], dtype: torch.dtype, size: ListSize, tile: int
) -> Memory:
    """Return what a list takes, from arrays on torch's device ``meta``, which hold nothing.

    Args:
        setup: Sizes of the model.
        layers: Its folded matrices.
        dtype: ``Real``.
        size: Of the list.
        tile: Nodes of a tile.
    """

    def lists(*sizes: int) -> ListBuffers:
        return ListBuffers(*sizes, dtype, torch.device("meta"))

    def layer_bytes(nodes: int, each: int, remote: int = 0) -> int:
        buffers = lists(nodes, nodes + remote, 0, 0)
        tiles = [Tile(0, first, first + each, False) for first in range(0, nodes, each)]
        return pipeline_bytes(Pipeline(setup, layers, None, None, buffers, tiles))

    one, two = layer_bytes(PROBE, PROBE), layer_bytes(2 * PROBE, PROBE)
    per_remote_node = layer_bytes(PROBE, PROBE, remote=PROBE) - one
    per_tile_node = 2 * (two - layer_bytes(2 * PROBE, PROBE // 2))
    n_remote = size.n_senders - size.n_nodes
    return Memory(
        edges=held_bytes(vars(lists(size.n_nodes, size.n_senders, size.n_slots, size.n_atoms))),
        features=((two - one) * size.n_nodes + per_remote_node * n_remote) // PROBE,
        tile=per_tile_node * min(tile, size.n_nodes) // PROBE,
        new_list=NEW_LIST_BYTES * size.n_slots,
    )


def pipeline_bytes(pipeline: Pipeline) -> int:
    """Return what a pipeline has allocated for itself."""
    given = ("setup", "layers", "tables", "passes", "buffers", "tiles", "exchanges")
    return held_bytes({name: part for name, part in vars(pipeline).items() if name not in given})


def held_bytes(parts: object) -> int:
    """Return the bytes of all tensors among ``parts``, however deep in lists and dictionaries."""
    storages = {tensor.untyped_storage()._cdata: tensor for tensor in _tensors(parts)}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def _tensors(part: object) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, dict | list | tuple):
        for piece in part.values() if isinstance(part, dict) else part:
            yield from _tensors(piece)


class MemoryBudget:
    """Chooses the tile, tells what is taken, and explains where memory runs out.

    Args:
        model: With its tables.
        placement: Device and precision.
        tile: Nodes that are worked on together; None leaves it to us.
    """

    def __init__(self, model: PreparedModel, placement: Placement, tile: int | None) -> None:
        self._model = model.setup, model.layers, placement.dtype
        self.placement = placement
        self.table_bytes = held_bytes(vars(model.tables))
        self.asked = tile is not None
        self.tile = padded(tile) if self.asked else TILE_SIZE[placement.device.type]
        self.size: ListSize | None = None
        self._fits = 0

    def memory(self) -> Memory:
        """Return what the present list takes."""
        return memory_of(*self._model, self.size, self.tile)

    def choose_tile(self, size: ListSize) -> int:
        """Return the size of tiles for a list: the usual one, or less where that does not fit."""
        before, self.size = self.size, size
        if self.asked or self.tile <= SMALLEST_TILE or size.n_slots <= self._fits:
            return self.tile
        self._fits = int(1.2 * size.n_slots)  # a larger list is looked at again
        room, memory = available_bytes(self.placement.device), self.memory()
        if before is not None:  # whose arrays go before the new ones come
            room += memory_of(*self._model, before, self.tile).kept
        while memory.total > room and self.tile > SMALLEST_TILE:
            self.tile //= 2
            memory = replace(memory, tile=memory.tile // 2)
        return self.tile

    def describe(self) -> list[tuple[str, str]]:
        """Return what the log says, once there is a list with nodes."""
        if self.size is None or not self.size.n_nodes:
            return []
        memory, n = self.memory(), self.size.n_nodes
        kilobytes = {name: part / n / 1000 for name, part in vars(memory).items()}
        room = available_bytes(self.placement.device) + memory.kept
        fits = max(0, int((room - memory.tile) / memory.linear * n))
        return [
            (
                "memory",
                f"{memory.linear / n / 1000:.1f} kB per atom: {kilobytes['edges']:.1f} edges,"
                f" {kilobytes['features']:.1f} features,"
                f" {kilobytes['new_list']:.1f} while a list is new",
            ),
            (
                "",
                f"{memory.tile / 2**20:.0f} MiB for tiles of {self.tile} atoms,"
                f" {self.table_bytes / 2**20:.0f} MiB for radial tables",
            ),
            ("", f"about {fits:,} such atoms fit into the {room / 2**30:.1f} GiB that are free"),
        ]

    def explained(self) -> AbstractContextManager[None]:
        """Turn a failed allocation into an error that says what to type.

        Raises:
            ValueError: Memory has run out.
        """
        return explained_memory(self.placement.device_name, self.tile, self._needs)

    def _needs(self) -> str:
        if self.size is None:
            return "the first list was not even made"
        gib = {name: part / 2**30 for name, part in vars(self.memory()).items()}
        return (
            f"{self.size.n_nodes} atoms with {self.size.n_slots} neighbors take"
            f" {sum(gib.values()):.2f} GiB ({gib['edges']:.2f} edges, {gib['features']:.2f}"
            f" features, {gib['tile']:.2f} tiles, {gib['new_list']:.2f} while a list is new)"
            f" beside {self.table_bytes / 2**30:.2f} GiB of radial tables"
        )


def available_bytes(device: torch.device) -> int:
    """Return what is free on a device, what torch holds there without using it included.

    On a CPU that is what the operating system calls available.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    return 1024 * int(re.search(r"^MemAvailable: +(\d+) kB$", text, re.MULTILINE).group(1))
