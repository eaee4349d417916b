"""Write docs/support.inc: ``PYTHONPATH=tests python tests/tables/make_support.py``, with PyTorch, JAX, Dask and MLX."""

from __future__ import annotations

import pathlib

import support

PLACE = pathlib.Path(__file__).parents[2] / "docs" / "support.inc"


def main() -> None:
    lines = [".. made by tests/tables/make_support.py", "", ".. list-table::", "   :header-rows: 1", ""]
    for row in (support.HEADS, *support.table()):
        lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(row)]
    PLACE.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
