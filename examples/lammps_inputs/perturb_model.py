"""Write models that differ a little from one: stand-ins for a committee of your own.

Usage: python3 perturb_model.py MODEL.mace OUT.mace ...

A real committee is trained on the same data from other random starts. This only changes the readout
weights at random, by 2 %, another way for each file.
"""

import sys

import numpy as np

from mace_stream import io

source, *targets = sys.argv[1:]
spec, tensors = io.load(source)
for seed, target in enumerate(targets, 1):
    rng = np.random.default_rng(seed)
    changed = {
        name: values * rng.normal(1.0, 0.02, values.shape) if "readouts" in name else values
        for name, values in tensors.items()
    }
    io.save(target, spec, changed)
