"""Keyword gpu_aware: when it is refused, and what the log says about the way of rows."""

from __future__ import annotations

import pytest

from mace_stream.bridge import check_options
from mace_stream.bridge.gpu_aware import check_gpu_aware, route_text


def test_it_is_off_unless_asked_for():
    assert check_options([])["gpu_aware"] == "no"
    assert check_options(["gpu_aware", "yes"])["gpu_aware"] == "yes"
    with pytest.raises(ValueError, match="keyword gpu_aware: expected yes or no, got auto"):
        check_options(["gpu_aware", "auto"])


@pytest.mark.parametrize(
    ("backend", "on_gpu", "told", "message"),
    [
        ("jax", True, 1, "does not go with backend jax.* leave one of them out"),
        ("torch", True, 0, "MPI says that it cannot send GPU memory.* leave gpu_aware out"),
        ("torch", True, -1, "MPI does not say that it can send GPU memory.* leave gpu_aware out"),
        ("torch", False, 0, "MPI says that it cannot send GPU memory"),
        ("torch", False, 1, "the model is on a CPU.* leave gpu_aware out"),
    ],
)
def test_what_cannot_be_had_is_refused(backend, on_gpu, told, message):
    with pytest.raises(ValueError, match=message):
        check_gpu_aware(backend, on_gpu, told)


def test_it_is_accepted_where_mpi_says_so():
    check_gpu_aware("torch", True, 1)


@pytest.mark.parametrize(
    ("asked", "on_gpu", "told", "n_ranks", "text"),
    [
        (False, True, 1, 1, ""),
        (True, True, 1, 1, "nothing travels on one rank (gpu_aware yes)"),
        (False, False, 1, 2, "from host memory, where the model is"),
        (False, True, 0, 2, "through host memory (gpu_aware no)"),
        (False, True, -1, 2, "through host memory (gpu_aware no)"),
        (
            *(False, True, 1, 2),
            "through host memory (gpu_aware no; this MPI says that it could send GPU memory)",
        ),
        (
            *(True, True, 1, 2),
            "straight from GPU memory (gpu_aware yes), at first compared with host memory",
        ),
    ],
)
def test_the_log_says_how_rows_travel(asked, on_gpu, told, n_ranks, text):
    assert route_text(asked, on_gpu, told, n_ranks) == text
