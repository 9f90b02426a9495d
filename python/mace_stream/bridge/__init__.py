"""What the pair style calls: a :class:`Session` is one loaded model on one device.

Importing this module is light; torch comes in with the first :class:`Session`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mace_stream.bridge.errors import check_build, describe_error
from mace_stream.bridge.options import check_options

if TYPE_CHECKING:
    from mace_stream.bridge.committee import Committee
    from mace_stream.bridge.session import Session

__all__ = ["Session", "check_build", "check_options", "describe_error", "open_session"]


def open_session(
    paths: Sequence[str],
    symbols: Sequence[str],
    options: Mapping[str, str],
    counted: Mapping[str, int],
) -> Session | Committee:
    """Open one model or a committee of several; arguments as for :class:`Session`."""
    from mace_stream.bridge.committee import Committee
    from mace_stream.bridge.session import Session

    if len(paths) == 1:
        return Session(paths[0], symbols, options, counted)
    return Committee(paths, symbols, options, counted)


def __getattr__(name: str) -> Any:
    if name == "Session":
        from mace_stream.bridge.session import Session

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
