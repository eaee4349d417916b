"""A Rope in the formats of other engines: what each takes, what it cannot carry, and what rounds.

`export` gives plain data, `write` a file, `rounding` what is lost, `names` and `records` what there is.
"""

from rfrope.exports.engine import Engine, Rounding
from rfrope.exports.exporting import export, names, records, rounding, write

__all__ = ["Engine", "Rounding", "export", "names", "records", "rounding", "write"]
