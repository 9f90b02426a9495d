"""Keyword ``gpu_aware``: whether MPI sends GPU memory by itself, and what the log says about it."""

from __future__ import annotations

TOLD = {
    0: "LAMMPS' MPI says that it cannot send GPU memory",
    -1: "LAMMPS' MPI does not say that it can send GPU memory",
}
"""What ``MPIX_Query_cuda_support`` returns; -1 where MPI has no such function."""


def check_gpu_aware(backend: str, on_gpu: bool, takes_gpu_memory: int) -> None:
    """Raise ``ValueError`` where ``gpu_aware yes`` cannot be had.

    Args:
        backend: ``torch`` or ``jax``.
        on_gpu: Whether the model is on a GPU.
        takes_gpu_memory: What MPI says.
    """
    if backend == "jax":
        raise ValueError(
            "gpu_aware yes does not go with backend jax, which exchanges rows on the host; leave "
            "one of them out"
        )
    if takes_gpu_memory != 1:
        raise ValueError(
            f"gpu_aware yes: {TOLD[takes_gpu_memory]} (MPIX_Query_cuda_support); leave gpu_aware "
            "out, or use a LAMMPS that is built with a GPU-aware MPI"
        )
    if not on_gpu:
        raise ValueError(
            "gpu_aware yes: the model is on a CPU, and there is no GPU memory to send; leave "
            "gpu_aware out"
        )


def route_text(asked: bool, on_gpu: bool, takes_gpu_memory: int, n_ranks: int) -> str:
    """Return how rows travel and why, for the log; nothing where there is nothing to tell.

    Args:
        asked: Whether ``gpu_aware yes`` holds.
        on_gpu: As for :func:`check_gpu_aware`.
        takes_gpu_memory: As for :func:`check_gpu_aware`.
        n_ranks: Of this LAMMPS.
    """
    if n_ranks == 1:
        return "nothing travels on one rank (gpu_aware yes)" if asked else ""
    if asked:
        return "straight from GPU memory (gpu_aware yes), at first compared with host memory"
    if not on_gpu:
        return "from host memory, where the model is"
    can = "; this MPI says that it could send GPU memory" if takes_gpu_memory == 1 else ""
    return f"through host memory (gpu_aware no{can})"
