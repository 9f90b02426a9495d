"""Linear maps between features ``[n_nodes, dim, channels]``: one matrix product per irrep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from mace_stream.couplings import FeatureLayout, Irrep, OutputBlock
from mace_stream.jax.folding import Parameters, Tree


@dataclass(frozen=True)
class SpeciesGroups:
    """Nodes in blocks of one species each, so that species-dependent weights need no copy per node.

    The number of blocks follows from the number of nodes and of species alone, as shapes have to:
    every species may have one block that is not full.
    """

    slot: Array
    """Place of every node among those of all blocks, [n_nodes]."""
    node_of_slot: Array
    """The other way, [n_blocks * size]; n_nodes for a place that stays empty."""
    row: Array
    """Species of every block, counted among those kept, [n_blocks]."""
    species: Array
    """Species of every block, as the model counts them, [n_blocks]."""

    @classmethod
    def build(cls, species: Array, kept: Sequence[int], longest: int) -> SpeciesGroups:
        """Group ``species`` [n_nodes], all of them among those ``kept``, at most ``longest`` each.

        Species that are not kept get into some block of another.
        """
        n_nodes, n_species = len(species), len(kept)
        size = max(1, min(longest, -(-n_nodes // n_species)))
        n_blocks = max(1, min(n_nodes // size + n_species, n_nodes))
        row = jnp.asarray(_inverse(kept))[species]
        order = jnp.argsort(row, stable=True)
        counts = jnp.bincount(row, length=n_species)
        blocks = -(-counts // size)
        first_block = jnp.cumsum(blocks) - blocks
        first_node = jnp.cumsum(counts) - counts
        sorted_row = row[order]
        slots = first_block[sorted_row] * size + jnp.arange(n_nodes) - first_node[sorted_row]
        empty = jnp.full(n_blocks * size, n_nodes)
        rows = jnp.repeat(jnp.arange(n_species), blocks, total_repeat_length=n_blocks)
        return cls(
            jnp.zeros(n_nodes, slots.dtype).at[order].set(slots),
            empty.at[slots].set(order, mode="drop"),
            rows,
            jnp.asarray(np.array(kept, dtype=np.int64))[rows],
        )

    def gather(self, x: Array) -> Array:
        """Bring nodes [n_nodes, ...] into blocks [n_blocks, size, ...]; empty places are zero."""
        values = x.at[self.node_of_slot].get(mode="fill", fill_value=0)
        return values.reshape(len(self.row), -1, *x.shape[1:])

    def scatter(self, blocks: Array) -> Array:
        """Undo :meth:`gather`."""
        return blocks.reshape(-1, *blocks.shape[2:])[self.slot]


def _inverse(kept: Sequence[int]) -> np.ndarray:
    """Row of every species up to the last one kept; 0 for the others."""
    rows = np.zeros(max(kept) + 1, dtype=np.int64)
    rows[list(kept)] = np.arange(len(kept))
    return rows


class IrrepLinear:
    """Mix channels within each irrep; an irrep without weights comes out as zero.

    A weight several times as wide as the layout's channels gives that many rows per component, as
    the scalars and gates of block NL.
    """

    def __init__(
        self, layout_in: FeatureLayout, layout_out: FeatureLayout, params: Parameters
    ) -> None:
        self.rows = {str(ir): _rows_or_none(layout_in, ir, params) for ir in layout_out.irreps}
        self.dims = {str(ir): ir.dim for ir in layout_out.irreps}
        self.channels_out = layout_out.channels
        used = [irrep for irrep, rows in self.rows.items() if rows is not None]
        self.parameters: Tree = {irrep: params.cast(params.linear(irrep)) for irrep in used}

    def __call__(self, tree: Tree, x: Array) -> Array:
        """Map [n_nodes, dim_in, C_in] to [n_nodes, dim_out, C_out]."""
        parts = []
        for irrep, rows in self.rows.items():
            if rows is None:
                parts.append(jnp.zeros((len(x), self.dims[irrep], self.channels_out), x.dtype))
            else:
                parts.append(_in_rows(x[:, rows] @ tree[irrep], self.channels_out))
        return jnp.concatenate(parts, axis=1)


class ElementLinear:
    """As :class:`IrrepLinear`, with weights ``[Z, C_in, C_out]`` of each node's own element.

    Weights ``[C_in, C_out]`` in the file serve all elements.
    """

    def __init__(
        self, layout_in: FeatureLayout, layout_out: FeatureLayout, params: Parameters
    ) -> None:
        self.rows = {str(ir): _rows_or_none(layout_in, ir, params) for ir in layout_out.irreps}
        self.dims = {str(ir): ir.dim for ir in layout_out.irreps}
        self.channels_out = layout_out.channels
        self.parameters: Tree = {}
        for irrep, rows in self.rows.items():
            if rows is not None:
                weight = params.linear(irrep)
                weight = weight[None] if weight.ndim == 2 else np.swapaxes(weight, 0, 1)
                self.parameters[irrep] = params.cast(weight)

    def __call__(self, tree: Tree, x: Array, groups: SpeciesGroups) -> Array:
        """Map [n_nodes, dim_in, C_in] to [n_nodes, dim_out, C_out]."""
        blocks, parts = groups.gather(x), []
        for irrep, rows in self.rows.items():
            if rows is None:
                shape = (*blocks.shape[:2], self.dims[irrep], self.channels_out)
                parts.append(jnp.zeros(shape, x.dtype))
            else:
                weight = tree[irrep]
                weight = weight[groups.species] if len(weight) > 1 else weight
                parts.append(blocks[:, :, rows] @ weight[:, None])
        return groups.scatter(jnp.concatenate(parts, axis=2))


class MessageLinear:
    """The linear layer after a convolution: all paths that end in one irrep, mixed.

    Wide weights give several rows, as in :class:`IrrepLinear`.
    """

    def __init__(
        self, outputs: Sequence[OutputBlock], layout_out: FeatureLayout, params: Parameters
    ) -> None:
        blocks = {block.irrep: block for block in outputs}
        missing = [str(irrep) for irrep in layout_out.irreps if irrep not in blocks]
        if missing:
            raise ValueError(f"message irreps {missing}: no path of the convolution ends there")
        self.blocks = [blocks[irrep] for irrep in layout_out.irreps]
        self.channels_out = layout_out.channels
        names = [str(block.irrep) for block in self.blocks]
        self.parameters: Tree = {name: params.cast(params.linear(name)) for name in names}

    def __call__(self, tree: Tree, message: Array) -> Array:
        """Map [n_receivers, dim_out, C_up] to [n_receivers, dim_message, C]."""
        parts = []
        for block in self.blocks:
            rows = message[:, block.rows]
            width = block.n_paths * message.shape[2]
            rows = rows.reshape(len(message), block.irrep.dim, width)
            parts.append(_in_rows(rows @ tree[str(block.irrep)], self.channels_out))
        return jnp.concatenate(parts, axis=1)


def _in_rows(x: Array, channels: int) -> Array:
    """[n, d, k * channels] as [n, d * k, channels]."""
    n, d, width = x.shape
    return x.reshape(n, d * (width // channels), channels)


def _rows_or_none(layout: FeatureLayout, irrep: Irrep, params: Parameters) -> slice | None:
    return layout.rows(irrep) if str(irrep) in params.names() else None
