"""What lets rows go straight from the memory of a device where no MPI can send GPU memory.

On a CPU every MPI can send the memory of the device. On a GPU the rows that go and the memory that
is received into lie on the host, page-locked, at addresses that are those of the device as well.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from unittest import mock

import torch

from mace_stream.bridge import session
from mace_stream.halo import Halo
from mace_stream.torch import ranks
from mace_stream.torch.ranks import Compared, Direct, OnHost

NOTES: Counter = Counter()
"""Of this rank since the last job: exchanges that went straight, and those that were compared."""


def take_notes() -> dict[str, int]:
    """Return the notes and forget them."""
    notes = dict(NOTES)
    NOTES.clear()
    return notes


def _rank() -> int:
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank


class NoEvent:
    """A device without streams."""

    def record(self, stream: object) -> None:
        """All work is done where it is called for."""

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class Counted(Direct):
    """Counts exchanges."""

    def finish(self) -> torch.Tensor:
        NOTES["straight"] += 1
        return super().finish()


class Mapped(Counted):
    """Sends from, and receives into, memory that the host addresses, too."""

    def __init__(self, halo: Halo, device: torch.device) -> None:
        super().__init__(halo, device, mapped)

    def start(self, rows: torch.Tensor, n_in: int, home: bool) -> None:
        out = mapped(*rows.shape, dtype=rows.dtype, device=rows.device)
        super().start(out.copy_(rows), n_in, home)


def mapped(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As ``torch.empty`` on a GPU, but on the host, and for good."""
    if 0 in shape:
        return torch.empty(*shape, dtype=dtype, device=device)
    shown = _Shown(_page_locked(math.prod(shape) * dtype.itemsize, device), shape, dtype)
    made = torch.as_tensor(shown, device=device)
    assert made.data_ptr() == shown.address
    assert made.device == device
    return made


def _page_locked(n_bytes: int, device: torch.device) -> int:
    """An address of the host that is one of the device as well."""
    from cuda.bindings import driver

    from mace_stream.kernels.launching import check, primary_context

    flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
    with primary_context(device.index):
        address = int(check(driver.cuMemHostAlloc(n_bytes, flags)))
        assert int(check(driver.cuMemHostGetDevicePointer(address, 0))) == address
    return address


class _Shown:
    """What torch takes for an array on a GPU."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.address = address
        kinds = {torch.float32: "<f4", torch.float64: "<f8"}
        self.__cuda_array_interface__ = {
            "shape": tuple(shape),
            "typestr": kinds[dtype],
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


def _compared_and_counted(came: torch.Tensor, right: torch.Tensor) -> None:
    NOTES["compared"] += 1
    _check_same_bits(came, right)


_check_same_bits = ranks.check_same_bits


@contextlib.contextmanager
def _patched(**of_ranks: object) -> object:
    with (
        mock.patch.object(session, "check_gpu_aware"),
        mock.patch.multiple(ranks, check_same_bits=_compared_and_counted, **of_ranks),
    ):
        yield


@contextlib.contextmanager
def straight_on_cpu(wrong_rank: int = -1, wrong_home: bool = False) -> object:
    """With gpu_aware yes, rows on a CPU go as those of a GPU do.

    Args:
        wrong_rank: A rank where one bit of what comes is wrong.
        wrong_home: On which of the two ways.
    """

    class Spoiled(Counted):
        def finish(self) -> torch.Tensor:
            came = super().finish()
            if _rank() == wrong_rank and self._home == wrong_home:
                came.view(torch.uint8)[-1, 0] ^= 1
            return came

    def route(halo: Halo, device: torch.device) -> ranks.Route:
        plain = OnHost(halo)
        return Compared(halo, Spoiled(halo, device), plain) if halo.gpu_aware else plain

    with (
        mock.patch.object(torch.cuda, "Event", NoEvent),
        mock.patch.object(torch.cuda, "current_stream"),
        _patched(choose_route=route),
    ):
        yield


def straight_on_gpu() -> object:
    """With gpu_aware yes, rows of a GPU lie where any MPI can read and write them."""
    return _patched(Direct=Mapped)


def told_by_mpi(answer: int) -> object:
    """What MPI says about GPU memory."""
    right = session.check_gpu_aware
    return mock.patch.object(
        session, "check_gpu_aware", lambda backend, on_gpu, _: right(backend, on_gpu, answer)
    )


def on_a_gpu(rank: int) -> object:
    """Only one rank takes its device for a GPU that MPI can send from."""
    here = _rank() == rank
    return mock.patch.object(session, "check_gpu_aware") if here else contextlib.nullcontext()
