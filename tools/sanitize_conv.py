"""Every pass of the convolution on small problems, for NVIDIA's compute-sanitizer.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1    # every array is an allocation of its own
    compute-sanitizer --tool memcheck  --error-exitcode 9 python tools/sanitize_conv.py float32 01
    compute-sanitizer --tool racecheck --error-exitcode 9 python tools/sanitize_conv.py float64 012

The digits are the degrees of the node features: 4, 10 and 17 paths with 0, 01 and 012. Results are
compared with plain torch in float64. With ``plant`` a sender is far outside, which memcheck must
find.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from mace_stream.bench.cases import Case, case_plan
from mace_stream.couplings import ConvPlan
from mace_stream.kernels.conv_kernel import kernel_name
from mace_stream.torch.conv import edge_receiver, plain_conv
from mace_stream.torch.conv_derivatives import convolve

DEGREES = torch.tensor([3, 0, 11, 1, 0, 37, 70])
"""Edges of every receiver: none, less than a warp, more than one."""
N_EDGES, N_NODES = int(DEGREES.sum()), len(DEGREES) + 3
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}
INDPTR = torch.cat([DEGREES.new_zeros(1), DEGREES.cumsum(0)])


def random(*shape: int, seed: int) -> Tensor:
    """Normal numbers, the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def results(
    function: Callable[..., Tensor], arrays: list[Tensor], wants_nodes: bool, wants_message: bool
) -> list[Tensor]:
    """Value, first and second derivatives, in float64 on the host."""
    leaves = [a.clone().requires_grad_(wants_nodes or k > 0) for k, a in enumerate(arrays)]
    wanted = leaves if wants_nodes else leaves[1:]
    out = function(*leaves)
    bar, *cotangents = (random(*a.shape, seed=k).to(out) for k, a in enumerate((out, *wanted)))
    bar.requires_grad_(wants_message)
    first = torch.autograd.grad(out, wanted, bar, create_graph=True)
    inputs = [*wanted, bar] if wants_message else wanted
    second = torch.autograd.grad(first, inputs, cotangents)
    return [a.detach().cpu().double() for a in (out, *first, *second)]


def check(
    plan: ConvPlan, dtype: torch.dtype, mode: str, *, nodes: bool = True, message: bool = True
) -> None:
    """Run all passes of one mode; stop where a result is wrong."""
    channels, kernel = plan.channels, kernel_name(plan, str(dtype).removeprefix("torch."))
    shapes = (N_NODES, plan.dim_in, channels), (N_EDGES, plan.dim_edge)
    shapes += ((N_EDGES, plan.n_paths, channels),)
    exact = [random(*shape, seed=k) for k, shape in enumerate(shapes)]
    arrays = [a.to("cuda", dtype) for a in exact]
    generator = torch.Generator().manual_seed(channels)
    sender = torch.randint(0, N_NODES, (N_EDGES,), generator=generator).int()
    graph = INDPTR.cuda(), sender.cuda(), None
    if mode == "standard":
        graph = None, sender.cuda(), edge_receiver(INDPTR).int().cuda()
    if "plant" in sys.argv:
        graph[1][5] = 400_000
    settings = len(DEGREES), kernel, mode == "deterministic"
    found = results(lambda *a: convolve(*a, *graph, *settings), arrays, nodes, message)
    truth = results(lambda *a: plain_conv(*a, INDPTR, sender, plan), exact, nodes, message)
    error = max(float((a - b).norm() / b.norm()) for a, b in zip(found, truth, strict=True))
    print(f"{channels} channels, {mode}, {nodes=}, {message=}: {error:.1e}", flush=True)
    if not error < BOUNDS[dtype]:
        sys.exit(f"wrong: more than {BOUNDS[dtype]}")


def main() -> None:
    """Run every mode, and what training and inference leave out."""
    dtype, degrees = getattr(torch, sys.argv[1]), tuple(map(int, sys.argv[2]))
    plans = {channels: case_plan(Case(channels, degrees)) for channels in (64, 33, 1, 96)}
    for mode in ("streaming", "standard", "deterministic"):
        for plan in plans.values():
            check(plan, dtype, mode)
    check(plans[64], dtype, "streaming", nodes=False, message=False)
    check(plans[64], dtype, "standard", message=False)
    check(plans[64], dtype, "standard", nodes=False)
    print("all passes done")


if __name__ == "__main__":
    main()
