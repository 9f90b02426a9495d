"""Rows of docs/field_reports.md that only a GPU can show."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms
from lammps_cells import mixed_cell
from lammps_support import Setup, evaluate, measure, opened, prepare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
BOUND = 1e-8
"""Between CPU and GPU in double precision, in eV, eV/Å, Å and LAMMPS' units of the virial."""
GPU = "device cuda precision double"
MOVE = ("velocity all create 300 4711", "timestep 0.0002", "fix move all nve")


@pytest.mark.parametrize("style", ["", "graphs no", "neighbors full", "radial exact"])
@pytest.mark.parametrize("place", [np.nan, 1e300])
def test_an_atom_at_no_place_stops_the_run(model, lmp, place, style):
    """No abort of the device: the next run works."""
    stale = "neigh_modify every 1000 delay 1000 check no"
    setup = Setup(mixed_cell(), model("plain"), f"{GPU} {style}", extra=(*MOVE, stale))
    prepare(lmp, setup)
    lmp.command("run 3")
    lmp.numpy.extract_atom("x")[3, 1] = place
    with pytest.raises(Exception, match=r"failed at step 4: atom \d+ is at \("):
        lmp.command("run 3 pre no")
    assert evaluate(setup).gap(evaluate(mixed_cell(), model("plain"), style="device cpu")) < BOUND


CHANGES = {
    "pairs": ("group part id 1:5", "neigh_modify exclude group part part"),
    "deleted": ("group part id 1:5", "neigh_modify exclude group part all"),
    "group": ("group part id 1:7", "atom_modify first part", "neigh_modify include part"),
}


@pytest.mark.parametrize("lines", CHANGES.values(), ids=CHANGES)
def test_exclusions_and_groups(model, lines):
    """R77, R78, R79: lists made on the device, or by LAMMPS where they have to be."""
    found = []
    for style in (GPU, "device cpu"):
        with opened() as lmp:
            prepare(lmp, Setup(mixed_cell(), model("plain"), style))
            lmp.commands_list(list(lines))
            result = measure(lmp)
            found.append((result.energy, *result.virial.ravel(), *result.forces[5:7].ravel()))
    assert np.abs(np.subtract(*found)).max() < BOUND
    assert abs(found[0][0] - evaluate(mixed_cell(), model("plain"), style=GPU).energy) > 1e-5


@pytest.mark.parametrize("style", ["", "neighbors full", "radial exact"])
def test_atoms_without_neighbors(model, style):
    """R45, R48: energies of their own, no force, finite stress."""
    atoms = Atoms("HO", [[1, 1, 1], [8, 8, 8]], cell=[15, 15, 15], pbc=True)
    usual = evaluate(atoms, model("plain"), style="device cpu")
    assert evaluate(atoms, model("plain"), style=f"{GPU} {style}").gap(usual) < BOUND


def test_a_run_from_the_cpu_goes_on_in_another_precision_with_a_warning(model, tmp_path):
    """R90, R28: `precision auto` is another one on this device."""
    setup = Setup(mixed_cell(), model("plain"), "device cpu", extra=MOVE)
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.commands_list(["run 1", f"write_restart {tmp_path}/r"])
    with opened(tmp_path / "log") as lmp:
        lmp.commands_list([f"read_restart {tmp_path}/r", "pair_style mace/stream device cuda"])
        lmp.command(f'pair_coeff * * "{setup.model.path}" {" ".join(setup.symbols())}')
        lmp.command("run 0")
    log = (tmp_path / "log").read_text()
    assert "was written with precision double, this run goes on with single" in log
