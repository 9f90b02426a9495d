"""Times forward, VJP and Hessian-vector product of the convolution, ours and others'."""

from __future__ import annotations

import csv
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from statistics import quantiles

import torch
from torch import Tensor

import mace_stream
from mace_stream.bench.cases import Problem, make_problem
from mace_stream.bench.peers import OURS, PEERS, Implementation
from mace_stream.torch.conv import plain_conv

PASSES = ("forward", "vjp", "hvp")
WARM_UP = 3
WARM_UP_SECONDS = 0.3
"""A GPU that has idled takes a while to raise its clocks."""
CHECKED_RECEIVERS = 20
WRONG = 1e-4
"""Relative error from which a result counts as wrong, not as rounded."""


@dataclass(frozen=True)
class Row:
    """One measurement: a line of docs/benchmarks/conv.csv."""

    commit: str
    date: str
    device: str
    framework: str
    case: str
    pass_name: str
    dtype: str
    impl: str
    median_ms: float | None
    q25_ms: float | None
    q75_ms: float | None
    peak_mib: float | None
    rel_err: float | None
    floor_ms: float | None
    status: str
    graph: str
    n_nodes: int

    @property
    def label(self) -> str:
        """Implementation, and framework where it is not torch."""
        return f"{self.impl}, jax" if self.framework.startswith("jax") else self.impl

    def cells(self) -> dict[str, str]:
        """Column name -> text."""
        values = {"pass" if k == "pass_name" else k: v for k, v in asdict(self).items()}
        cells = {name: "" if value is None else value for name, value in values.items()}
        for name in ("median_ms", "q25_ms", "q75_ms", "floor_ms"):
            cells[name] = f"{cells[name]:.4f}" if cells[name] != "" else ""
        cells["peak_mib"] = f"{cells['peak_mib']:.0f}" if cells["peak_mib"] != "" else ""
        cells["rel_err"] = f"{cells['rel_err']:.1e}" if cells["rel_err"] != "" else ""
        return {name: str(value) for name, value in cells.items()}


def run(
    cases: list[str],
    others: list[str],
    *,
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
    graph: str = "uniform",
    n_nodes: int = 5000,
    repeats: int = 15,
) -> Iterator[Row]:
    """Measure every case, pass and implementation in turn, each checked against float64.

    Args:
        cases: Keys of :data:`mace_stream.bench.cases.CASES`.
        others: Keys of :data:`mace_stream.bench.peers.PEERS`.
        device: ``cpu`` or ``cuda``.
        dtype: float32 or float64.
        graph: One of :data:`mace_stream.bench.cases.GRAPHS`.
        n_nodes: Number of nodes, about.
        repeats: Timed runs after the warm-up.
    """
    makers = dict(OURS)
    for name in others:
        makers.update(PEERS[name])
    bandwidth = copy_bandwidth(device)
    for case in cases:
        problem = make_problem(case, device, dtype, graph, n_nodes)
        exact = exact_results(problem)
        for impl, make in makers.items():
            yield from _measure(problem, case, impl, make, exact, bandwidth, repeats)


def _measure(
    problem: Problem,
    case: str,
    impl: str,
    make: Callable[[Problem], Implementation],
    exact: dict[str, list[Tensor]],
    bandwidth: float,
    repeats: int,
) -> Iterator[Row]:
    blank = blank_row(problem, case, impl)
    try:
        implementation = make(problem)
    except ImportError as error:
        yield replace(blank, status=f"not installed: {error}")
        return
    for pass_name in PASSES:
        row = replace(blank, pass_name=pass_name, floor_ms=floor_ms(problem, pass_name, bandwidth))
        try:
            body, results = _pass_body(problem, implementation, pass_name)
            error = relative_error(problem, results(), exact[pass_name])
            times, peak = _time(body, problem.node_feats.device, repeats)
        except torch.cuda.OutOfMemoryError:
            yield replace(row, status="out_of_memory")
            continue
        low, middle, high = quantiles(times, n=4)
        numbers = {"median_ms": middle, "q25_ms": low, "q75_ms": high}
        yield replace(row, **numbers, peak_mib=peak, rel_err=error, status=verdict(error))


def verdict(error: float) -> str:
    """Return the status that a relative error deserves; NaN is wrong."""
    return "ok" if error < WRONG else "wrong_result"


def blank_row(problem: Problem, case: str, impl: str) -> Row:
    """Return a row without pass and numbers."""
    device = problem.node_feats.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    dtype = str(problem.node_feats.dtype).removeprefix("torch.")
    numbers = [None] * 6
    return Row(
        *(_commit(), date.today().isoformat(), name, f"torch {torch.__version__}", case, ""),
        *(dtype, impl, *numbers, "", problem.graph, len(problem.node_feats)),
    )


@cache
def _commit() -> str:
    """Return the commit of the source tree, or the version where there is none."""
    source = str(Path(mace_stream.__file__).parent)
    command = ["git", "-C", source, "describe", "--always", "--dirty", "--exclude", "*"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.strip() or mace_stream.__version__


# ---- what is timed ----


def _pass_body(
    problem: Problem, implementation: Implementation, pass_name: str
) -> tuple[Callable[[], list[Tensor]], Callable[[], list[Tensor]]]:
    """The timed body, and a function that returns its results in our layout for the check.

    The message cotangent is all ones, which is the same in every layout.
    """
    leaves = [array.clone().requires_grad_() for array in implementation.own(*problem.inputs)]
    with torch.no_grad():
        ones = torch.ones_like(implementation.call(*leaves))
    vectors = [_probe(leaf) for leaf in leaves]

    def body() -> list[Tensor]:
        return _derivatives(implementation.call, leaves, ones, vectors, pass_name)

    def results() -> list[Tensor]:
        message, *bars = body()
        return [implementation.ours(message), *bars]

    return body, results


def _probe(leaf: Tensor) -> Tensor:
    """The direction of the second derivative: a fixed multiple of the input itself."""
    return (0.5 * leaf.detach()).clone()


def _derivatives(
    call: Callable[..., Tensor],
    leaves: list[Tensor],
    message_bar: Tensor,
    vectors: list[Tensor],
    pass_name: str,
) -> list[Tensor]:
    if pass_name == "forward":  # noqa: S105
        with torch.no_grad():
            return [call(*leaves)]
    message = call(*leaves)
    second = pass_name == "hvp"  # noqa: S105
    bars = torch.autograd.grad(message, leaves, message_bar, create_graph=second)
    if second:
        bars = torch.autograd.grad(bars, leaves, vectors)
    return [message.detach(), *bars]


def exact_results(problem: Problem) -> dict[str, list[Tensor]]:
    """Float64 results of all passes for the first receivers."""
    n_edges = int(problem.indptr[CHECKED_RECEIVERS])
    indptr, sender = problem.indptr[: CHECKED_RECEIVERS + 1], problem.sender[:n_edges]
    leaves = [
        problem.node_feats.double().requires_grad_(),
        problem.edge_attrs[:n_edges].double().requires_grad_(),
        problem.path_weights[:n_edges].double().requires_grad_(),
    ]

    def call(*arrays: Tensor) -> Tensor:
        return plain_conv(*arrays, indptr, sender, problem.plan)

    shape = CHECKED_RECEIVERS, problem.plan.dim_out, problem.case.channels
    ones = torch.ones(shape, dtype=torch.float64, device=sender.device)
    vectors = [_probe(leaf) for leaf in leaves]
    return {name: _derivatives(call, leaves, ones, vectors, name) for name in PASSES}


def relative_error(problem: Problem, results: list[Tensor], exact: list[Tensor]) -> float:
    """Largest relative error (norm) of message and of edge-sized cotangents, first receivers."""
    n_edges = int(problem.indptr[CHECKED_RECEIVERS])
    pairs = [(results[0][:CHECKED_RECEIVERS], exact[0])]
    if len(results) > 1:  # node cotangents need all edges, so they are checked by the tests
        pairs.append((results[2][:n_edges], exact[2]))
        pairs.append((results[3][:n_edges].reshape(exact[3].shape), exact[3]))
    return max(float((a.double() - b).norm() / b.norm()) for a, b in pairs)


# ---- clocks and floors ----


def warm_up(run: Callable[[], object]) -> None:
    """Run, waiting for the result each time, until clocks and caches have settled."""
    start, runs = time.perf_counter(), 0
    while runs < WARM_UP or time.perf_counter() - start < WARM_UP_SECONDS:
        run()
        runs += 1


def _time(body: Callable, device: torch.device, repeats: int) -> tuple[list[float], float | None]:
    """Milliseconds of each run after the warm-up, and the peak of device memory in MiB."""
    on_gpu = device.type == "cuda"
    run = partial(_event_time if on_gpu else _host_time, body)
    warm_up(run)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times = [run() for _ in range(repeats)]
    return times, torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None


def _host_time(body: Callable) -> float:
    start = time.perf_counter()
    body()
    return 1e3 * (time.perf_counter() - start)


def _event_time(body: Callable) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    body()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def copy_bandwidth(device: str) -> float:
    """Return bytes read and written per millisecond by a copy of 1 GiB (CPU: 256 MiB)."""
    size = 2**28 if device == "cuda" else 2**26
    source = torch.ones(size, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    times, _ = _time(lambda: target.copy_(source), source.device, 9)
    return 2 * source.nbytes / sorted(times)[4]


def floor_ms(problem: Problem, pass_name: str, bandwidth: float) -> float:
    """Return the time to move the weights as often as a pass must, at the copy's rate."""
    passes = {"forward": 1, "vjp": 3, "hvp": 6}[pass_name]
    return passes * problem.path_weights.nbytes / bandwidth


def append_csv(path: Path, row: Row) -> None:
    """Add a row to a table, with a header if the file is new."""
    cells, new = row.cells(), not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(cells), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(cells)
