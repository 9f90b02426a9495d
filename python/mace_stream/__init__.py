"""MACE machine-learned potentials in stock LAMMPS: ``pair_style mace/stream``."""

__version__ = "0.1.0"
