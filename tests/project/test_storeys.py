"""The core stands alone: with the upper storey deleted, every module of it imports and its tests pass."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from campaign import HANGS, campaign

from tools.lint import ROOT, UPPER

ROOMS = ("bochner", "features", "frequencies", "moments", "scaling")  # the quick ones
NAMED = "|".join(UPPER)
NAMES_UPPER = re.compile(rf"import [^\n]*\b({NAMED})\b|\b({NAMED})\.[a-z_]|\bfrom_config\b")
IMPORT_ALL = """
import importlib, pathlib, sys, rfrope
for path in sorted(pathlib.Path("rfrope").rglob("*.py")):
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    try:
        name == "rfrope.__main__" or importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.startswith("rfrope"):
            raise
for name in {*rfrope.__all__} - {*sys.argv[1:]}:
    getattr(rfrope, name)
assert not {*sys.argv[1:]} & {name.split(".")[1] for name in sys.modules if name.startswith("rfrope.")}
print(rfrope.__file__)
"""


@pytest.fixture
def copy(tmp_path):
    """The source and its tests without the upper storey."""
    for path in ROOT.iterdir():
        if path.name in ("rfrope", "tests"):
            shutil.copytree(path, tmp_path / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    for name in UPPER:
        shutil.rmtree(tmp_path / "rfrope" / name)
        shutil.rmtree(tmp_path / "tests" / name)
    return tmp_path


def run(copy, *command):
    """Run Python in the copy; return what it printed."""
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, timeout=HANGS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@campaign  # `lint-imports` looks at the same in the suite's stead
def test_the_core_imports(copy):
    assert pathlib.Path(run(copy, "-c", IMPORT_ALL, *UPPER, "from_config").strip()).is_relative_to(copy)


@campaign
def test_tests_of_the_core_pass(copy):
    """Those that do not name the upper storey, by themselves or by a module of tests/support."""
    naming = [one.stem for one in (copy / "tests/support").glob("*.py") if NAMES_UPPER.search(one.read_text("utf-8"))]
    importing = re.compile(rf"^(from|import) ({'|'.join(naming)})\b", re.MULTILINE)
    kept = []
    for room in ROOMS:
        texts = {str(path): path.read_text("utf-8") for path in (copy / "tests" / room).glob("test_*.py")}
        alone = [path for path, text in texts.items() if not (NAMES_UPPER.search(text) or importing.search(text))]
        assert len(alone) * 2 >= len(texts)
        kept += alone
    assert " passed" in run(copy, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:rfrope", *kept)
