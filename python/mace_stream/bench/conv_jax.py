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

from mace_stream.bench.cases import Problem, make_problem
from mace_stream.bench.conv import (
    PASSES,
    WARM_UP,
    Row,
    blank_row,
    exact_results,
    relative_error,
)
from mace_stream.jax import conv

CALLS = 4


def run(
    cases: list[str],
    *,
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
    graph: str = "uniform",
    n_nodes: int = 5000,
    repeats: int = 15,
) -> Iterator[Row]:
    """Measure every case and pass; arguments as those of :func:`mace_stream.bench.conv.run`."""
    for case in cases:
        problem = make_problem(case, device, dtype, graph, n_nodes)
        exact = exact_results(problem)
        blank = replace(blank_row(problem, case, "streaming"), framework=f"jax {jax.__version__}")
        for pass_name, function in _functions(problem).items():
            compiled = jax.jit(function)
            inputs = [_array(tensor) for tensor in problem.inputs]
            results = [torch.from_numpy(np.array(x)) for x in compiled(*inputs)]
            on_device = [result.to(problem.node_feats.device) for result in results]
            error = relative_error(problem, on_device, exact[pass_name])
            low, middle, high = quantiles(_time(compiled, inputs, repeats), n=4)
            numbers = {"median_ms": middle, "q25_ms": low, "q75_ms": high, "rel_err": error}
            yield replace(blank, pass_name=pass_name, status="ok", **numbers)


def _functions(problem: Problem) -> dict[str, Callable]:
    indptr, sender = (_array(tensor.int()) for tensor in (problem.indptr, problem.sender))

    def forward(*inputs: jax.Array) -> list[jax.Array]:
        return [conv(*inputs, indptr, sender, problem.plan)]

    def vjp(*inputs: jax.Array) -> list[jax.Array]:
        (message,), pull = jax.vjp(forward, *inputs)
        return [message, *pull([jnp.ones_like(message)])]

    def gradient(*inputs: jax.Array) -> list[jax.Array]:
        return vjp(*inputs)[1:]

    def hvp(*inputs: jax.Array) -> list[jax.Array]:
        bars, pull = jax.vjp(gradient, *inputs)
        return [forward(*inputs)[0], *pull(vectors), *bars]

    vectors = [0.5 * _array(tensor) for tensor in problem.inputs]
    return dict(zip(PASSES, (forward, vjp, hvp), strict=True))


def _array(tensor: torch.Tensor) -> Any:
    return jnp.asarray(tensor.cpu().numpy())


def _time(compiled: Callable, inputs: list, repeats: int) -> list[float]:
    """Milliseconds per call, several calls on their way at once, as on torch's stream."""
    times = []
    for _ in range(WARM_UP + repeats):
        start = time.perf_counter()
        for _ in range(CALLS):
            results = compiled(*inputs)
        jax.block_until_ready(results)
        times.append(1e3 * (time.perf_counter() - start) / CALLS)
    return times[WARM_UP:]
