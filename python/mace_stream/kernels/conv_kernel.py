"""A convolution ready to run: tables in the core library, kernels compiled when first needed."""

from __future__ import annotations

import sys
from functools import cache

from mace_stream.couplings import ConvPlan
from mace_stream.couplings.tensor_product import MAX_DIM_EDGE
from mace_stream.kernels import core
from mace_stream.kernels.groups import plan_launch
from mace_stream.kernels.nvrtc import Program, compile_program
from mace_stream.kernels.source import write_source

PASS_NAMES = {
    core.FORWARD: "conv_forward",
    core.BACKWARD: "conv_backward",
    core.BACKWARD_SENDER: "conv_backward_sender",
    core.DOUBLE_BACKWARD: "conv_double_backward",
}

DTYPES = ("float32", "float64")


class ConvKernel:
    """Kernels of one plan in one precision, on every device that asks for them.

    Args:
        plan: The convolution.
        dtype: ``float32`` or ``float64``.
    """

    def __init__(self, plan: ConvPlan, dtype: str) -> None:
        self.plan = plan
        self.dtype = dtype
        self.core = core.CorePlan(plan, dtype)
        self._loaded: set[tuple] = set()

    def prepare(self, device: int, arch: str, variant: tuple[int, bool, bool]) -> None:
        """Compile and load a variant for a CUDA device, unless that is done.

        Args:
            device: CUDA device number.
            arch: Its architecture, for example ``sm_90``.
            variant: Pass, whether edges come in any order, whether it adds node cotangents.
        """
        if (device, variant) in self._loaded:
            return
        program, kernels = compile_variant(self.plan, self.dtype, arch, variant)
        if program.seconds:
            print(
                f"mace_stream: compiled {PASS_NAMES[variant[0]]} for {arch}, {self.dtype}, "
                f"{self.plan.n_paths} paths in {program.seconds:.1f} s",
                file=sys.stderr,
            )
        self.core.load_cuda(device, variant, program.cubin, kernels, program.names["sum_tiles"])
        self._loaded.add((device, variant))


def compile_variant(
    plan: ConvPlan, dtype: str, arch: str, variant: tuple[int, bool, bool]
) -> tuple[Program, list[tuple[str, int, int, int]]]:
    """Compile one variant; needs no GPU.

    Returns:
        The program, and name, width, threads and shared bytes of the kernel of every group.

    Raises:
        ValueError: The plan has more harmonics than the kernels hold.
        CompileError: NVRTC is missing or refuses the source.
    """
    if plan.dim_edge > MAX_DIM_EDGE:
        raise ValueError(
            f"edge_attrs: expected at most {MAX_DIM_EDGE} components on a GPU, got {plan.dim_edge}"
        )
    pass_name = PASS_NAMES[variant[0]]
    launch = plan_launch(plan, pass_name, 8 if dtype == "float64" else 4)
    arguments = _template_arguments(variant, launch.width)
    instances = [f"{pass_name}<Group{g}, {arguments}>" for g in range(len(launch.groups))]
    source = write_source(plan, launch, pass_name, dtype)
    program = compile_program(source, [*instances, "sum_tiles"], arch)
    kernels = [
        (program.names[name], launch.width, launch.threads, shared)
        for name, shared in zip(instances, launch.shared_bytes, strict=True)
    ]
    return program, kernels


def _template_arguments(variant: tuple[int, bool, bool], width: int) -> str:
    pass_number, any_order, nodes = variant
    flags = {
        core.FORWARD: [any_order],
        core.BACKWARD: [any_order, nodes],
        core.BACKWARD_SENDER: [],
        core.DOUBLE_BACKWARD: [any_order, nodes],
    }[pass_number]
    return ", ".join([str(width), *("true" if flag else "false" for flag in flags)])


def kernel_name(plan: ConvPlan, dtype: str) -> str:
    """Return the name by which operators know the kernels of a plan in a precision.

    A text, because compilers of frameworks make variables of numbers.

    Raises:
        ValueError: The precision is neither float32 nor float64.
    """
    if dtype not in DTYPES:
        raise ValueError(f"conv: expected float32 or float64, got {dtype}")
    return plan.name + ":" + dtype


@cache
def kernel_by_name(name: str) -> ConvKernel:
    """Return the kernels that an operator's attribute names; one per process."""
    plan, dtype = name.split(":")
    return ConvKernel(ConvPlan.by_name(plan), dtype)
