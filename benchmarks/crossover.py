"""Where a sum over lags is cheaper as a transform: ``python -m benchmarks.crossover`` measures, on one thread.

The first part prints the constants that `rfrope._backends.cpu.sums` chooses by, in nanoseconds; the second, for some
numbers of frequencies and lags, what its formula expects and what direct loop and transform take.
"""

import math
import time

import numpy as np

try:
    from rfrope._backends import transforms
    from rfrope._backends.cpu import sums
except ImportError:  # asv imports every file of this folder, for versions too that have no such module
    sums = transforms = None

CASES = (
    (1, 64, 2**12),
    (1, 64, 2**17),
    (1, 512, 64),
    (1, 512, 2**12),
    (1, 2**14, 16),
    (1, 2**14, 64),
    (1, 2**16, 2**12),
    (2, 512, 256),
    (2, 2**14, 64),
    (2, 2**14, 2**12),
    (3, 2**10, 512),
    (3, 2**13, 512),
    (3, 2**13, 2**12),
)


def fastest(task, repeats=5):
    """Least of some times, in nanoseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    return 1e9 * min(times)


def problem(axes, count, n_lags, kind):
    """Frequencies of a Gaussian law as turns, and lags on a grid or scattered over its box."""
    rng = np.random.default_rng(0)
    turned = sums._Turned.from_frequencies(rng.normal(size=(count, axes)))
    side = max(1, round(n_lags ** (1.0 / axes)))
    lags = np.stack(np.meshgrid(*[np.arange(float(side))] * axes, indexing="ij"), axis=-1).reshape(-1, axes)
    if kind == "scattered":
        lags = lags + rng.uniform(0.0, 0.9, size=lags.shape)
    return turned, lags


def transform(turned, lags, kind):
    """Return the plan and the time of the transform, whatever the direct sum would cost."""
    grid = transforms.grid_of(lags) if kind == "grid" else None
    if grid:
        plan = transforms.plan_on_grid(turned.omega, len(lags), grid)
    else:
        plan = transforms.plan_scattered(turned.omega, lags)
    return (None, math.nan) if plan is None else (plan, fastest(lambda: sums._transformed(turned, lags, plan)))


def constants():
    """Print the constants: slopes and intercept of times of type 1 on grids, and of the loop."""
    print(f"{'axes':>4} {'direct ns':>10} {'ns a call':>10} {'ns a point':>11} {'ns a cell':>10}")
    for axes, points, modes in ((1, 2**17, 2**18), (2, 2**15, 2**16), (3, 2**13, 2**15)):
        turned, lags = problem(axes, 2**12, 2**10, "grid")
        direct = fastest(lambda turned=turned, lags=lags: sums._direct_moments(turned, lags, False))
        direct /= turned.count * len(lags)
        _, call = transform(*problem(axes, 16, 16, "grid"), "grid")
        _, many_points = transform(*problem(axes, points, 64, "grid"), "grid")
        turned, lags = problem(axes, 16, modes, "grid")
        plan, many_modes = transform(turned, lags, "grid")
        cells = math.prod(transforms.finer(axis.count) for axis in plan.grid)
        print(
            f"{axes:4d} {direct:10.2f} {call:10.0f} {(many_points - call) / points:11.1f} "
            f"{(many_modes - call) / cells:10.1f}"
        )


def table():
    """Print expected and measured times; the right choice is the smaller measured one."""
    print(f"\n{'axes':>4} {'frequencies':>11} {'lags':>7} {'kind':>10}   expected ms   measured ms (direct, transform)")
    for kind in ("grid", "scattered"):
        for axes, count, n_lags in CASES:
            turned, lags = problem(axes, count, n_lags, kind)
            expected = turned.count * len(lags) * transforms.pair_cost(axes)
            direct = fastest(lambda turned=turned, lags=lags: sums._direct_sums(turned, lags), 3)
            plan, took = transform(turned, lags, kind)
            planned = math.nan if plan is None else plan.cost
            mistaken = "" if math.isnan(planned) or (expected < planned) == (direct < took) else "  mistaken"
            print(
                f"{axes:4d} {count:11d} {len(lags):7d} {kind:>10}   {expected / 1e6:7.2f} {planned / 1e6:7.2f}   "
                f"{direct / 1e6:7.2f} {took / 1e6:7.2f}{mistaken}"
            )


if __name__ == "__main__":
    constants()
    table()
