"""What both estimators refuse to show, to keep, and to take from an executor."""

import concurrent.futures
import itertools

from rfrope import estimate_kernel


def refused(words, error=ValueError, **options):
    given = {"kernel": "gaussian", "lags": [1.0], "n_samples": 2**21, "rng": 1} | options
    return lambda: estimate_kernel(**given), error, words


class Client:
    """``Client.map`` of Dask and ``Pool.map_async`` give futures at once."""

    def map(self, task, spans):
        return [concurrent.futures.Future() for _ in spans]


def after(change):
    """An executor whose results, of all chunks in order, are changed."""
    return lambda task, spans: change(list(map(task, spans)))


ROWS = [
    refused(("progress returned ", " of 2097152 draws"), progress=lambda items, total: itertools.islice(items, 1)),
    refused("progress is 'yes'; expected None, True, False, or a callable", TypeError, progress="yes"),
    refused("progress returned None; expected an iterable", TypeError, progress=lambda items, total: None),
    refused("executor returned 0 of 2097152 draws", executor=lambda task, spans: []),
    refused(("executor returned ", " of 2097152 draws"), executor=after(lambda results: results[:-1])),
    refused("executor returned the chunk from draw", executor=after(lambda results: results[::-1])),  # last bits differ
    refused(("the chunk from draw 0, after ", " of 2097152 draws; expected all"),
            executor=after(lambda results: [results[0], *results[:1], *results[2:]])),
    refused(("executor returned <Future", "pass client.get_executor() of a Dask client"), TypeError, executor=Client()),
    *(refused("executor returned", TypeError, executor=lambda *_, answer=answer: answer)
      for answer in (None, 3, [4], [(1, 2, 3)])),
]  # fmt: skip
