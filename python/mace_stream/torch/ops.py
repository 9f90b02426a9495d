"""The convolution's operators in torch: schemas, shapes, and calls of the core library.

``conv_forward`` -> ``conv_backward`` (its VJP) -> ``conv_double_backward`` (the VJP of the VJP);
how autograd connects them is in :mod:`mace_stream.torch.conv_derivatives`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mace_stream.kernels import core
from mace_stream.kernels.conv_kernel import ConvKernel, kernel_by_name

# ---- operators; the functions named _now are the same without torch's dispatcher ----


def conv_forward_now(
    node_feats: Tensor,
    edge_attrs: Tensor,
    path_weights: Tensor,
    indptr: Tensor | None,
    sender: Tensor,
    receiver: Tensor | None,
    n_receivers: int,
    kernel: str,
    deterministic: bool,
) -> Tensor:
    """Message [n_receivers, dim_out, channels]."""
    del deterministic  # the forward pass of grouped edges has no atomics
    owner = kernel_by_name(kernel)
    arrays = _dense(node_feats, edge_attrs, path_weights)
    message = node_feats.new_empty(n_receivers, owner.plan.dim_out, node_feats.shape[-1])
    call = _Call(owner, arrays, indptr, sender, receiver, n_receivers)
    call.prepare(core.FORWARD)
    call.run("forward", message)
    return message


def conv_backward_now(
    node_feats: Tensor,
    edge_attrs: Tensor,
    path_weights: Tensor,
    message_bar: Tensor,
    indptr: Tensor | None,
    sender: Tensor,
    receiver: Tensor | None,
    n_receivers: int,
    kernel: str,
    deterministic: bool,
    want_nodes: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cotangents of the three inputs; that of the nodes is empty unless wanted."""
    owner = kernel_by_name(kernel)
    arrays = _dense(node_feats, edge_attrs, path_weights)
    (message_bar,) = _dense(message_bar)
    call = _Call(owner, arrays, indptr, sender, receiver, n_receivers)
    if want_nodes and call.needs_senders(deterministic or owner.plan.sender_owned):
        call.group_by_sender()
    scratch = call.prepare(core.BACKWARD, nodes=want_nodes)
    node_bar = torch.empty_like(arrays[0]) if want_nodes else node_feats.new_empty(0)
    attrs_bar, weights_bar = torch.empty_like(arrays[1]), torch.empty_like(arrays[2])
    target = node_bar if want_nodes else None
    call.run("backward", message_bar, target, attrs_bar, weights_bar, scratch)
    return node_bar, attrs_bar, weights_bar


def conv_double_backward_now(
    node_feats: Tensor,
    edge_attrs: Tensor,
    path_weights: Tensor,
    message_bar: Tensor,
    node_ct: Tensor | None,
    attrs_ct: Tensor | None,
    weights_ct: Tensor | None,
    indptr: Tensor | None,
    sender: Tensor,
    receiver: Tensor | None,
    n_receivers: int,
    kernel: str,
    deterministic: bool,
    want_message: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the three inputs and of the message cotangent; a cotangent None is zero.

    The last gradient is empty unless wanted.
    """
    owner = kernel_by_name(kernel)
    arrays = _dense(node_feats, edge_attrs, path_weights)
    (message_bar,) = _dense(message_bar)
    cotangents = [None if ct is None else _dense(ct)[0] for ct in (node_ct, attrs_ct, weights_ct)]
    call = _Call(owner, arrays, indptr, sender, receiver, n_receivers)
    if call.needs_senders(deterministic or owner.plan.sender_owned_second):
        call.group_by_sender()
    scratch = call.prepare(core.DOUBLE_BACKWARD, nodes=True)
    grads = [torch.empty_like(array) for array in arrays]
    message_grad = None
    if want_message or call.number == core.CPU:
        message_grad = torch.empty_like(message_bar)
    call.run("double_backward", message_bar, *cotangents, *grads, message_grad, scratch)
    wanted = message_grad if want_message else message_bar.new_empty(0)
    return grads[0], grads[1], grads[2], wanted


conv_forward = torch.library.custom_op(
    "mace_stream::conv_forward", conv_forward_now, mutates_args=()
)
conv_backward = torch.library.custom_op(
    "mace_stream::conv_backward", conv_backward_now, mutates_args=()
)
conv_double_backward = torch.library.custom_op(
    "mace_stream::conv_double_backward", conv_double_backward_now, mutates_args=()
)

# ---- shapes, for tracing ----


@conv_forward.register_fake
def _(node_feats, edge_attrs, path_weights, indptr, sender, receiver, n_receivers, kernel, _det):  # noqa: ANN001, ANN202
    plan = kernel_by_name(kernel).plan
    return node_feats.new_empty(n_receivers, plan.dim_out, node_feats.shape[-1])


@conv_backward.register_fake
def _(node_feats, edge_attrs, path_weights, message_bar, *rest):  # noqa: ANN001, ANN002, ANN202
    want_nodes = rest[-1]
    node_bar = _like(node_feats) if want_nodes else node_feats.new_empty(0)
    return node_bar, _like(edge_attrs), _like(path_weights)


@conv_double_backward.register_fake
def _(node_feats, edge_attrs, path_weights, message_bar, *rest):  # noqa: ANN001, ANN002, ANN202
    want_message = rest[-1]
    last = _like(message_bar) if want_message else message_bar.new_empty(0)
    return _like(node_feats), _like(edge_attrs), _like(path_weights), last


def _like(array: Tensor) -> Tensor:
    return torch.empty_like(array, memory_format=torch.contiguous_format)


# ---- calling the core library ----


class _Call:
    """One call of the core library: the graph, the place, and the arrays that must outlive it."""

    def __init__(  # noqa: ANN204
        self,
        owner: ConvKernel,
        arrays: list[Tensor],
        indptr: Tensor | None,
        sender: Tensor,
        receiver: Tensor | None,
        n_receivers: int,
    ):
        self.owner = owner
        self.arrays = arrays
        self.device = arrays[0].device
        self.indptr = indptr
        self.sender = _indices(sender)
        self.receiver = None if receiver is None else _indices(receiver)
        self.n_receivers = n_receivers
        self.sender_indptr = self.edge_of = None

    @property
    def number(self) -> int:
        """CUDA device number, or -1."""
        return self.device.index if self.device.type == "cuda" else core.CPU

    def needs_senders(self, preferred: bool) -> bool:
        """Whether node cotangents come from a sender-owned pass: always on a CPU."""
        return self.number == core.CPU or preferred

    def group_by_sender(self) -> None:
        """Sort the edges by sender, for the sender-owned pass; does not wait for the device."""
        self.edge_of = torch.argsort(self.sender, stable=True)
        nodes = torch.arange(len(self.arrays[0]) + 1, device=self.device, dtype=torch.int32)
        self.sender_indptr = torch.searchsorted(self.sender[self.edge_of], nodes)
        if self.receiver is None:
            rows = torch.arange(self.n_receivers, device=self.device, dtype=torch.int32)
            degrees, n_edges = self.indptr.diff(), len(self.sender)
            self.receiver = torch.repeat_interleave(rows, degrees, output_size=n_edges)

    def prepare(self, pass_number: int, nodes: bool = True) -> Tensor | None:
        """Load the kernels of a pass; return scratch for the harmonics' cotangent where needed."""
        if self.number == core.CPU:
            return None
        arch = architecture(self.number)
        here = nodes and self.sender_indptr is None
        variant = (pass_number, self.indptr is None, here or pass_number == core.FORWARD)
        self.owner.prepare(self.number, arch, variant)
        if nodes and not here:
            self.owner.prepare(self.number, arch, (core.BACKWARD_SENDER, False, True))
        if pass_number == core.FORWARD:
            return None
        tiles = self.owner.core.tiles(self.number, variant, self.arrays[0].shape[-1])
        return self.arrays[1].new_empty(tiles, *self.arrays[1].shape) if tiles > 1 else None

    def run(self, name: str, *others: Tensor | None) -> None:
        """Call ``ms_conv_<name>`` on the current stream."""
        node_feats, edge_attrs, _ = self.arrays
        graph = core.Graph(
            *(len(node_feats), self.n_receivers, len(edge_attrs), node_feats.shape[-1]),
            *map(
                _address,
                (self.indptr, self.sender, self.receiver, self.sender_indptr, self.edge_of),
            ),
        )
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.number >= 0 else None
        place = core.Place(self.number, stream)
        self.owner.core.call(name, place, graph, *map(_address, (*self.arrays, *others)))


def _indices(nodes: Tensor) -> Tensor:
    return (
        nodes if nodes.dtype == torch.int32 and nodes.is_contiguous() else nodes.int().contiguous()
    )


def _address(array: Tensor | None) -> int | None:
    return None if array is None else array.data_ptr()


def _dense(*arrays: Tensor) -> list[Tensor]:
    """Contiguous arrays whose first element is aligned for the widest access (16 bytes)."""
    dense = [array.contiguous() for array in arrays]
    return [array.clone() if array.data_ptr() % 16 else array for array in dense]


@cache
def architecture(device: int) -> str:
    """Return the architecture of a CUDA device, for example ``sm_90``."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
