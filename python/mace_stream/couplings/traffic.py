"""How many bytes each way of doing a pass moves, counted from a convolution's sizes.

Counted per edge, as if nothing that belongs to nodes stayed in a cache, and without what is moved
once per node. P paths, I and O rows of input and output, E harmonics, C channels:

    forward             reads weights, features and harmonics
    first derivative    reads the same, writes cotangents of weights and harmonics
    second derivative   reads two sets of them, writes gradients of weights and harmonics

The two derivatives also owe gradients to nodes. Adding them atomically while a receiver's edges
are walked reads and writes I C numbers per edge. A walk over the senders' edges reads weights,
harmonics and message cotangents, P C + E + O C numbers, once for each of the products that the
gradient is made of: one in the first derivative, two in the second. Edges in any order bring their
receiver's rows along: summed atomically, or read once more. That is the worst case; edges that
share a receiver with the edge before them need not.
"""

from __future__ import annotations

from dataclasses import dataclass

ITEM_SIZES = {"float32": 4, "float64": 8}
FORWARD, FIRST, SECOND = "forward", "first derivative", "second derivative"


@dataclass(frozen=True)
class Sizes:
    """Sizes of a convolution that decide its traffic."""

    n_paths: int
    dim_in: int
    dim_edge: int
    dim_out: int
    channels: int


@dataclass(frozen=True)
class PassTraffic:
    """Numbers that one pass moves per edge, in each way of doing it."""

    name: str
    by_receiver: int
    by_sender: int
    any_order: int
    sender_built: bool
    """Whether the way by sender exists as kernels."""

    @property
    def sender_owned(self) -> bool:
        """Whether the way by sender is taken."""
        return self.sender_built and self.by_sender < self.by_receiver

    @property
    def reason(self) -> str:
        """Why."""
        if not self.sender_built:
            return "sums in registers; by sender they would need atomics"
        return "fewest bytes"


def count_traffic(sizes: Sizes) -> tuple[PassTraffic, PassTraffic, PassTraffic]:
    """Count forward, first and second derivative."""
    weights = sizes.n_paths * sizes.channels
    feats = sizes.dim_in * sizes.channels
    message = sizes.dim_out * sizes.channels
    read = weights + feats + sizes.dim_edge
    write = weights + sizes.dim_edge
    again = weights + message + sizes.dim_edge
    first, second = read + write, 2 * read + write
    return (
        PassTraffic(FORWARD, read, read - feats + 2 * message, read + 2 * message, False),
        PassTraffic(FIRST, first + 2 * feats, first + again, first + 2 * feats + message, True),
        PassTraffic(
            SECOND,
            second + 2 * feats,
            second + 2 * again,
            second + 2 * feats + 3 * message,
            True,
        ),
    )


def describe_traffic(passes: tuple[PassTraffic, ...], dtype: str) -> list[str]:
    """Return a table: a row per pass, bytes per edge of every way, what is taken and why.

    Raises:
        ValueError: The precision is unknown.
    """
    if dtype not in ITEM_SIZES:
        raise ValueError(f"dtype: expected one of {', '.join(ITEM_SIZES)}, got {dtype!r}")
    size = ITEM_SIZES[dtype]
    lines = [f"{'':18} {'by receiver':>12} {'by sender':>12} {'any order':>12}  taken"]
    for each in passes:
        numbers = (each.by_receiver, each.by_sender, each.any_order)
        columns = " ".join(f"{size * number:12,}" for number in numbers)
        taken = "by sender" if each.sender_owned else "by receiver"
        lines.append(f"{each.name:18} {columns}  {taken}: {each.reason}")
    return lines
