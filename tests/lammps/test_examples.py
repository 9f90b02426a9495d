"""Every input of examples/lammps_inputs runs, gives plausible physics and stands in the table.

The inputs run for a few steps in a copy of their folder, in the real ``lmp`` program.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
INPUTS = ROOT / "examples" / "lammps_inputs"
PAGE = ROOT / "docs" / "pair_mace_stream.md"
MODEL = ROOT / "examples" / "models" / "ti_hcp_meam.mace"

KCAL = 23.060549
"""kcal/mol per eV in LAMMPS' units real."""
CRYSTAL = -4.8308
"""eV per atom of HCP titanium at 0 K in this model."""
HEATED = 0.2
"""eV per atom that heat or a vacancy may add in these runs."""
ELASTIC = {"C11": 171, "C12": 116, "C13": 78, "C33": 175, "C44": 40, "C66": 27}
"""GPa, from examples/models/README.md."""

SHORT = {
    "in.committee": ("steps 10", "every 5"),
    "in.elastic": (),
    "in.hcp_ti": ("steps 4",),
    "in.heat_flux": ("steps 4", "sample 1", "points 4"),
    "in.npt": ("steps 6", "T 300"),
    "in.nve": ("steps 8",),
    "in.nvt": ("steps 8",),
    "in.real": ("steps 4",),
    "in.vacancy": ("steps 2",),
    "in.zbl": ("steps 2",),
}
"""Variables that make each input short."""


@dataclass(frozen=True)
class Table:
    """One block of thermo output: column names and numbers [n_rows, n_columns]."""

    names: list[str]
    rows: np.ndarray
    n_atoms: int

    def column(self, name: str) -> np.ndarray:
        return self.rows[:, self.names.index(name)]

    def potential(self) -> np.ndarray:
        return self.column("PotEng" if "PotEng" in self.names else "E_pair")


def copy_inputs(folder: Path) -> Path:
    """Copy the inputs, so that logs stay out of the repository, and put the model beside them."""
    if not MODEL.is_file():
        pytest.fail(f"the shipped model {MODEL.relative_to(ROOT)} is missing")
    (folder / "models").mkdir()
    (folder / "models" / MODEL.name).symlink_to(MODEL)
    return Path(shutil.copytree(INPUTS, folder / INPUTS.name))


def run_lmp(folder: Path, name: str, *variables: str) -> str:
    """Run ``lmp -in name`` in ``folder``; return what it printed, once it has succeeded."""
    lmp = str(Path(sys.executable).with_name("lmp"))
    settings = [word for setting in variables for word in ("-var", *setting.split())]
    done = subprocess.run(
        [lmp, "-in", name, "-nocite", *settings],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{name} failed:\n{done.stdout[-3000:]}"
    return done.stdout


def thermo_tables(text: str) -> list[Table]:
    """Every thermo block of a LAMMPS log."""
    block = r"^( +Step .*\n(?:.*\n)*?)Loop time of \S+ on .* with (\d+) atoms"
    tables = []
    for body, n_atoms in re.findall(block, text, re.MULTILINE):
        head, *lines = body.splitlines()
        names = head.split()
        rows = [words for line in lines if len(words := line.split()) == len(names)]
        numbers = [[float(word) for word in words] for words in rows if words[0].isdigit()]
        tables.append(Table(names, np.array(numbers), int(n_atoms)))
    return tables


def check_energies(text: str, unit: float = 1.0) -> None:
    """Every number is finite and the energy per atom is that of a titanium crystal."""
    tables = thermo_tables(text)
    assert tables, "no thermo output"
    for table in tables:
        assert np.isfinite(table.rows).all(), table
        energy = table.potential() / table.n_atoms / unit
        assert energy.min() > CRYSTAL - 1e-4, energy
        assert energy.max() < CRYSTAL + HEATED, energy


def printed(text: str, pattern: str) -> list[float]:
    """Numbers that an input prints: ``#`` in the pattern stands for one, a blank for several."""
    escaped = re.escape(pattern).replace(r"\ ", r"\s+").replace(r"\#", r"(-?[\d.]+(?:e[-+]\d+)?)")
    found = re.search(f"^\\s*{escaped}", text, re.MULTILINE)
    assert found, f"not printed: {pattern}"
    return [float(value) for value in found.groups()]


# ---- what each input must give ----


def check_elastic(text: str) -> None:
    for name, expected in ELASTIC.items():
        (value,) = printed(text, f"{name} #")
        assert value == pytest.approx(expected, rel=0.03), name
    c12, c66 = printed(text, "C12 #") + printed(text, "C66 #")
    (c11,) = printed(text, "C11 #")
    assert c66 == pytest.approx((c11 - c12) / 2, rel=0.01)  # holds in every hexagonal crystal


def check_vacancy(text: str) -> None:
    unrelaxed, relaxed = printed(text, "VACANCY in 96 sites: unrelaxed # eV, relaxed # eV")
    assert unrelaxed == pytest.approx(2.093, abs=0.01)
    assert 2.0 < relaxed < unrelaxed


def check_npt(text: str) -> None:
    _, a, c, ratio, _ = printed(text, "LATTICE T # K a # A c # A c/a # pressure # bar")
    assert a == pytest.approx(2.934, rel=0.02)
    assert c == pytest.approx(4.676, rel=0.02)
    assert ratio == pytest.approx(c / a, abs=1e-3)


def check_nve(text: str) -> None:
    table = thermo_tables(text)[0]
    drift = np.ptp(table.column("TotEng")) / table.n_atoms
    assert 0 < drift < 1e-4  # the integrator's own error within the first oscillation


def check_heat_flux(text: str) -> None:
    assert len(printed(text, "FLUX integral after # ps: # # # W/(m K)")) == 4
    flux = np.array([thermo_tables(text)[-1].column(f"v_j{axis}") for axis in "xyz"])
    assert 1e-5 < np.abs(flux).max() < 1.0


def check_committee(text: str) -> None:
    _, largest, mean = printed(text, "DEVIATION at # K: largest #, mean # eV/A")
    assert 1e-4 < mean < largest < 0.05
    assert "force deviation of the committee: 3 times" in text  # steps 0, 5, 10


def check_zbl(text: str) -> None:
    line = "ZBL distance # A: mace # eV, zbl # eV, sum # eV"
    rows = [printed(part, line) for part in re.findall(r"^ZBL distance.*", text, re.MULTILINE)]
    distance, mace, zbl, total = np.array(rows).T
    assert (np.diff(distance) < 0).all()
    assert (zbl[distance > 1.8] == 0).all()
    assert (np.diff(total) > 0).all()  # repulsive all the way
    assert mace[-1] < mace.max()  # and would not be without zbl
    assert total == pytest.approx(mace + zbl, abs=2e-3)


CHECKS = {
    "in.committee": check_committee,
    "in.elastic": check_elastic,
    "in.heat_flux": check_heat_flux,
    "in.npt": check_npt,
    "in.nve": check_nve,
    "in.vacancy": check_vacancy,
    "in.zbl": check_zbl,
}


@pytest.mark.parametrize("name", sorted(path.name for path in INPUTS.glob("in.*")))
def test_input_runs(name, tmp_path):
    assert name in SHORT, f"{name}: say in SHORT which variables make it short"
    text = run_lmp(copy_inputs(tmp_path), name, *SHORT[name])
    if name != "in.zbl":  # it drives atoms into each other
        check_energies(text, unit=KCAL if name == "in.real" else 1.0)
    CHECKS.get(name, str)(text)


# ---- recipes of the doc page ----

RECIPES = re.findall(r"^```lammps run\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("number", range(len(RECIPES)))
def test_recipe_of_the_doc_page_runs(number, tmp_path):
    folder = copy_inputs(tmp_path)
    (folder / "in.recipe").write_text(RECIPES[number], encoding="utf-8")
    tables = thermo_tables(run_lmp(folder, "in.recipe"))
    assert tables
    assert all(np.isfinite(table.rows).all() for table in tables)
    if "read_restart" in RECIPES[number]:
        check_continuation(*tables)


def check_continuation(before: Table, after: Table) -> None:
    """A continued run starts where the other ended (printed with 8 digits)."""
    assert after.rows[0, 0] == before.rows[-1, 0]
    assert after.column("TotEng")[0] == pytest.approx(before.column("TotEng")[-1], rel=1e-7)
    assert after.column("Temp")[0] == pytest.approx(before.column("Temp")[-1], rel=1e-7)


def test_the_recipes_are_seen():
    assert len(RECIPES) == 3


# ---- the table ----


def listed_inputs(readme: str) -> set[str]:
    """Inputs that have a row in the README's table."""
    return set(re.findall(r"^\| `(in\.\w+)` \|", readme, re.MULTILINE))


def test_every_input_is_in_the_table():
    readme = (INPUTS / "README.md").read_text(encoding="utf-8")
    assert listed_inputs(readme) == {path.name for path in INPUTS.glob("in.*")}


# ---- planted mistakes ----

LOG = """\
   Step          Temp          PotEng
         0   300           {energy}
Loop time of 1.0 on 1 procs for 0 steps with 2 atoms
"""


def test_a_good_log_passes():
    check_energies(LOG.format(energy=-9.66))
    check_energies(LOG.format(energy=-9.66 * KCAL), unit=KCAL)


@pytest.mark.parametrize("energy", ["nan", "inf", "-9.70", "-9.1", "-222.8"])
def test_a_wrong_energy_is_found(energy):
    with pytest.raises(AssertionError):
        check_energies(LOG.format(energy=energy))


def test_a_log_without_numbers_is_found():
    with pytest.raises(AssertionError, match="no thermo output"):
        check_energies("LAMMPS (22 Jul 2025)\n")


def test_an_unlisted_input_is_found():
    readme = (INPUTS / "README.md").read_text(encoding="utf-8")
    shorter = re.sub(r"^\| `in\.npt` .*\n", "", readme, flags=re.MULTILINE)
    assert listed_inputs(readme) - listed_inputs(shorter) == {"in.npt"}


def test_a_failing_input_is_found(tmp_path):
    folder = copy_inputs(tmp_path)
    (folder / "in.wrong").write_text(
        "units lj\natom_modify map yes\nread_data data.hcp_ti\npair_style mace/stream\nrun 0\n"
    )
    with pytest.raises(AssertionError, match=r"in\.wrong failed"):
        run_lmp(folder, "in.wrong")


@pytest.mark.parametrize(("name", "value"), [("C11", 180), ("C44", 42), ("C66", 30)])
def test_a_wrong_elastic_constant_is_found(name, value):
    good = "".join(f"  {n} {v:8.2f}\n" for n, v in {**ELASTIC, "C66": 27.3}.items())
    check_elastic(good)
    with pytest.raises(AssertionError):
        check_elastic(re.sub(rf"{name} .*", f"{name} {value:.2f}", good))
