"""Write the small model files of tests/python/data. Run by hand when a format changes.

Needs: pip install 'mace-stream[convert]' cuequivariance cuequivariance-torch

``reduced.model`` has the reduced basis of couplings, which mace-torch makes where cuequivariance
is installed. ``cueq.model`` is a random model in cuEquivariance's layout, ``cueq.mace`` the
conversion of the same model before mace-torch changed its layout.
"""

from pathlib import Path

import torch

from mace_stream.convert import convert
from mace_stream.testing.twins import tiny

DATA = Path(__file__).parent / "data"
SMALL = {"hidden": "2x0e+2x1o", "radial_mlp": (4,), "mlp_irreps": "2x0e", "num_bessel": 4}


def main() -> None:
    """Write the files."""
    from mace.cli.convert_e3nn_cueq import run

    reduced = tiny("MP-0a medium", correlation=3, num_interactions=1, reduced_cg=True, **SMALL)
    torch.save(reduced, DATA / "reduced.model")
    model = tiny("OMAT-0 medium", heads=("a", "b"), **SMALL)
    torch.save(model, DATA / "cueq.model")
    convert(DATA / "cueq.model", DATA / "cueq.mace", say=print)
    torch.save(run(model, device="cpu", return_model=True), DATA / "cueq.model")


if __name__ == "__main__":
    main()
