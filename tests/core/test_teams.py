"""Threads of PyTorch's own: work on tensors is done by them, whole and once, and nothing is lost that it raises."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from campaign import HANGS, interrupted
from conftest import library

import rfrope
from rfrope._core import parallel, teams

torch = library("torch").module
START = threading.Thread.start

if teams._runtime() is None:
    pytest.skip("the OpenMP of this PyTorch does not answer to GNU's names", allow_module_level=True)


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """PyTorch has two threads, and a thread of ours cannot be started."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread was started"))
    yield
    torch.set_num_threads(before)


def test_all_work_is_done_once_by_threads_of_torch():
    seen, gate = {}, threading.Barrier(2, timeout=HANGS)  # passed only where two are at work together

    def task(i):
        if i < 2:
            gate.wait()
        seen.setdefault(threading.get_ident(), []).append((i, parallel.allowed()))

    with rfrope.threads(2):
        teams.share(task, range(50), 2, True)
        assert parallel.allowed() == 2
    assert len(seen) == 2
    assert sorted(i for found in seen.values() for i, _ in found) == list(range(50))
    assert {limit for found in seen.values() for _, limit in found} == {1}, "nothing there starts threads of its own"


def test_a_team_that_is_larger_leaves_the_rest_out():
    torch.set_num_threads(4)
    seen = set()
    teams.share(lambda i: seen.add(threading.get_ident()) or time.sleep(0.001), range(60), 2, True)
    assert len(seen) <= 2


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("by_caller", [False, True])
def test_what_a_member_raises_comes_out(kind, by_caller):
    caller, gate, done = threading.get_ident(), threading.Barrier(2, timeout=HANGS), []

    def task(i):
        if i < 2:
            gate.wait()
        if (threading.get_ident() == caller) == by_caller:
            raise kind("of a member")
        time.sleep(0.001)
        done.append(i)

    with pytest.raises(kind, match="of a member"):
        teams.share(task, range(1000), 2, True)
    assert len(done) < 500


@pytest.mark.parametrize("reason", ["no tensors", "more threads", "one thread", "a fork", "no runtime"])
def test_threads_of_ours_where_there_is_no_team(reason, monkeypatch):
    started, found = [], []
    monkeypatch.setattr(threading.Thread, "start", lambda self: started.append(self) or START(self))
    if reason == "a fork":
        monkeypatch.setattr(teams, "_FORKED", [1])
    if reason == "no runtime":
        monkeypatch.setattr(teams, "_runtime", lambda: None)
    torch.set_num_threads(1 if reason == "one thread" else 2)
    count = 3 if reason == "more threads" else 2
    teams.share(found.append, range(9), count, reason != "no tensors")
    assert sorted(found) == list(range(9))
    assert 0 < len(started) <= count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_tensors_are_turned_by_a_team_to_the_same_bits(dtype, monkeypatch):
    x = torch.randn(8, 4, 1024, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
    given = torch.arange(1024), torch.from_numpy(rfrope.geometric(64))
    sizes, runtime = [], teams._runtime()
    monkeypatch.setattr(teams, "_runtime", lambda: lambda *a: sizes.append(a[2]) or runtime(*a))
    with rfrope.threads(2):
        found = rfrope.rotate(x, *given)
    assert sizes == [2]
    with rfrope.threads(1):
        assert torch.equal(found, rfrope.rotate(x, *given))
    assert sizes == [2]


JOB = """
import os, signal, numpy as np, torch, rfrope
torch.set_num_threads(2)
big, p, w = torch.ones(64, 1024, 128), torch.arange(1024), torch.from_numpy(rfrope.geometric(64))
wanted = rfrope.rotate(big, p, w)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_of_a_fork_has_threads_of_its_own():
    """Those of PyTorch are missing there, and work for them would never end."""
    text = f"""{JOB}
import warnings
warnings.simplefilter("ignore")  # newer Pythons warn of any fork beside any thread
child = os.fork()
if child == 0:
    with rfrope.threads(2):
        os._exit(0 if np.array_equal(rfrope.rotate(big, p, w).numpy(), wanted.numpy()) else 1)  # torch's would wait
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.equal(rfrope.rotate(big, p, w), wanted))
"""
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=HANGS)
    assert (found.returncode, found.stdout, found.stderr) == (0, "0 True\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send an interrupt to one process")
def test_an_interrupt_comes_through():
    text = f"""{JOB}
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been told to ignore it
try:
    with rfrope.threads(2):
        print("ready", flush=True)
        while True:
            rfrope.rotate(big, p, w, out=big)
except KeyboardInterrupt:
    print(torch.equal(rfrope.rotate(torch.ones(64, 1024, 128), p, w), wanted), flush=True)
"""
    assert interrupted([sys.executable, "-c", text]) == (0, "True\n", "")


def test_numbers_of_numpy_do_not_wake_torch(monkeypatch):
    monkeypatch.setattr(teams, "_runtime", lambda: pytest.fail("a team was asked for"))
    monkeypatch.setattr(threading.Thread, "start", START)
    with rfrope.threads(2):
        rfrope.rotate(np.ones((64, 1024, 128), np.float32), np.arange(1024), rfrope.geometric(64))
