"""How soon an interrupt ends long work: seconds from the signal to the exception, with all threads gone."""

import os
import signal
import subprocess
import sys
import time

SCRIPT = """
import signal, threading, time
import numpy as np
import rfrope

signal.signal(signal.SIGINT, signal.default_int_handler)
q, k = np.random.default_rng(0).standard_normal((2, 128))
lags, x = np.arange(9.0), np.ones((64, 1024, 128), np.float32)
positions, frequencies = np.arange(1024), rfrope.geometric(64)
count = 8
{work}  # compiles
count = 2**31
try:
    print("ready", flush=True)
    {work}
except KeyboardInterrupt:
    while threading.active_count() > 1:
        time.sleep(1e-4)
    print(time.monotonic(), flush=True)
"""
WORKS = {
    "estimate_scores gaussian": "rfrope.estimate_scores(q, k, lags, 'gaussian(scale=8)', n_trials=count, rng=0)",
    "estimate_scores matern": "rfrope.estimate_scores(q, k, lags, 'matern(nu=0.3, scale=8)', n_trials=count, rng=0)",
    "estimate_kernel": "rfrope.estimate_kernel(lags, 'gaussian', n_samples=count, rng=0)",
    "rotate": "[rfrope.rotate(x, positions, frequencies, out=x) for _ in range(count)]",
}


class Interrupt:
    """The slowest of three, each in a process of its own."""

    params = tuple(WORKS)
    param_names = ("work",)
    unit = "seconds"

    def setup(self, work):
        if os.name != "posix":
            raise NotImplementedError("signals as on POSIX")

    def track_interrupt(self, work):
        return max(seconds(WORKS[work]) for _ in range(3))


def seconds(work):
    """Start the work, interrupt it a second later, and wait for the end."""
    command = [sys.executable, "-c", SCRIPT.format(work=work)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            process.stdout.readline()
            time.sleep(1.0)
            sent = time.monotonic()  # one clock for all processes
            process.send_signal(signal.SIGINT)
            return float(process.stdout.readline()) - sent
        finally:
            process.kill()
