"""What both estimators refuse, and each of them."""

import concurrent.futures

from rfrope import estimate_kernel, estimate_scores

KERNEL = {"kernel": "gaussian", "lags": [1.0], "n_samples": 8, "rng": 5}
SCORES = {"kernel": "gaussian", "lags": [1.0], "n_trials": 8, "rng": 5, "q": [1.0, 2.0], "k": [1.0, 2.0]}


def of_kernel(**changes):
    return lambda: estimate_kernel(**(KERNEL | changes))


def of_scores(**changes):
    return lambda: estimate_scores(**(SCORES | changes))


def both(error, words, **changes):
    return (of_kernel(**changes), error, words), (of_scores(**changes), error, words)


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
    *both(ValueError, "design is 'sobol?'; did you mean 'sobol'? Expected one of 'iid'", design="sobol?"),
    *both(ValueError, "rng is -1", rng=-1),
    *both(TypeError, "executor is 3", executor=3),
    *both(TypeError, "progress is 3", progress=3),
    (of_kernel(n_samples=1), ValueError, "n_samples is 1"),
    (of_scores(n_trials=1), ValueError, "n_trials is 1"),
    (of_kernel(n_samples=2.0), TypeError, "n_samples is 2.0"),
    (of_scores(n_trials=2.0), TypeError, "n_trials is 2.0"),
    (of_kernel(n_blocks=4), ValueError, "n_blocks is 4 but design is 'iid'"),
    (of_kernel(design="sobol"), ValueError, "n_blocks is None; expected the number of frequencies in one set"),
    (of_kernel(design="sobol", n_blocks=5), ValueError,
     "n_samples is 8; expected a multiple of n_blocks=5, at least 10"),
    (of_kernel(quantity="psi"), ValueError, "quantity is 'psi'"),
    of_executor(lambda task, spans: [], "executor returned 0 of 200000 draws"),
    of_executor(loses_one, ("executor returned ", " of 200000 draws")),
    (of_kernel(executor=Client()), TypeError,
     ("executor returned <Future", "pass client.get_executor() of a Dask client")),
    of_executor(reverses, "executor returned the chunk from draw"),  # another order would change the last bits
]  # fmt: skip
