"""Executors of other projects: the same bits from any number of workers."""

import concurrent.futures
import contextlib
import multiprocessing

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
