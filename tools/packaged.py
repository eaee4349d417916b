"""Hold a wheel and an sdist against the tree: ``python -m tools.packaged FOLDER``, which has one of each."""

from __future__ import annotations

import pathlib
import re
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).parents[1]
KINDS = (".py", ".pyi", ".cu", ".cuh", ".json", ".npz", ".txt", ".md", ".css", ".js", "py.typed")
WITHIN = ("rfrope", "tests", "docs", "benchmarks", "examples", "experiments", "tools")
ROOT_FILES = {
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "CITATION.cff",
    "conda/meta.yaml",
}
MADE = ("docs/_build/", "docs/reference/generated/", "docs/gallery/")  # by the build of the site


def faults(folder: pathlib.Path) -> list[str]:
    """What lacks in the wheel or the sdist of a folder, and what should not be there."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        (metadata,) = (archive.read(name).decode("utf-8") for name in held if name.endswith(".dist-info/METADATA"))
    with tarfile.open(sdist) as archive:
        unpacked = {name.partition("/")[2] for name in archive.getnames()}
    package = tree("rfrope")
    needed = {"rfrope/py.typed", "rfrope/_backends/cuda/rotation.cu", "rfrope/_backends/cuda/common.cuh"}
    needed |= {
        "rfrope/data/page/page.js",
        "rfrope/data/page/uPlot-LICENSE.txt",
        "rfrope/data/model_types.json",
        "rfrope/data/smollm2_heads.npz",
        "rfrope/data/conformance/run.txt",
    }
    found = [f"the tree lacks {name}" for name in sorted(needed - package)]
    found += [f"the wheel lacks {name}" for name in sorted(package - held)]
    others = {name for name in held - package if ".dist-info/" not in name}
    found += [f"the wheel has {name}" for name in sorted(others)]
    all_files = set().union(*map(tree, WITHIN)) | ROOT_FILES
    found += [f"the sdist lacks {name}" for name in sorted(all_files - unpacked)]
    links = re.findall(r"""\]\(([^)]+)\)|src(?:set)?="([^"]+)""", metadata)
    relative = sorted(one for one in map("".join, links) if not one.startswith(("https://", "#")))
    found += [f"the wheel's description has a link that leads nowhere: {one}" for one in relative]
    found += [] if "pip install" in metadata else ["the wheel's description is not the README"]
    found += [f"the sdist has {name}" for name in sorted(unpacked) if name.endswith((".pyc", ".nbi", ".nbc"))]
    return found


def tree(folder: str) -> set[str]:
    """Files of a folder of the tree that belong to the project."""
    found = (path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file())
    return {name for name in found if name.endswith(KINDS) and not name.startswith(MADE) and "__pycache__" not in name}


if __name__ == "__main__":
    found = faults(pathlib.Path(sys.argv[1]))
    print("\n".join(found) or "the wheel and the sdist hold what they should")
    sys.exit(bool(found))
