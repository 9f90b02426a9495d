"""The same measurements in JAX: forward, VJP and Hessian-vector product, compiled by ``jit``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import quantiles
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from mace_stream.bench import conv as bench
from mace_stream.bench.cases import Problem, make_problem
from mace_stream.couplings import ConvPlan
from mace_stream.jax import conv

CALLS = 4
Arrays = tuple[jax.Array, ...]


def run(
    cases: list[str],
    *,
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
    graph: str = "uniform",
    n_nodes: int = 5000,
    repeats: int = 15,
) -> Iterator[bench.Row]:
    """Measure every case and pass; arguments as those of :func:`mace_stream.bench.conv.run`."""
    bandwidth = bench.copy_bandwidth(device)
    with jax.enable_x64(dtype == torch.float64):
        for case in cases:
            problem = make_problem(case, device, dtype, graph, n_nodes)
            yield from _measure(problem, case, bandwidth, repeats)


def _measure(problem: Problem, case: str, bandwidth: float, repeats: int) -> Iterator[bench.Row]:
    exact = bench.exact_results(problem)
    if problem.node_feats.is_cuda:
        torch.cuda.empty_cache()  # both frameworks keep what they once had
    blank = replace(bench.blank_row(problem, case, "streaming"), framework=f"jax {jax.__version__}")
    inputs = tuple(map(_array, problem.inputs))
    operands = (
        inputs,
        _array(problem.indptr),
        _array(problem.sender),
        tuple(0.5 * x for x in inputs),
    )
    for pass_name, function in _functions(problem.plan).items():
        compiled = jax.jit(function)
        error = bench.relative_error(
            problem, _checked(problem, compiled(*operands)), exact[pass_name]
        )
        low, middle, high = quantiles(_time(compiled, operands, repeats), n=4)
        yield replace(
            blank,
            pass_name=pass_name,
            **{"median_ms": middle, "q25_ms": low, "q75_ms": high, "rel_err": error},
            floor_ms=bench.floor_ms(problem, pass_name, bandwidth),
            status=bench.verdict(error),
        )


def _functions(plan: ConvPlan) -> dict[str, Callable]:
    """Every pass as a function of the arrays, the graph and the direction of the second one."""

    def message(arrays: Arrays, *graph: jax.Array) -> jax.Array:
        return conv(*arrays, *graph, plan)

    def gradient(arrays: Arrays, *graph: jax.Array) -> tuple[jax.Array, Arrays]:
        value, pull = jax.vjp(lambda *inputs: message(inputs, *graph), *arrays)
        return value, pull(jnp.ones_like(value))

    def forward(arrays: Arrays, indptr: jax.Array, sender: jax.Array, _: Arrays) -> list:
        return [message(arrays, indptr, sender)]

    def vjp(arrays: Arrays, indptr: jax.Array, sender: jax.Array, _: Arrays) -> list:
        value, bars = gradient(arrays, indptr, sender)
        return [value, *bars]

    def hvp(arrays: Arrays, indptr: jax.Array, sender: jax.Array, vectors: Arrays) -> list:
        value = message(arrays, indptr, sender)
        bars, pull = jax.vjp(lambda *inputs: gradient(inputs, indptr, sender)[1], *arrays)
        return [value, *pull(vectors), *bars]

    return dict(zip(bench.PASSES, (forward, vjp, hvp), strict=True))


def _array(tensor: torch.Tensor) -> jax.Array:
    return jnp.asarray(tensor.cpu().numpy())


def _checked(problem: Problem, results: list[jax.Array]) -> list[torch.Tensor]:
    """Of message, node, harmonics' and weight cotangents, what is compared, as torch's."""
    receivers = bench.CHECKED_RECEIVERS
    n_edges = int(problem.indptr[receivers])
    counts = receivers, receivers, n_edges, n_edges
    parts = [np.array(array[:count]) for array, count in zip(results, counts, strict=False)]
    return [torch.from_numpy(part).to(problem.node_feats.device) for part in parts]


def _time(compiled: Callable, operands: tuple[Any, ...], repeats: int) -> list[float]:
    """Milliseconds per call, several calls on their way at once, as on torch's stream."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            results = compiled(*operands)
        jax.block_until_ready(results)
        return 1e3 * (time.perf_counter() - start) / CALLS

    bench.warm_up(run)
    return [run() for _ in range(repeats)]
