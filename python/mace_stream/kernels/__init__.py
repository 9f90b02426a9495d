"""Compiled kernels of the convolution, for every framework. NumPy and the core library only."""
