"""Write docs/_data/support.inc: ``python tests/tables/make_support.py``, with PyTorch, JAX and Dask."""

import importlib
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parents[1] / one) for one in ("", "support")]
supported = importlib.import_module("supported")

if __name__ == "__main__":
    lines = [".. made by tests/tables/make_support.py", "", ".. list-table::", "   :header-rows: 1", ""]
    for row in (supported.HEADS, *map(supported.row, supported.names())):
        lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(row)]
    supported.TABLE.write_text("\n".join([*lines, ""]), encoding="utf-8")
