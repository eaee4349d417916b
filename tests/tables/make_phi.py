"""Write ``phi.npz``: Phi of every family over its range of parameters, by mpmath with 45 digits, rounded to float64.

Run it from the top of the repository, after a change of what follows: ``python tests/tables/make_phi.py``.
"""

import pathlib
import sys
from collections.abc import Iterator

import numpy as np

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

import problems  # noqa: E402

from rfrope import kernels  # noqa: E402

TINY, HUGE = (0.0, 1e-300, 1e-160, 1e-20, 1e-8, 1e-3), (1e3, 1e4, 1e6)
MIDDLE = tuple(np.geomspace(0.01, 100.0, 25).tolist())
EXTREME = (1e8, 1e20, 1e160, 1e300)
DIRECTION = (0.6, -0.64, 0.48)


def cases() -> Iterator[tuple[str, tuple[float, ...]]]:
    """Specifications and lags, in units of the first length."""
    plain, all_lags = TINY + MIDDLE, TINY + MIDDLE + HUGE + EXTREME
    for name in ("gaussian", "cauchy", "exponential"):
        yield from ((f"{name}(scale={s})", all_lags) for s in (1.0, 1e-3, 37.5, 1e6))
        yield f"{name}(scale=(3.0, 0.5, 8.0), ndim=3)", all_lags
    for nu in (0.05, 0.5, 0.8, 1.0, 1.5, 2.5, 7.3, 20.0, 33.3, 500.0):
        yield f"matern(nu={nu}, scale=2.5)", (*TINY, *np.geomspace(0.01, 40.0, 25).tolist())
    for alpha in (1e-3, 0.1, 0.5, 1.0, 2.7, 50.0, 1e3, 1e6):
        yield f"rational_quadratic(alpha={alpha!r}, scale=2.5)", all_lags
        yield f"rational_quadratic(alpha={alpha!r}, scale=(2.5, 40.0), ndim=2)", all_lags
    for exponent in (1e-3, 0.04, 0.3, 0.5, 1.0, 1.3, 1.9, 1.999999999, 2.0):
        yield f"power_exponential(exponent={exponent!r}, scale=2.5)", all_lags
        yield f"power_exponential(exponent={exponent!r}, scale=(2.5, 40.0), ndim=2)", all_lags
    for bandwidth in ("1.0", "0.02", "(0.7, 0.1)", "(0.7, 0.1, 2.0)"):
        axes = max(1, len(bandwidth.split(",")))
        yield f"sinc(bandwidth={bandwidth}, ndim={axes})", plain + HUGE
    for axes in (1, 2, 3, 4, 5, 6, 7, 8, 16):
        for name in ("ball(bandwidth", "shell(radius"):
            yield f"{name}=0.7, ndim={axes})", plain + HUGE
    for low, high in ((1e-4, 1.0), (0.05, 0.5), (0.5, 0.51), (1e-30, 1e30)):
        yield f"log_uniform(low={low!r}, high={high!r})", plain
    for scale in (1e-3, 0.05, 0.3, 0.7, 1.0, 3.0, 1e3):
        yield f"periodic(period=7.0, scale={scale!r})", all_lags
    yield "periodic(period=0.1, scale=0.7)", all_lags
    yield "spectral_mixture(weights=(0.75, 0.25), means=(0.01, 0.2), scales=(0.04, 0.02))", plain + HUGE
    yield "spectral_mixture(weights=(0.5, 0.5), means=(1.0, 30.0), scales=(1e-6, 1e-5))", all_lags
    yield "spectral_mixture(weights=(0.5, 0.5), means=((1.0, 2.0), 0.0), scales=(0.5, (3.0, 0.1)), ndim=2)", all_lags


def length(kernel: kernels.Kernel) -> float:
    """Value of the parameter that is a length, of the first axis; 1 over it where it is a frequency."""
    family = problems.FAMILIES[kernel.name]
    value = getattr(kernel, family.stretch)
    value = float(np.ravel(value[0] if family.stretch == "scales" else value)[0])
    return 1.0 / value if family.inverse or family.stretch == "scales" else value


def main() -> None:
    """Write the table."""
    texts, rows, lags, values = [], [], [], []
    for text, units in cases():
        kernel = kernels.parse(text)
        problem = problems.KernelProblem(kernel.name, kernel, (), ())
        problems.DIGITS = 700 if kernel.name in ("periodic", "spectral_mixture") else 45  # turns of lags up to 1e300
        for unit in units:
            lag = np.zeros(max(3, kernel.ndim))
            lag[:3] = unit * length(kernel) * np.array(DIRECTION)
            lag[min(kernel.ndim, 3) :] = 0.0
            if not np.all(np.isfinite(lag)):
                continue
            rows.append(len(texts))
            lags.append(lag[:3])
            values.append(float(problems.phi_reference(problem, lag[: kernel.ndim])))
        texts.append(text)
        print(f"{text}: {len(units)} lags")  # noqa: T201
    np.savez_compressed(
        HERE / "phi.npz",
        kernels=np.array(texts),
        row=np.array(rows, np.int16),
        lag=np.array(lags),
        phi=np.array(values),
    )


if __name__ == "__main__":
    main()
