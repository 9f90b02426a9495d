"""Several ranks: rows of node arrays that other ranks' edges start from, and how they travel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Halo:
    """What the host program says about the nodes that ranks share, for one neighbor list.

    Nodes of other ranks follow this rank's own and only send. On the way out, rows of own nodes go
    to the ranks that need them; on the way home, rows of other ranks' nodes go back and are added
    to those of their owners.
    """

    sent: np.ndarray
    """int32 [n_sent]: own nodes whose rows go out, peer after peer; a view, not to be kept."""
    peer_counts: np.ndarray
    """int64 [n_peers]: how many of them go to each peer; a view, not to be kept."""
    n_received: int
    """Nodes of other ranks."""
    start: Callable[[int, int, int, bool], None]
    """``start(out, in, row_bytes, home)`` begins an exchange: addresses of what goes and of what
    comes, on the host or, with ``gpu_aware``, on the device. Every rank starts the same exchanges
    in the same order."""
    finish: Callable[[], None]
    """Waits for it. ``ValueError`` where another rank has failed."""
    compares: Callable[[], bool] = lambda: False
    """Whether each exchange is to be made twice now, from the device and through the host, and
    compared. The same on all ranks."""
    gpu_aware: bool = False
    """Whether rows go from the device straight to other ranks."""
