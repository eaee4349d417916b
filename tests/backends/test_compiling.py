"""How loops are compiled and kept on disk."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from campaign import HANGS, campaign, sparse

compiling = pytest.importorskip("rfrope._backends.cpu.compiling", reason="loops are compiled by Numba")
if compiling.config.DISABLE_JIT:
    pytest.skip("NUMBA_DISABLE_JIT turns Numba's compiler off", allow_module_level=True)


def test_loops_release_the_interpreter_and_divide_like_numpy():
    divide = compiling.compiled(eval("lambda x, y: x / y"))  # a function without a file has no place for a cache
    assert divide(1.0, 0.0) == np.inf
    assert divide.targetoptions["nogil"]


ADDED = """
import os, sys
os.environ["NUMBA_CACHE_DIR"] = os.path.dirname(__file__)
from rfrope._backends.cpu import compiling
{before}
@compiling.compiled
def add(x, y):
    return x + y
if sys.argv[1:] == ["examine"]:
    print(*compiling.examined())
    sys.exit()
print(add(1, 2), sum(add.stats.cache_hits.values()), sum(add.stats.cache_misses.values()), *compiling.FAILURES)
"""


def program(folder: pathlib.Path, before: str = "") -> pathlib.Path:
    """Write a program that adds 1 and 2 by a compiled function, and keeps that beside itself."""
    path = folder / "added.py"
    path.write_text(ADDED.format(before=before))
    return path


def outcome(path: pathlib.Path, *arguments: str) -> list[str]:
    """Run it; return the sum, how often code was found on disk and how often it was not, and failures."""
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANGS).stdout.split(maxsplit=3)


COMPILED, FOUND = ["3", "0", "1"], ["3", "1", "0"]


@campaign
def test_an_edit_of_any_source_makes_it_stale(tmp_path):
    """Loops call each other across files, and Numba's own stamp is of one file alone."""
    path = program(tmp_path, "compiling._stamp = lambda: sys.argv[1]")
    assert [outcome(path, stamp) for stamp in "aabb"] == [COMPILED, FOUND] * 2


def test_the_stamp_is_of_all_sources(monkeypatch, tmp_path):
    stamps = set()
    cpu = tmp_path / "cpu"
    cpu.mkdir()
    monkeypatch.setattr(compiling, "__file__", str(cpu / "compiling.py"))
    for path in (cpu / "compiling.py", cpu / "circle.py", tmp_path / "laws.py", tmp_path / "laws.py"):
        path.write_text(path.read_text() + "more\n" if path.exists() else "some\n")
        stamps.add(compiling._stamp.__wrapped__())
    assert len(stamps) == 4


@campaign
@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_half_a_file_costs_a_compilation_and_nothing_else(tmp_path, ending):
    path = program(tmp_path)
    assert outcome(path) == COMPILED
    (kept,) = tmp_path.rglob(f"*{ending}")
    kept.write_bytes(kept.read_bytes()[: len(kept.read_bytes()) // 2])
    *counted, failure = outcome(path)
    assert counted == COMPILED
    assert "Error" in failure
    assert outcome(path) == FOUND


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, resource.RLIM_INFINITY))
"""


@campaign
@pytest.mark.parametrize("bytes_left", sparse([0, 100, 4000], lambda left: left == 100))
def test_a_full_disk_costs_a_compilation_and_nothing_else(tmp_path, bytes_left):
    """A limit on the size of files stands for it: every write beyond is an OSError."""
    pytest.importorskip("resource", reason="the limit is one of POSIX")
    path = program(tmp_path, FULL.format(bytes=bytes_left))
    for _ in range(2):
        *counted, failure = outcome(path)
        assert counted == COMPILED
        assert failure.strip() == "OSError: [Errno 27] File too large"
    assert "OSError:" in outcome(path, "examine")


def test_processes_that_compile_at_once_never_load_what_is_for_other_types(tmp_path):
    first, second, later = (compiling._Files(str(tmp_path), "loop", "source") for _ in range(3))
    second._load_index = dict  # it has looked before
    written = first._save_data

    def meanwhile(name, data):
        second.save("float64", "code for float64")
        written(name, data)

    first._save_data = meanwhile
    first.save("float32", "code for float32")
    for kind in ("float32", "float64"):
        assert later.load(kind) in (None, f"code for {kind}")
    assert later.load("float32") == "code for float32"


def test_code_of_before_an_edit_is_never_loaded(tmp_path):
    compiling._Files(str(tmp_path), "loop", "before").save("float32", "old code")
    (old,) = tmp_path.glob("*.nbc")
    edited = compiling._Files(str(tmp_path), "loop", "after")
    assert edited.load("float32") is None
    edited._save_data = lambda *_: None  # a process that has not come to it yet
    edited.save("float32", "new code")
    assert compiling._Files(str(tmp_path), "loop", "after").load("float32") is None
    assert not old.exists()  # so that nothing piles up
