"""What starting costs: the import, and the first call of a function with loops that are compiled, or were before."""

from benchmarks.process_peers import GAUSSIAN, INPUTS, KERNEL, MATERN, ROTATE, SCORES, Process, ours

CALLS = {
    "rotate": ROTATE,
    "estimate_scores gaussian": SCORES.format(kernel=GAUSSIAN, trials=1024),
    "estimate_scores matern": SCORES.format(kernel=MATERN, trials=1024),
    "estimate_kernel": KERNEL.format(lags=4096, samples=2**14),
}


def timeraw_import_rfrope():
    """Import time beyond NumPy's."""
    return "import rfrope", "import numpy"


timeraw_import_rfrope.repeat = 5


class FirstCall:
    """Seconds of the first call in a process, beyond ``import rfrope``."""

    params = (tuple(CALLS), ("empty", "filled"))
    param_names = ("call", "cache")
    unit = "seconds"

    def track_first_call(self, call, cache):
        entry = ours(Process(INPUTS, CALLS[call], cache=cache))
        return min(entry.call() for _ in range(1 if cache == "empty" else 3))
