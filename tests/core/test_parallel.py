"""Threads of rfrope's own: how many, in what order, and gone afterwards; forks, interrupts and workers of others."""

import asyncio
import contextvars
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from campaign import HANGS, interrupted, sparse
from conftest import rows

import rfrope
from rfrope._core import dispatch, parallel
from rfrope.rotation import turning


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert {one for one in threading.enumerate() if one.name != "tqdm_monitor"} <= before


# -- the limit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, np.int64(3), np.uint8(2), 10_000], ids=repr)
def test_the_limit_holds_inside_the_block_only(count):
    outside = parallel.allowed()
    with rfrope.threads(count) as given:
        assert given is None
        assert parallel.allowed() == count
        assert type(parallel.allowed()) is int
    assert parallel.allowed() == outside == parallel.available()


def test_limits_nest_and_survive_exceptions():
    with rfrope.threads(5):
        with pytest.raises(KeyError), rfrope.threads(2):
            {}[parallel.allowed()]
        assert parallel.allowed() == 5
        with pytest.raises(ValueError, match="count is 0"), rfrope.threads(0):
            pass
        assert parallel.allowed() == 5
        with rfrope.threads(9):
            assert parallel.allowed() == 9
        assert parallel.allowed() == 5
    assert parallel.allowed() == parallel.available()


def test_the_limit_is_that_of_one_thread_or_task():
    found = []
    with rfrope.threads(3):
        for context in (contextvars.Context(), contextvars.copy_context()):
            thread = threading.Thread(target=context.run, args=(lambda: found.append(parallel.allowed()),))
            thread.start()
            thread.join()
    assert found == [parallel.available(), 3]

    async def limited(count):
        with rfrope.threads(count):
            await asyncio.sleep(0.01)
            return parallel.allowed()

    async def both():
        return await asyncio.gather(limited(2), limited(4))

    assert asyncio.run(both()) == [2, 4]


# -- cores that this process may use -----------------------------------------------------------------------------------


def test_available_is_the_smaller_of_affinity_and_quota(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    for quota, wanted in ((4, 4), (0, 1), (2**20, 6)):
        monkeypatch.setattr(parallel, "_quota", lambda quota=quota: quota)
        assert parallel.available() == wanted
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS and Windows
    for count, wanted in ((5, 5), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert parallel.available() == wanted


@pytest.mark.parametrize(("name", "told", "files", "wanted"), rows("core/cgroups.json", "quotas"))
def test_quotas_of_cgroups(name, told, files, wanted, tmp_path):
    own = tmp_path / "own"
    if told is not None:
        own.write_text(told)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    assert parallel._quota.__wrapped__(tmp_path / "root", own) == wanted


# -- the ordered map ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_threads", "n_items"), [(1, 2), (2, 0), (2, 17), (50, 17)])
def test_results_come_in_the_order_of_the_items(n_threads, n_items):
    def slow_first(i):
        time.sleep(0.002 * (n_items - i))
        return i * i

    assert list(parallel.ordered_map(slow_first, range(n_items), n_threads)) == [i * i for i in range(n_items)]


@pytest.mark.parametrize("n_threads", [2, 4])
def test_results_that_nobody_takes_do_not_pile_up(n_threads):
    """A slow consumer holds the helpers back: memory is that of the threads, not that of the items."""
    begun, most = [], 0
    for taken, _ in enumerate(parallel.ordered_map(begun.append, range(60), n_threads), start=1):
        time.sleep(0.003)
        most = max(most, len(begun) - taken)
    assert taken == 60
    assert 0 < most <= 4 * n_threads


@pytest.mark.parametrize("run", [parallel.ordered_map, parallel.run_all])
def test_as_many_threads_as_asked_for_are_at_work(run):
    seen, gate = {}, threading.Barrier(3, timeout=HANGS)  # passed only where three are at work together

    def task(i):
        gate.wait()
        seen.setdefault(threading.current_thread(), []).append((i, parallel.allowed()))
        return i

    assert list(run(task, range(9), 3) or range(9)) == list(range(9))
    assert len(seen) == 3
    assert sorted(i for found in seen.values() for i, _ in found) == list(range(9))
    assert {limit for found in seen.values() for _, limit in found} == {1}, "a thread starts none of its own"
    assert parallel.allowed() == parallel.available()


@pytest.mark.parametrize("run", [lambda *given: list(parallel.ordered_map(*given)), parallel.run_all])
@pytest.mark.parametrize(
    ("n_threads", "bad", "kind"), [(1, 3, ValueError), (2, 0, SystemExit), (4, 11, KeyboardInterrupt)]
)
def test_an_exception_comes_out_and_ends_the_others(n_threads, bad, kind, run):
    done = []

    def task(i):
        time.sleep(0.001)
        if i == bad:
            raise kind(f"item {i}")
        done.append(i)

    with pytest.raises(kind, match=f"item {bad}"):
        run(task, range(1000), n_threads)
    assert len(done) < 100


def test_a_consumer_that_stops_early_ends_the_threads():
    done = []

    def task(i):
        time.sleep(0.002)
        done.append(i)
        return i

    results = parallel.ordered_map(task, range(1000), 3)
    assert [next(results), next(results)] == [0, 1]
    results.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("rfrope")]
    n = len(done)
    time.sleep(0.02)
    assert len(done) == n < 100


@pytest.mark.parametrize("most", [0, 2])
def test_without_more_threads_the_caller_works(most, monkeypatch):
    start, started = threading.Thread.start, []

    def failing(self):
        if len(started) == most:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", failing)
    assert list(parallel.ordered_map(lambda i: i, range(20), 5)) == list(range(20))
    done = []
    parallel.run_all(done.append, range(20), 5)
    assert sorted(done) == list(range(20))
    assert parallel.allowed() == parallel.available()
    assert not any(thread.is_alive() for thread in started)


def test_long_work_that_nobody_waits_for_is_left(monkeypatch):
    ended = threading.Event()

    def task(i):
        while i:
            parallel.raise_if_abandoned()
            time.sleep(0.001)
        ended.set()

    results = parallel.ordered_map(task, range(5), 2)
    next(results)
    assert ended.wait(HANGS)
    results.close()
    parallel.raise_if_abandoned()


# -- public functions, on many threads and in other processes ----------------------------------------------------------

JOB = """
import os, sys, threading
import numpy as np
import rfrope
from rfrope._core import dispatch
from rfrope.rotation import turning

x = np.random.default_rng(0).standard_normal((8, 1024, 128), dtype=np.float32)
p, w = np.arange(1024), rfrope.geometric(64)
q, lags = np.arange(8.0), np.arange(3.0)

def job():
    estimate = rfrope.estimate_scores(q, q[::-1], lags, "gaussian(scale=4)", n_trials=30_000, rng=0)
    many = rfrope.estimate_kernel(np.arange(300.0), "gaussian(scale=4)", n_samples=2**19, rng=0)  # by transforms
    return rfrope.rotate(x, p, w), estimate.mean.value, estimate.mean.stderr, estimate.variance.value, many.value

def right(found):
    turned = (x[..., :64] + 1j * x[..., 64:]) * np.exp(1j * p[:, None] * w)
    error = np.max(np.abs(found[0] - np.concatenate([turned.real, turned.imag], axis=-1)))
    away = np.abs(found[1] - rfrope.expected_score(q, q[::-1], lags, "gaussian(scale=4)"))
    return bool(error < 2e-6 and np.all(away[1:] < 6 * found[2][1:]) and away[0] < 1e-9)

def same(found, wanted):
    return all(np.array_equal(a, b) for a, b in zip(found, wanted))
"""


def run_script(text: str, folder: pathlib.Path, **environment: str) -> list[str]:
    """Words that a script prints, in a process of its own; it must end well and by itself."""
    script = folder / "script.py"
    script.write_text(JOB + text)
    known = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    options = {"capture_output": True, "text": True, "timeout": HANGS}
    run = subprocess.run([sys.executable, str(script)], env=known | environment, **options)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


@pytest.mark.campaign
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_fork_after_use(tmp_path):
    text = """
import multiprocessing, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of any fork beside any thread
wanted = job()
child = os.fork()
if child == 0:
    os._exit(0 if same(job(), wanted) else 1)
pool = multiprocessing.get_context("fork").Pool(2)
forked = pool.apply(job), pool.apply(job)
pool.close()
pool.join()
print(right(wanted), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), same(job(), wanted))
print(*(same(found, wanted) for found in forked))
"""
    assert run_script(text, tmp_path) == ["True", "0", "True", "True", "True"]


CHECK = """
wanted = job()
found = [dispatch.backend_function(one, "cpu") for one in dispatch.DISPATCHED.values() if "cpu" in one.keys]
found.append(turning.load_fast_path())
found = [one is not None for one in found]
print(right(wanted), same(job(), wanted), all(found), any(found), threading.active_count())
"""


WORK = rows("core/parallel.json", "work")
NUMBA = {
    "one thread": {"NUMBA_NUM_THREADS": "1"},
    "no compiler": {"NUMBA_DISABLE_JIT": "1"},
    "no cache": {"NUMBA_CACHE_DIR": os.path.join(os.devnull, "nowhere")},
}


@pytest.mark.campaign
@pytest.mark.parametrize("name", sparse(NUMBA, lambda name: name == "no compiler"))
def test_settings_of_numba(name, tmp_path):
    if dispatch.backend_function(turning.rotated, "cpu") is None:
        pytest.skip("compiled loops, whose settings these are, need Numba with its compiler on")
    compiled = str(name != "no compiler")
    assert run_script(CHECK, tmp_path, **NUMBA[name]) == ["True", "True", compiled, compiled, "1"]


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send an interrupt to one process")
@pytest.mark.parametrize("work", sparse(WORK, lambda work: "rotate" in work))
def test_an_interrupt_ends_long_work_and_all_its_threads(work, tmp_path):
    """The work would take days; how soon it ends is measured by `benchmarks.interrupts`."""
    script, short = tmp_path / "script.py", work.replace("2**31", "1000").replace("10**9", "1")
    script.write_text(
        f"""{JOB}
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been told to ignore it
big = np.ones((64, 1024, 128), np.float32)
{short}
if threading.active_count() != 1:
    sys.exit("threads are left behind")
try:
    with rfrope.threads(3):
        print("ready", flush=True)
        {work}
except KeyboardInterrupt:
    while threading.active_count() > 1:
        time.sleep(0.001)  # an interrupt may come while a helper is being started, too early to wait for it
    print("stopped", flush=True)
"""
    )
    assert interrupted([sys.executable, str(script)]) == (0, "stopped\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="a process there cannot interrupt itself so")
def test_an_interrupt_that_meets_a_destructor_is_raised():
    class Freed:
        """Something that is interrupted while it is freed, as a plan of finufft."""

        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            parallel.run_in_thread(lambda: Freed() and None)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_done_in_a_thread_comes_back_or_is_raised(monkeypatch):
    assert parallel.run_in_thread(threading.current_thread) is not threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        parallel.run_in_thread(lambda: 1 / 0)
    monkeypatch.setattr(threading, "_start_new_thread", lambda *args: (_ for _ in ()).throw(RuntimeError("no thread")))
    assert parallel.run_in_thread(threading.current_thread) is threading.main_thread()


# -- executors and bars of estimates -----------------------------------------------------------------------------------


def estimate(**options):
    return rfrope.estimate_kernel([-9.0, 0.0], "cauchy(scale=9)", n_samples=2**21, rng=1, **options)


def test_a_worker_that_dies_says_what_is_lost():
    def mapping(task, spans):
        yield task(spans[0])
        raise KeyError("the worker is gone")

    with pytest.raises(KeyError) as error:
        estimate(executor=mapping)
    assert re.fullmatch(r"The executor failed after 1 of \d+ chunks, which are lost.", error.value.__notes__[0])


def test_an_interrupt_ends_the_executor_at_once():
    """Not when somebody lets go of the exception: what works elsewhere hears of it, and so do helping threads."""
    ended = []

    def executor(task, spans):
        try:
            yield from map(task, spans)
        finally:
            ended.append(True)

    def progress(items, total):
        for number, item in enumerate(items):
            if number == 2:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt) as error:
        estimate(executor=executor, progress=progress)
    assert error.traceback  # its frames still hold what they held
    assert ended == [True]


@pytest.mark.parametrize("work", ["estimate", "scan"])
@pytest.mark.parametrize(
    ("progress", "terminal", "shows"),
    [(True, False, True), (None, True, True), (None, False, False), (False, True, False)],
)
def test_a_bar_shows_where_it_is_wanted(work, progress, terminal, shows, monkeypatch):
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(parallel, "_PATIENCE", 0.0)
    if work == "estimate":
        estimate(progress=progress)
        assert ("it/s" in stderr.getvalue()) == shows
        assert ("%|" in stderr.getvalue()) == shows  # of how many there are
    elif progress is None:  # scans of lags have no such argument
        assert rfrope.analysis.aliasing_distance([1.0, 0.618], 10**5, threshold=1.0 - 1e-12) is None
        assert ("it/s" in stderr.getvalue()) == shows


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_no_bar_without_stderr(stderr, monkeypatch, tmp_path):
    if stderr == "closed":
        stderr = (tmp_path / "stderr").open("w", encoding="utf-8")
        stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr)
    assert parallel.show_progress([1], 1, None) == [1]
