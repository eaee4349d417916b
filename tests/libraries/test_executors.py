"""Executors of other projects: the same bits from any number of workers."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
import signal
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
import pytest
from campaign import campaign
from packages import installed

import rfrope

LAGS = np.array([-9.0, -1.0, 0.0])


def estimate(executor=None):
    n = 2**20 + 1
    found = rfrope.estimate_kernel(LAGS, "cauchy(scale=9)", n_samples=n, rng=1, executor=executor)
    return found.value.tobytes() + found.stderr.tobytes()


@pytest.fixture(scope="module")
def serial():
    return estimate()


@contextlib.contextmanager
def spawned(count):
    with concurrent.futures.ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@contextlib.contextmanager
def of_loky(count):
    pool = installed("loky").ProcessPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, kill_workers=True)


@contextlib.contextmanager
def of_dask(count):
    distributed = installed("distributed")
    with (
        distributed.LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as workers,
        distributed.Client(workers) as client,
    ):
        yield client.get_executor()


ENGINES = {"spawned processes": spawned, "loky": of_loky, "dask.distributed": of_dask}


@campaign
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_any_number_of_workers_gives_the_same_bits(engine, count, serial):
    with ENGINES[engine](count) as executor:
        assert estimate(executor) == serial


@dataclass(frozen=True)
class Killed:
    """A task that ends its process, as a kill -9 does, at one span, the first time."""

    task: object
    marker: str
    at: int

    def __call__(self, span):
        if span == self.at and not os.path.exists(self.marker):
            pathlib.Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.task(span)


def killing(executor, marker, at):
    return lambda task, spans: executor.map(Killed(task, str(marker), at), spans)


@campaign
@pytest.mark.parametrize("engine", ["spawned processes", "loky"])
def test_a_pool_that_breaks_says_what_is_lost(engine, tmp_path):
    broken = BrokenProcessPool  # loky's is one too
    with ENGINES[engine](1) as pool, pytest.raises(broken) as error:
        estimate(killing(pool, tmp_path / "killed", 6 * 2**16))
    assert "chunks, which are lost" in error.value.__notes__[0]


@campaign
@pytest.mark.filterwarnings("ignore")  # of Dask, which says that a worker is gone
def test_dask_does_the_work_of_a_killed_worker_again(tmp_path, serial):
    with of_dask(2) as executor:
        assert estimate(killing(executor, tmp_path / "killed", 6 * 2**16)) == serial
    assert (tmp_path / "killed").exists()
