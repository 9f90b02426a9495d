"""Slow, obvious float64 NumPy truth: what every faster implementation is tested against."""

from mace_stream.reference.conv import conv
from mace_stream.reference.inference import ReferencePasses
from mace_stream.reference.model import directional_derivative, edge_gradient, node_energy

__all__ = ["ReferencePasses", "conv", "directional_derivative", "edge_gradient", "node_energy"]
