"""Print the oldest versions that pyproject.toml allows, as requirements: ``python -m tools.minimums [EXTRA ...]``."""

from __future__ import annotations

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
LEFT_OUT = ("nvidia-cuda-nvrtc-cu12",)  # 100 MB that compile CUDA texts, and run nothing of Python


def minimums(extras: tuple[str, ...]) -> list[str]:
    """Requirements ``name==version`` of the package and of some extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    found = {}
    for line in lines:
        match = re.match(r"([\w.-]+)(\[\w+\])?>=([\w.]+)", line)
        if match is None:
            raise ValueError(f"pyproject.toml requires {line!r}; expected a lower bound, as name>=1.2")
        if match[1] in LEFT_OUT:
            continue
        found[match[1]] = f"{match[1]}{match[2] or ''}=={match[3]}"
    return sorted(found.values())


if __name__ == "__main__":
    print("\n".join(minimums(tuple(sys.argv[1:]))))
