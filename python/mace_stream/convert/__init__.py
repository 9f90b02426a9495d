"""mace-torch model file -> ``.mace`` file. Needs the extra: ``pip install 'mace-stream[convert]'``.

from mace_stream.convert import convert

spec = convert("my.model", "my.mace")
"""

from mace_stream.convert.core import convert
from mace_stream.convert.ledger import ConversionError

__all__ = ["ConversionError", "convert"]
