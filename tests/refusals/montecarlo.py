"""What both estimators refuse, and each of them."""

import concurrent.futures

from rfrope import estimate_kernel

KERNEL = {"kernel": "gaussian", "lags": [1.0], "n_samples": 8, "rng": 5}


def of_kernel(**changes):
    return lambda: estimate_kernel(**(KERNEL | changes))


class Client:
    """``Client.map`` of Dask and ``Pool.map_async`` give futures at once."""

    def map(self, task, spans):
        return [concurrent.futures.Future() for _ in spans]


def of_executor(executor, words, **changes):
    return of_kernel(n_samples=200_000, executor=executor, **changes), ValueError, words


def loses_one(task, spans):
    return list(map(task, spans))[:-1]


def reverses(task, spans):
    return list(map(task, spans))[::-1]


ROWS = [
    of_executor(lambda task, spans: [], "executor returned 0 of 200000 draws"),
    of_executor(loses_one, ("executor returned ", " of 200000 draws")),
    (of_kernel(executor=Client()), TypeError,
     ("executor returned <Future", "pass client.get_executor() of a Dask client")),
    of_executor(reverses, "executor returned the chunk from draw"),  # another order would change the last bits
]  # fmt: skip
