"""The inference path: the pipeline that runs the passes of :mod:`mace_stream.kernels.inference`."""
