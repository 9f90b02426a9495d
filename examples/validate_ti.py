"""Compare pair_style mace/stream with mace-torch on distorted titanium crystals.

    python examples/validate_ti.py                   against the package's own NumPy oracle
    python examples/validate_ti.py ti_hcp_meam.model against mace-torch, in float64

The second form needs mace-torch and the file that the shipped model was converted from.
"""

import sys
import tempfile
from pathlib import Path

import ase.build
import ase.io

import mace_stream

MODEL = Path(__file__).parent / "models" / "ti_hcp_meam.mace"


def distorted_crystals() -> list[ase.Atoms]:
    """Two cells of HCP titanium: one rattled, one sheared (which makes it triclinic)."""
    rattled = ase.build.bulk("Ti", "hcp", a=2.934, c=4.676)
    rattled.rattle(0.1, seed=1)
    sheared = rattled.copy()
    sheared.set_cell(sheared.cell[:] @ [[1, 0, 0], [0.02, 1.01, 0], [0.03, -0.02, 0.99]], True)
    return [rattled, sheared]


def main() -> int:
    """Write the structures, compare, and tell where the report lies."""
    reference = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as folder:
        structures = Path(folder) / "ti.xyz"
        ase.io.write(structures, distorted_crystals())
        report = mace_stream.validate(MODEL, [structures], reference=reference)
    for frame in report.frames:
        for row in frame.differences:
            print(f"{frame.name}  {row.quantity:14s} {row.max:.1e} {row.unit}  (< {row.bound:g})")
    text, plot = report.write(Path("validation"))
    print(f"{'PASS' if report.passed else 'FAIL'} against {report.reference}: {text}, {plot}")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
