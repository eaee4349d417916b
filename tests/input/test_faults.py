"""Faults of the machine: writers that are killed or meet each other, full disks, read-only folders, forks, threads."""

import concurrent.futures
import errno
import os
import random
import resource
import signal
import sys
import time
from functools import partial

import numpy as np
import pytest
from campaign import HANGS, campaign

import rfrope

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="it forks, as on Linux"),
    pytest.mark.filterwarnings("ignore:os.fork\\(\\) was called:RuntimeWarning"),  # JAX, where another test imported it
]
ROPES = [rfrope.Rope(np.linspace(0.1, 0.7, 2**14) + number, context=64 + number) for number in range(2)]
NOBODY = 65534  # the user of that name


def forked(work):
    """Process number of a child that works, and then ends."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except OSError as error:
        code = error.errno or 1
    finally:
        os._exit(code)


def code_of(process):
    """Exit code of a child, minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def whole(path):
    """The one of two Ropes that a file holds; it must hold one of them."""
    loaded = rfrope.load(path)
    (number,) = [i for i, rope in enumerate(ROPES) if np.array_equal(loaded.frequencies, rope.frequencies)]
    assert loaded.context == ROPES[number].context
    return number


def saved_forever(path, number, begun):
    os.write(begun, b".")
    while True:
        number = 1 - number
        rfrope.save(path, ROPES[number], overwrite=True)


@pytest.mark.campaign
@pytest.mark.parametrize("suffix", ["npz", pytest.param("safetensors", marks=campaign)])
def test_kills_during_save_lose_nothing(tmp_path, suffix):
    if suffix == "safetensors":
        pytest.importorskip("safetensors", reason="safetensors is not installed")
    path, chosen = tmp_path / f"rope.{suffix}", random.Random(20)
    rfrope.save(path, ROPES[0])
    found, (ready, begun) = [0], os.pipe()
    while len(found) <= 20 or len(set(found)) < 2:  # until they were writing, on a busy machine, too
        writer = forked(lambda: saved_forever(path, found[-1], begun))
        os.read(ready, 1)
        time.sleep(chosen.uniform(0.0, 0.003 * len(found)))
        os.kill(writer, signal.SIGKILL)
        assert code_of(writer) == -signal.SIGKILL
        found.append(whole(path))
    os.close(ready)
    os.close(begun)
    left = [name for name in os.listdir(tmp_path) if name != path.name]
    for name in left:
        assert name.startswith(".rfrope-")
        os.utime(tmp_path / name, (1e9, 1e9))
    rfrope.save(path, ROPES[1], overwrite=True)
    assert os.listdir(tmp_path) == [path.name]


def failed_save(path, limit):
    """Error number of a child that saves another Rope under a limit, and leaves the file as it was."""

    def work():
        limit()
        rfrope.save(path, ROPES[1], overwrite=True)

    code = code_of(forked(work))
    path.parent.chmod(0o755)
    assert whole(path) == 0
    assert os.listdir(path.parent) == [path.name]
    return code


@pytest.mark.parametrize("size", [0, 100, 2**14, 2**17])
def test_a_limit_of_sizes_of_files(tmp_path, size):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    rfrope.save(tmp_path / "rope.npz", ROPES[0])
    assert failed_save(tmp_path / "rope.npz", limit) == errno.EFBIG


def test_a_read_only_folder(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    rfrope.save(folder / "rope.npz", ROPES[0])
    folder.chmod(0o555)
    for place in folder.parents[:3]:  # pytest's own, which nobody else may enter
        place.chmod(0o755)

    def limit():
        if os.geteuid() == 0:  # whom no mode holds back
            os.setresuid(NOBODY, NOBODY, NOBODY)

    assert failed_save(folder / "rope.npz", limit) == errno.EACCES


@campaign
@pytest.mark.parametrize("overwrite", [True, False])
def test_two_writers(tmp_path, overwrite):
    """The last one stays, whole; where nothing may be overwritten, exactly one of them gets the name."""
    for turn in range(10):
        path = tmp_path / f"{turn}.npz"
        writers = [forked(partial(rfrope.save, path, rope, overwrite=overwrite)) for rope in ROPES]
        codes = sorted(map(code_of, writers))
        assert codes in ([[0, 0]] if overwrite else [[0, 1], [0, errno.EEXIST]])
        whole(path)
    assert len(os.listdir(tmp_path)) == 10


# -- forks, processes, threads -----------------------------------------------------------------------------------------


def results(_=None):
    """Bits of an estimate, of scores and of a rotation that each work on several threads."""
    with rfrope.threads(2):
        x = np.random.default_rng(0).standard_normal((40, 1024, 64)).astype(np.float32)
        turned = rfrope.rotate(x, np.arange(1024), rfrope.geometric(32))
        q, k = np.random.default_rng(1).standard_normal((2, 16))
        scores = rfrope.estimate_scores(q, k, np.arange(4.0), "matern(nu=1.5)", n_trials=2**12, rng=3)
        kernel = rfrope.estimate_kernel(np.arange(4.0), "gaussian", n_samples=2**17, rng=3)
    return turned[::7, ::91].tobytes() + scores.variance.value.tobytes() + kernel.value.tobytes()


@campaign
def test_eight_threads_give_the_same_bits():
    expected = results()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(results, range(16), timeout=HANGS)) == [expected] * 16


@campaign
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_threads_work():
    """A child that was forked in the middle of other threads' work can work itself."""
    expected = results()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        working = [pool.submit(results) for _ in range(6)]
        children = []
        for _ in range(3):
            time.sleep(0.02)
            children.append(forked(lambda: os._exit(0 if results() == expected else 2)))
        assert [code_of(child) for child in children] == [0, 0, 0]
        assert [one.result(HANGS) for one in working] == [expected] * 6
