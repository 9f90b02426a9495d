"""The inference path in JAX: the passes of :mod:`mace_stream.kernels` within one program."""
