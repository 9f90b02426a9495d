"""Derivatives of the convolution in torch: every rule is here.

The convolution f is linear in each of x (nodes), y (harmonics) and w (weights). Hence

- ``conv_forward`` has the VJP ``conv_backward``,
- ``conv_backward`` has the VJP ``conv_double_backward``,
- ``conv_double_backward`` is linear in its cotangents (a_x, a_y, a_w): it is the gradient of
  ``S = <g, Df(x, y, w)[a]>``, and S is symmetric in the sense that its VJP with respect to a is
  ``conv_double_backward`` again plus ``conv_backward``. Products of a Hessian and a vector by the
  double-backward trick need that one. What depends on a true third derivative is refused.

The rules are autograd functions, so that the transforms of ``torch.func`` see them; the operators
have the same rules for those who call them directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mace_stream.torch import ops

Grads = tuple[Tensor | None, ...]


def _direct(now: Callable, operator: Callable) -> Callable:
    """Call ``now`` on plain tensors, whose derivatives are taken here: it spares half the latency.

    Anything else, such as a tensor that is being traced, goes through the dispatcher.
    """

    def call(*inputs: Any) -> Any:
        return now(*inputs) if type(inputs[0]) in _PLAIN else operator(*inputs)

    return call


_PLAIN = (Tensor, torch.nn.Parameter)
_forward = _direct(ops.conv_forward_now, ops.conv_forward)
_backward = _direct(ops.conv_backward_now, ops.conv_backward)
_double_backward = _direct(ops.conv_double_backward_now, ops.conv_double_backward)


def convolve(*inputs: Any) -> Tensor:
    """Differentiable ``conv_forward``; arguments are the operator's."""
    if torch.compiler.is_compiling():  # it traces operators, not functions within functions
        return ops.conv_forward(*inputs)
    return _Forward.apply(*inputs) if _is_watched(inputs[:3]) else _forward(*inputs)


def _is_watched(arrays: tuple[Tensor, ...]) -> bool:
    """Whether anything differentiates or transforms this call.

    If not, an autograd function would only add some 50 microseconds.
    """
    return (
        (torch.is_grad_enabled() and any(array.requires_grad for array in arrays))
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


# ---- first derivative ----


def _save_forward(ctx: Any, inputs: tuple, output: Tensor) -> None:
    del output
    *tensors, ctx.n_receivers, ctx.kernel, ctx.deterministic = inputs
    ctx.save_for_backward(*tensors)


def _vjp(ctx: Any, message_bar: Tensor) -> Grads:
    *arrays, indptr, sender, receiver = ctx.saved_tensors
    settings = ctx.n_receivers, ctx.kernel, ctx.deterministic
    want_nodes = ctx.needs_input_grad[0]
    node_bar, attrs_bar, weights_bar = _Backward.apply(
        *arrays, message_bar, indptr, sender, receiver, *settings, want_nodes
    )
    return (node_bar if want_nodes else None, attrs_bar, weights_bar, *[None] * 6)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return _forward(*inputs)

    setup_context = staticmethod(_save_forward)
    backward = staticmethod(_vjp)


# ---- second derivative ----


def _save_backward(ctx: Any, inputs: tuple, output: Grads) -> None:
    del output
    *tensors, ctx.n_receivers, ctx.kernel, ctx.deterministic, ctx.want_nodes = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _vjp_of_vjp(ctx: Any, node_ct: Tensor | None, *other_cts: Tensor | None) -> Grads:
    *tensors, indptr, sender, receiver = ctx.saved_tensors
    settings = ctx.n_receivers, ctx.kernel, ctx.deterministic
    cotangents = (node_ct if ctx.want_nodes else None, *other_cts)
    if all(ct is None for ct in cotangents):
        return (None,) * 11
    tensors = [_LastDerivative.apply(tensor) for tensor in tensors]
    want_message = ctx.needs_input_grad[3]
    *grads, message_grad = _DoubleBackward.apply(
        *tensors, *cotangents, indptr, sender, receiver, *settings, want_message
    )
    return (*grads, message_grad if want_message else None, *[None] * 7)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return _backward(*inputs)

    setup_context = staticmethod(_save_backward)
    backward = staticmethod(_vjp_of_vjp)


# ---- products of the second derivative with vectors; the third is refused ----


def _save_double_backward(ctx: Any, inputs: tuple, output: Grads) -> None:
    del output
    *tensors, ctx.n_receivers, ctx.kernel, ctx.deterministic, ctx.want_message = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _vjp_for_cotangents(ctx: Any, *bars: Tensor | None) -> Grads:
    """Gradients of the three cotangents; those of the other inputs end in _LastDerivative."""
    *tensors, _node_ct, _attrs_ct, _weights_ct, indptr, sender, receiver = ctx.saved_tensors
    arrays, graph = tensors[:3], (indptr, sender, receiver)
    settings = ctx.n_receivers, ctx.kernel, ctx.deterministic
    *input_bars, bar_bar = bars
    bar_bar = bar_bar if ctx.want_message else None
    wanted = ctx.needs_input_grad[4:7]
    parts = []
    if any(bar is not None for bar in input_bars):
        parts.append(_DoubleBackward.apply(*tensors, *input_bars, *graph, *settings, False)[:3])
    if bar_bar is not None:
        parts.append(_Backward.apply(*arrays, bar_bar, *graph, *settings, wanted[0]))
    grads = [
        sum(part[index] for part in parts) if want and parts else None
        for index, want in enumerate(wanted)
    ]
    return (*[None] * 4, *grads, *[None] * 7)


class _DoubleBackward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return _double_backward(*inputs)

    setup_context = staticmethod(_save_double_backward)
    backward = staticmethod(_vjp_for_cotangents)


def _refuse(ctx: Any, *bars: Tensor) -> Grads:
    raise NotImplementedError(
        "mace_stream: the convolution has no third derivative; Hessian-vector products and "
        "force-training losses need two"
    )


def _save_nothing(ctx: Any, inputs: tuple, output: Any) -> None:
    pass


class _LastDerivative(torch.autograd.Function):
    """The identity; refuses to be differentiated."""

    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    setup_context = staticmethod(_save_nothing)
    backward = staticmethod(_refuse)


# ---- the same rules for direct calls of the operators ----

ops.conv_forward.register_autograd(_vjp, setup_context=_save_forward)
ops.conv_backward.register_autograd(_vjp_of_vjp, setup_context=_save_backward)
ops.conv_double_backward.register_autograd(_refuse, setup_context=_save_nothing)
