"""Functions for arrays in the memory of the CPU: plans in Python, loops compiled by Numba, transforms of finufft."""

import os

from rfrope._core.arguments import show


def check() -> None:
    """Refuse a number of threads that Numba cannot be imported with; other text it passes over with a warning."""
    given = os.environ.get("NUMBA_NUM_THREADS", "")
    try:
        number = int(given)
    except ValueError:
        return
    if number < 1:
        raise ValueError(f"the environment variable NUMBA_NUM_THREADS is {show(given)}; expected 1 or more: unset it")
