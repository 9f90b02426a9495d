"""Models saved with cuEquivariance or OpenEquivariance modules, read without these packages.

Their classes are replaced by stand-ins while the pickle is opened; afterwards plain e3nn modules
with the same weights take the stand-ins' places. The order of the weights in both packages is
e3nn's (mace-torch's own converters, mace/cli/convert_cueq_e3nn.py and convert_oeq_e3nn.py, copy
them in the same way); only the symmetric contraction keeps all orders in one tensor.
"""

from __future__ import annotations

import math
import pickle
import types
from collections.abc import Callable

import torch

from mace_stream.convert.classes import BLOCKS
from mace_stream.convert.defaults import default_dtype
from mace_stream.convert.ledger import ConversionError, qualified_name

_PACKAGES = ("cuequivariance", "openequivariance")
_REMEDY = "Convert it back to plain e3nn with mace-torch (mace/cli/convert_cueq_e3nn.py) first"


class StandIn(torch.nn.Module):
    """Takes the state of an object whose package is not needed; computes nothing."""

    def __new__(cls, *args: object, **kwargs: object) -> StandIn:  # noqa: D102
        instance = object.__new__(cls)
        torch.nn.Module.__init__(instance)
        return instance

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Ignore the arguments: ``__new__`` has made an empty module."""

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __hash__(self) -> int:
        return id(self)

    def append(self, item: object) -> None:
        """Take an item of a pickled list and forget it."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        # mace-torch has the class O3_e3nn only where cuequivariance is installed.
        if module.startswith(_PACKAGES) or (module, name) == ("mace.tools.cg", "O3_e3nn"):
            return type(name, (StandIn,), {"__module__": module})
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError) as error:
            raise ConversionError(
                f"the model needs {module}.{name}, which is not there ({error}). It was saved with "
                "another version of mace-torch, or with a package that is not installed: "
                "install that one, or convert where the model was made"
            ) from error


pickle_module = types.SimpleNamespace(Unpickler=_Unpickler, load=pickle.load, __name__="pickle")
"""Given to ``torch.load`` in place of :mod:`pickle`."""


def restore_plain(model: torch.nn.Module) -> None:
    """Put plain e3nn modules in place of all stand-ins of a mace-torch model.

    Raises:
        ConversionError: A stand-in has a place or holds numbers that are not understood.
    """
    if not any(isinstance(module, StandIn) for module in model.modules()):
        return
    with default_dtype(next(model.parameters()).dtype):
        _restore_embedding_and_readouts(model)
        for interaction, product in zip(model.interactions, model.products, strict=True):
            _restore_interaction(interaction)
            _restore_product(product, interaction, model)
    left = [name for name, m in model.named_modules() if isinstance(m, StandIn)]
    if left:
        raise ConversionError(f"accelerated modules that are not understood: {left}. {_REMEDY}")


def _restore_embedding_and_readouts(model: torch.nn.Module) -> None:
    n_elements, n_heads = len(model.atomic_numbers), len(getattr(model, "heads", None) or [0])
    first = model.interactions[0].node_feats_irreps
    _replace_linear(model.node_embedding, "linear", f"{n_elements}x0e", first)
    readouts, layers = model.readouts, list(model.interactions)
    sources = layers[-1:] if len(readouts) == 1 else layers
    for readout, layer in zip(readouts, sources, strict=True):
        hidden, scalars = layer.hidden_irreps, f"{n_heads}x0e"
        if hasattr(readout, "linear"):
            _replace_linear(readout, "linear", hidden, scalars)
        else:
            _replace_linear(readout, "linear_1", hidden, readout.hidden_irreps)
            _replace_linear(readout, "linear_2", readout.hidden_irreps, scalars)


def _restore_interaction(block: torch.nn.Module) -> None:
    from e3nn import o3
    from mace.modules.irreps_tools import tp_out_irreps_with_instructions

    up = getattr(block, "edge_irreps", None) or block.node_feats_irreps
    middle, instructions = tp_out_irreps_with_instructions(
        o3.Irreps(up), block.edge_attrs_irreps, block.target_irreps
    )
    kind = BLOCKS.get(qualified_name(block))
    _replace_linear(block, "linear_up", block.node_feats_irreps, up)
    if kind == "NL":
        _restore_gated(block, o3.Irreps(up), middle)
    else:
        _replace_linear(block, "linear", middle, block.target_irreps)
        before, after = block.node_feats_irreps, block.hidden_irreps
        if kind in ("R", "D"):
            before = after = block.target_irreps
        attrs = block.node_attrs_irreps
        _replace(block, "skip_tp", lambda: o3.FullyConnectedTensorProduct(before, attrs, after))
    edge, weightless = block.edge_attrs_irreps, {"shared_weights": False, "internal_weights": False}
    _replace(
        block,
        "conv_tp",
        lambda: o3.TensorProduct(up, edge, middle, instructions=instructions, **weightless),
    )
    block.cueq_config = block.oeq_config = block.reshape.cueq_config = None
    vars(block).pop("conv_fusion", None)


def _restore_gated(block: torch.nn.Module, up: object, middle: object) -> None:
    n_scalars = sum(mul for mul, ir in block.node_feats_irreps if str(ir) == "0e")
    for name, irreps_in, out in (
        ("source_embedding", block.node_attrs_irreps, f"{n_scalars}x0e"),
        ("target_embedding", block.node_attrs_irreps, f"{n_scalars}x0e"),
        ("linear_1", middle, block.irreps_nonlin),
        ("linear_res", up, block.irreps_nonlin),
        ("linear_2", block.target_irreps, block.target_irreps),
        ("skip_tp", block.node_feats_irreps, block.hidden_irreps),
    ):
        _replace_linear(block, name, irreps_in, out)
    # Plain layers have the other order of components, and no weight depends on it.
    block.equivariant_nonlin._layout_is_ir_mul = False


def _restore_product(
    product: torch.nn.Module, interaction: torch.nn.Module, model: torch.nn.Module
) -> None:
    hidden = interaction.hidden_irreps
    _replace_linear(product, "linear", hidden, hidden)
    product.cueq_config = None
    fused = product.symmetric_contractions
    if not isinstance(fused, StandIn):
        return
    from e3nn import o3
    from mace.modules.symmetric_contraction import SymmetricContraction

    if getattr(model, "use_reduced_cg", False) or "projection" not in fused._buffers:
        raise ConversionError(f"accelerated contraction in the reduced basis. {_REMEDY}")
    plain = SymmetricContraction(
        irreps_in=o3.Irreps(interaction.target_irreps),
        irreps_out=o3.Irreps(hidden),
        correlation=fused.contraction_degree,
        num_elements=fused.weight.shape[0],
    )
    _split_contraction(fused.weight.detach(), plain)
    product.symmetric_contractions = plain


def _split_contraction(weight: torch.Tensor, plain: torch.nn.Module) -> None:
    """Deal ``[Z, sum of K, C]`` out to the contractions: per irrep, highest order first."""
    parts = [w for c in plain.contractions for w in (c.weights_max, *c.weights)]
    flags = [b for name, b in plain.named_buffers() if name.endswith("_zeroed")]
    if any(bool(flag) for flag in flags) or weight.shape[1] != sum(p.shape[1] for p in parts):
        raise ConversionError(f"accelerated contraction of unexpected shape. {_REMEDY}")
    for part, piece in zip(parts, weight.split([p.shape[1] for p in parts], dim=1), strict=True):
        part.data = piece.clone()


def _replace_linear(parent: torch.nn.Module, name: str, irreps_in: object, out: object) -> None:
    from e3nn import o3

    _replace(parent, name, lambda: o3.Linear(irreps_in, out))


def _replace(parent: torch.nn.Module, name: str, build: Callable[[], torch.nn.Module]) -> None:
    """Put a new module with the stand-in's weights in its place; leave real modules alone."""
    old = getattr(parent, name)
    if not isinstance(old, StandIn):
        return
    plain = build()
    numbers = dict(old.named_parameters())
    weight = numbers.pop("weight", torch.empty(0))
    wanted = math.prod(plain.weight.shape)
    if weight.numel() != wanted or any(p.numel() for p in numbers.values()):
        raise ConversionError(
            f"accelerated module {name} ({qualified_name(old)}): expected {wanted} weights, got "
            f"{weight.numel()} and {sorted(numbers)}. {_REMEDY}"
        )
    if wanted:
        plain.weight.data = weight.detach().reshape(plain.weight.shape).clone()
    setattr(parent, name, plain)
