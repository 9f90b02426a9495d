"""The MACE model in torch."""

from mace_stream.torch.conv import conv
from mace_stream.torch.e3nn_layout import E3nnConv
from mace_stream.torch.model import MACE

__all__ = ["MACE", "E3nnConv", "conv"]
