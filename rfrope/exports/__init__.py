"""Ropes in the formats of other engines, which `rfrope.engines` describes.

`export` returns plain data, `write` writes a file, `rounding` returns the error, `names` and `records` list the
engines.
"""

from rfrope.exports.exporting import Rounding, export, names, records, rounding, write

__all__ = ["Rounding", "export", "names", "records", "rounding", "write"]
