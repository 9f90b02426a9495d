"""The convolution's operators in JAX: calls of the core library, shapes and derivatives.

The operators are JAX primitives. ``custom_vjp`` allows no forward mode and ``custom_jvp`` no
reverse rule of its own, but both are wanted: ``grad`` of ``grad`` for training, ``jvp`` of ``grad``
for Hessian-vector products. A primitive has a tangent rule and a transpose; each tangent here is a
primitive too, linear in its directions, and transposes into one fused pass:

    conv_forward    --tangent-->  forward_tangent    --transpose-->   conv_backward
    conv_backward   --tangent-->  backward_tangent   <--transpose-->  conv_double_backward

As a function of the three inputs and of ``message_bar``, ``<message_bar, message>`` is linear in
each of the four. ``conv_backward`` is its gradient with respect to the inputs, so both primitives
of the second line are products with its second derivatives, which are symmetric. A third derivative
is refused. An empty array stands for one that is absent, or is zero.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from mace_stream.compiled import compiled_directory
from mace_stream.kernels import core
from mace_stream.kernels.conv_kernel import kernel_by_name

LIBRARY = "libmace_stream_jax.so"
PASSES = ("forward", "backward", "double_backward")
PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}
"""JAX's name of a platform, and the name under which XLA keeps its handlers."""
PASSES_TARGET = "mace_stream_pass"
"""Any pass of the inference path, see :mod:`mace_stream.kernels.recording`."""
N_GRAPH = 3
"""Every primitive's last operands: ``indptr``, ``sender`` and ``receiver``."""


class Settings(NamedTuple):
    """What a call fixes when it is traced."""

    n_receivers: int
    kernel: str
    deterministic: bool
    want_nodes: bool = True


def absent(dtype: Any) -> Array:
    """Return the array that stands for none."""
    return jnp.zeros(0, dtype)


def edge_receiver(indptr: Array, n_edges: int) -> Array:
    """Return the row of every edge, int32 ``[n_edges]``."""
    rows = jnp.arange(len(indptr) - 1, dtype=jnp.int32)
    return jnp.repeat(rows, jnp.diff(indptr), total_repeat_length=n_edges)


# ---- calling the core library ----


def register_targets(folder: Path) -> None:
    """Make the handlers in ``folder`` known to XLA.

    Raises:
        ImportError: The package was built without them.
    """
    if not (folder / LIBRARY).is_file():
        raise ImportError(
            f"mace_stream.jax: no {LIBRARY} in {folder}, as JAX was not there when mace-stream was "
            "built; type, in the source folder of mace-stream: pip install . -C cmake.define."
            "XLA_FFI_INCLUDE_DIR=\"$(python -c 'import jax.ffi; print(jax.ffi.include_dir())')\""
        )
    core.library()
    handlers = ctypes.CDLL(str(folder / LIBRARY))
    for name in PASSES:
        for platform, xla_platform in PLATFORMS.items():
            handler = jax.ffi.pycapsule(getattr(handlers, f"ms_jax_{name}_{platform}"))
            jax.ffi.register_ffi_target(_target(name), handler, platform=xla_platform)
    for platform, xla_platform in PLATFORMS.items():
        handler = jax.ffi.pycapsule(getattr(handlers, f"ms_jax_pass_{platform}"))
        jax.ffi.register_ffi_target(PASSES_TARGET, handler, platform=xla_platform)


def _target(name: str) -> str:
    return f"mace_stream_conv_{name}"


def _call(
    name: str, results: Sequence, arrays: Sequence[Array], graph: Sequence[Array], kernel: str
) -> list[Array]:
    """Call ``ms_conv_<name>`` when the program runs."""
    shapes = [jax.ShapeDtypeStruct(result.shape, result.dtype) for result in results]
    call = jax.ffi.ffi_call(_target(name), shapes, vmap_method="sequential")
    return list(call(*arrays, *graph, plan=np.int64(kernel_by_name(kernel).core.address)))


def _forward_on(platform: str, *operands: Array, settings: Settings) -> list[Array]:
    arrays, graph = operands[:-N_GRAPH], operands[-N_GRAPH:]
    _load(platform, settings, (core.FORWARD, _any_order(graph), True), arrays[0].shape[-1])
    results = _forward_shapes(*operands, settings=settings)
    return _call("forward", results, arrays, _with_senders(graph, None), settings.kernel)


def _backward_on(
    name: str, pass_number: int, platform: str, *operands: Array, settings: Settings
) -> list[Array]:
    """Either backward pass; one more result than the primitive's is room for tiles."""
    arrays, graph = operands[:-N_GRAPH], operands[-N_GRAPH:]
    second = pass_number == core.DOUBLE_BACKWARD
    by_sender = settings.want_nodes and _needs_senders(platform, settings, second)
    variant = (pass_number, _any_order(graph), settings.want_nodes and not by_sender)
    tiles = _load(platform, settings, variant, arrays[0].shape[-1], by_sender)
    attrs = arrays[1]
    scratch = jax.ShapeDtypeStruct((tiles, *attrs.shape) if tiles > 1 else (0,), attrs.dtype)
    shapes = _backward_shapes if pass_number == core.BACKWARD else _double_backward_shapes
    results = [*shapes(*operands, settings=settings), scratch]
    grouped = _with_senders(graph, len(arrays[0]) if by_sender else None)
    return _call(name, results, arrays, grouped, settings.kernel)[:-1]


def _load(
    platform: str,
    settings: Settings,
    variant: tuple[int, bool, bool],
    channels: int,
    by_sender: bool = False,
) -> int:
    """Load a pass on every CUDA device of this process; return how many tiles it writes."""
    if platform == "cpu":
        return 1
    owner = kernel_by_name(settings.kernel)
    devices = jax.local_devices(backend=platform)
    for device in devices:
        arch = f"sm_{device.compute_capability.replace('.', '')}"
        owner.prepare(device.local_hardware_id, arch, variant)
        if by_sender:
            owner.prepare(device.local_hardware_id, arch, (core.BACKWARD_SENDER, False, True))
    return owner.core.tiles(devices[0].local_hardware_id, variant, channels)


def _needs_senders(platform: str, settings: Settings, second: bool) -> bool:
    """Whether node cotangents come from a sender-owned pass."""
    plan = kernel_by_name(settings.kernel).plan
    owned = plan.sender_owned_second if second else plan.sender_owned
    return platform == "cpu" or settings.deterministic or owned


def _any_order(graph: Sequence[Array]) -> bool:
    return graph[0].size == 0


def _with_senders(graph: Sequence[Array], n_nodes: int | None) -> list[Array]:
    """Append the edges sorted by sender, where ``n_nodes`` is given, and widen row pointers."""
    indptr, sender, receiver = graph
    sender_indptr = edge_of = absent(jnp.int32)
    if n_nodes is not None:
        counts = jnp.zeros(n_nodes, jnp.int32).at[sender].add(1)
        sender_indptr = jnp.cumsum(jnp.concatenate([jnp.zeros(1, jnp.int32), counts]))
        edge_of = jnp.argsort(sender, stable=True)
        if receiver.size == 0:
            receiver = edge_receiver(indptr, len(sender))
    return [_as_int64(indptr), sender, receiver, _as_int64(sender_indptr), _as_int64(edge_of)]


def _as_int64(array: Array) -> Array:
    """The bytes of int64, as pairs of int32 (low word, high word) where JAX has no int64."""
    if array.dtype == jnp.int64:
        return array
    return jnp.stack([array, array >> 31], axis=-1)


# ---- primitives ----


def _forward_shapes(*operands: Any, settings: Settings) -> list:
    feats = operands[0]
    dim_out = kernel_by_name(settings.kernel).plan.dim_out
    shape = (settings.n_receivers, dim_out, feats.shape[-1])
    return [jax.core.ShapedArray(shape, feats.dtype)]


def _backward_shapes(*operands: Any, settings: Settings) -> list:
    bars = [jax.core.ShapedArray(a.shape, a.dtype) for a in operands[:3]]
    return bars if settings.want_nodes else [jax.core.ShapedArray((0,), bars[0].dtype), *bars[1:]]


def _double_backward_shapes(*operands: Any, settings: Settings) -> list:
    del settings
    return [jax.core.ShapedArray(a.shape, a.dtype) for a in operands[:4]]


def _primitive(name: str, shapes: Callable) -> Primitive:
    primitive = Primitive(f"mace_stream_{name}")
    primitive.multiple_results = True
    primitive.def_abstract_eval(shapes)
    primitive.def_impl(lambda *operands, settings: _jitted(primitive, settings)(*operands))
    batching.primitive_batchers[primitive] = partial(_one_after_the_other, primitive)
    return primitive


@cache
def _jitted(primitive: Primitive, settings: Settings) -> Callable:
    return jax.jit(partial(primitive.bind, settings=settings))


def _one_after_the_other(
    primitive: Primitive, operands: Sequence[Array], axes: Sequence, *, settings: Settings
) -> tuple[list[Array], list[int]]:
    mapped = [k for k, axis in enumerate(axes) if axis is not None]

    def one(slices: list[Array]) -> list[Array]:
        return primitive.bind(*_replaced(operands, mapped, slices), settings=settings)

    results = jax.lax.map(one, [jnp.moveaxis(operands[k], axes[k], 0) for k in mapped])
    return results, [0] * len(results)


def _replaced(values: Sequence, places: Sequence[int], new: Sequence) -> list:
    """``values`` with ``new`` ones in these places."""
    result = list(values)
    for place, value in zip(places, new, strict=True):
        result[place] = value
    return result


_forward = _primitive("conv_forward", _forward_shapes)
_backward = _primitive("conv_backward", _backward_shapes)
_double_backward = _primitive("conv_double_backward", _double_backward_shapes)
_forward_tangent = _primitive("conv_forward_tangent", _forward_shapes)
_backward_tangent = _primitive("conv_backward_tangent", _backward_shapes)

for _platform in PLATFORMS:
    for _pass, _implementation in (
        (_forward, _forward_on),
        (_backward, partial(_backward_on, "backward", core.BACKWARD)),
        (_double_backward, partial(_backward_on, "double_backward", core.DOUBLE_BACKWARD)),
    ):
        _rule = mlir.lower_fun(partial(_implementation, _platform), multiple_results=True)
        mlir.register_lowering(_pass, _rule, platform=_platform)


def conv_forward(*operands: Array | Settings) -> Array:
    """Message [n_receivers, dim_out, channels].

    Operands: ``node_feats``, ``edge_attrs``, ``path_weights``, ``indptr`` or absent, ``sender``,
    ``receiver`` or absent, and the settings.
    """
    *arrays, settings = operands
    return _forward.bind(*arrays, settings=settings)[0]


# ---- tangents: sums of passes, linear in the directions ----


def _forward_along(*operands: Array, settings: Settings) -> list[Array]:
    """Change of the message as the inputs move along three directions."""
    inputs, directions, graph = operands[:3], operands[3:6], operands[6:]
    moving = [k for k in range(3) if directions[k].size]
    parts = [
        _forward.bind(*_replaced(inputs, [k], [directions[k]]), *graph, settings=settings)[0]
        for k in moving
    ]
    (shape,) = _forward_shapes(*operands, settings=settings)
    return [sum(parts[1:], parts[0]) if parts else jnp.zeros(shape.shape, shape.dtype)]


def _backward_along(*operands: Array, settings: Settings) -> list[Array]:
    """Change of the three cotangents as the inputs and ``message_bar`` move."""
    inputs, directions, graph = operands[:4], operands[4:8], operands[8:]
    bars = [jnp.zeros(s.shape, s.dtype) for s in _backward_shapes(*operands, settings=settings)]
    if any(direction.size for direction in directions[:3]):
        whole = settings._replace(want_nodes=True)
        bars = _double_backward.bind(*inputs, *directions[:3], *graph, settings=whole)[:3]
        bars[0] = bars[0] if settings.want_nodes else absent(bars[0].dtype)
    if directions[3].size:
        along = _backward.bind(*inputs[:3], directions[3], *graph, settings=settings)
        bars = [a + b for a, b in zip(bars, along, strict=True)]
    return bars


for _tangent, _along in ((_forward_tangent, _forward_along), (_backward_tangent, _backward_along)):
    mlir.register_lowering(_tangent, mlir.lower_fun(_along, multiple_results=True))


# ---- derivatives ----


def _present(values: Sequence, like: Any) -> list[Array]:
    """Symbolic zeros become absent arrays."""
    return [absent(like.dtype) if type(value) is ad.Zero else value for value in values]


def _wanted(values: Sequence, operands: Sequence) -> list:
    """Of the cotangents of ``operands``, those that are asked for."""
    pairs = zip(values, operands, strict=True)
    return [value if ad.is_undefined_primal(operand) else None for value, operand in pairs]


def _jvp_into(
    primitive: Primitive,
    tangent: Primitive,
    n_inputs: int,
    operands: Sequence,
    tangents: Sequence,
    *,
    settings: Settings,
) -> tuple[list, list]:
    """The derivative of ``primitive`` with respect to its first inputs is ``tangent``."""
    results = primitive.bind(*operands, settings=settings)
    directions = _present(tangents[:n_inputs], operands[0])
    changes = tangent.bind(
        *operands[:n_inputs], *directions, *operands[n_inputs:], settings=settings
    )
    return results, changes


def _jvp_of_forward_tangent(
    operands: Sequence, tangents: Sequence, *, settings: Settings
) -> tuple[list, list]:
    """Differentiate the sum it stands for, which is made of ``conv_forward`` only."""
    moving = [k for k in range(6) if type(tangents[k]) is not ad.Zero]

    def function(*values: Array) -> list[Array]:
        return _forward_along(*_replaced(operands, moving, values), settings=settings)

    return jax.jvp(function, [operands[k] for k in moving], [tangents[k] for k in moving])


def _jvp_if_linear(
    primitive: Primitive, operands: Sequence, tangents: Sequence, *, settings: Settings
) -> tuple[list, list]:
    """Second derivatives are linear in what they are multiplied with; the rest is refused."""
    if any(type(tangent) is not ad.Zero for tangent in tangents[:4]):
        _refuse_third_derivative()
    inputs, directions, graph = operands[:4], tangents[4:-N_GRAPH], operands[-N_GRAPH:]
    results = primitive.bind(*operands, settings=settings)
    changes = primitive.bind(*inputs, *_present(directions, inputs[0]), *graph, settings=settings)
    return results, changes


def _refuse_third_derivative() -> NoReturn:
    raise NotImplementedError(
        "mace_stream: the convolution has no third derivative; Hessian-vector products and "
        "force-training losses need two. Use mace_stream.jax.plain_conv where you need more"
    )


def _transpose_forward_tangent(cts: Sequence, *operands: Any, settings: Settings) -> list:
    inputs, directions, graph = operands[:3], operands[3:6], operands[6:]
    if type(cts[0]) is ad.Zero:
        return [None] * len(operands)
    settings = settings._replace(want_nodes=ad.is_undefined_primal(directions[0]))
    bars = _backward.bind(*inputs, cts[0], *graph, settings=settings)
    return [*[None] * 3, *_wanted(bars, directions), *[None] * N_GRAPH]


def _transpose_backward_tangent(cts: Sequence, *operands: Any, settings: Settings) -> list:
    inputs, directions, graph = operands[:4], operands[4:8], operands[8:]
    cotangents = _present(cts, inputs[0])
    settings = settings._replace(want_nodes=True)
    grads = _double_backward.bind(*inputs, *cotangents, *graph, settings=settings)
    return [*[None] * 4, *_wanted(grads, directions), *[None] * N_GRAPH]


def _transpose_double_backward(cts: Sequence, *operands: Any, settings: Settings) -> list:
    inputs, cotangents, graph = operands[:4], operands[4:7], operands[7:]
    directions = _present(cts, inputs[0])
    settings = settings._replace(want_nodes=ad.is_undefined_primal(cotangents[0]))
    bars = _backward_tangent.bind(*inputs, *directions, *graph, settings=settings)
    return [*[None] * 4, *_wanted(bars, cotangents), *[None] * N_GRAPH]


ad.primitive_jvps[_forward] = partial(_jvp_into, _forward, _forward_tangent, 3)
ad.primitive_jvps[_backward] = partial(_jvp_into, _backward, _backward_tangent, 4)
ad.primitive_jvps[_forward_tangent] = _jvp_of_forward_tangent
ad.primitive_jvps[_backward_tangent] = partial(_jvp_if_linear, _backward_tangent)
ad.primitive_jvps[_double_backward] = partial(_jvp_if_linear, _double_backward)
ad.primitive_transposes[_forward_tangent] = _transpose_forward_tangent
ad.primitive_transposes[_backward_tangent] = _transpose_backward_tangent
ad.primitive_transposes[_double_backward] = _transpose_double_backward

register_targets(compiled_directory())
