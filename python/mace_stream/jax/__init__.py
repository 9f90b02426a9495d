"""The convolution in JAX: the operators of :mod:`mace_stream.torch`, name for name."""

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"mace_stream.jax needs JAX ({error}); type: pip install 'mace-stream[jax]'"
    ) from error

from mace_stream.jax.conv import conv, plain_conv

__all__ = ["conv", "plain_conv"]
