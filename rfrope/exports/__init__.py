"""A Rope in the formats of other engines; what each takes stands in `rfrope.engines`.

`export` gives plain data, `write` a file, `rounding` the error, `names` and `records` the engines.
"""

from rfrope.exports.exporting import Rounding, export, names, records, rounding, write

__all__ = ["Rounding", "export", "names", "records", "rounding", "write"]
