"""The MACE model and its convolution in JAX: :mod:`mace_stream.torch`, name for name."""

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"mace_stream.jax needs JAX ({error}); type: pip install 'mace-stream[jax]'"
    ) from error

from mace_stream.jax.conv import conv, plain_conv
from mace_stream.jax.geometry import pad_graph
from mace_stream.jax.model import MACE
from mace_stream.jax.precision import double_precision

__all__ = ["MACE", "conv", "double_precision", "pad_graph", "plain_conv"]
