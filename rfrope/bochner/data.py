"""Kernels from autocorrelations, and from the series they are estimated from."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

import numpy as np

from rfrope._core import angles, array
from rfrope._core.arguments import LARGEST, axis_of, choice, finite, flag, whole
from rfrope._core.array import Array
from rfrope.bochner.piecewise import TO_SERIES, Pieces, build
from rfrope.bochner.refusals import NotPositiveDefiniteError, UndecidedError
from rfrope.bochner.tabulated import MEASURES, Certificate, Tabulated, compare, tabulate
from rfrope.bochner.witnesses import Witness
from rfrope.kernels import Kernel
from rfrope.kernels.parameters import positive

WINDOWS = {  # tapers, of the lag as a part of the first where they are 0
    "bartlett": lambda t: 1.0 - t,
    "parzen": lambda t: np.where(t <= 0.5, 1.0 - 6.0 * t**2 * (1.0 - t), 2.0 * (1.0 - t) ** 3),
}
_SINGULAR = 1e-12  # prediction error at which autocorrelations are those of spectral lines
_LARGEST_MATRIX = 1024  # values whose eigenvalues are all computed
_PANELS = {False: 1000, True: 10**5}  # at most, by whether rounding is allowed for
_REPRODUCED = 1e-13  # error of a table above which it is corrected
_SHARP = 0.9  # magnitude of a zero from which on it may be a line
_ROUNDED = 2.0**-48  # error of a polynomial, relative to the sum of the magnitudes of its terms


@array.select_device
def from_autocorrelation(values: Array, *, spacing: float = 1.0, ridge: float = 0.0) -> Kernel:
    """Return a kernel with given values at lags 0, spacing, 2 spacing, ...

    Its law has maximum entropy among those with these values: the spectrum of an autoregression (Burg 1967), on
    frequencies up to pi/spacing. Between the given lags Phi is band-limited interpolation; beyond, it follows the
    autoregression.

    Parameters
    ----------
    values : array_like, (n + 1,)
        Autocorrelations, or autocovariances, which are divided by the first one.
    spacing : float
        Distance between lags, in units of position.
    ridge : float
        White noise to add, as a fraction of the variance: values at lags other than 0 are divided by 1 + ridge.

    Returns
    -------
    Kernel
        With one axis, and ``.certificate``, whose `sup_error` is over the given lags.

    Raises
    ------
    NotPositiveDefiniteError
        If no law has these autocorrelations (Herglotz; Caratheodory and Toeplitz). Frequency, density and mass are
        those of the sequence continued by zeros.
    ValueError
        If there are fewer than two values, the first is not positive, a value is NaN, or the values are, to rounding,
        those of a few spectral lines, which have no density.
    TypeError
        If a value is not a real number.

    See Also
    --------
    bochner.from_series, bochner.from_function

    Examples
    --------
    >>> kernel = from_autocorrelation([1.0, 0.5, 0.25], spacing=4.0)
    >>> kernel.phi([0.0, 4.0, 8.0, 12.0]).round(6)
    array([1.   , 0.5  , 0.25 , 0.125])
    """
    spacing, ridge = positive("spacing", spacing), finite("ridge", ridge, minimum=0.0, maximum=LARGEST)
    r = _read_values("values", values)
    if r.ndim != 1 or r.size < 2:
        raise ValueError(f"values has shape {r.shape}; expected (n,) with two values or more")
    if not r[0] > 0.0:
        raise ValueError(f"values[0] is {float(r[0])!r}; expected the variance, a positive number")
    return _make_kernel(r / r[0], ridge, spacing, "from_autocorrelation", Certificate(0.0, 0.0, 0.0, 0, 1.0))


@array.select_device
def from_series(
    x: Array,
    *,
    axis: int = -1,
    spacing: float = 1.0,
    max_lag: int | None = None,
    window: str | None = None,
    remove_mean: bool = True,
    ridge: float = 0.0,
) -> Kernel:
    """Return a kernel from data: the autocorrelation along one axis, averaged over all others.

    Parameters
    ----------
    x : array_like
        Real numbers; an embedded text ``(tokens, features)`` with ``axis=0``, rows of an image, audio.
    axis : int
        Axis of the positions.
    spacing : float
        Distance between neighbours, in units of position.
    max_lag : int, optional
        Largest lag, in samples, at most n - 1. Default: ``10 log10(n)``.
    window : {None, "bartlett", "parzen"}
        Positive definite taper of the autocorrelations, 0 at lag max_lag + 1.
    remove_mean : bool
        Subtract the mean of each series.
    ridge : float
        See `from_autocorrelation`.

    Returns
    -------
    Kernel
        With one axis. Its certificate states the bias and the standard errors of the autocorrelations.

    Raises
    ------
    ValueError
        If a series is too short, constant or not finite, or an argument is out of range.
    TypeError
        If a value is not a real number.

    See Also
    --------
    bochner.from_autocorrelation, bochner.from_function

    Notes
    -----
    Autocovariances are sums over n - m products, divided by n: positive semi-definite, and biased by the factor
    1 - m/n. Removing an estimated mean adds a bias of about -1/n of the long-run variance. A window multiplies them by
    its value. Standard errors come from the spread between series, assumed independent, if there are eight or more;
    otherwise from Bartlett's formula (1946) for linear processes.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> kernel = from_series(np.cumsum(rng.normal(size=(64, 500)), axis=1)[:, 100:], max_lag=8)
    >>> bool(kernel.phi(1.0) > 0.9)
    True
    """
    from scipy.fft import irfft, next_fast_len, rfft

    spacing, ridge = positive("spacing", spacing), finite("ridge", ridge, minimum=0.0, maximum=LARGEST)
    remove_mean = flag("remove_mean", remove_mean)
    host = _read_values("x", x)
    axis = axis_of("x", axis, host.shape)
    n = host.shape[axis]
    if n < 3 or not host.size:
        raise ValueError(f"x has shape {host.shape}; expected three positions or more along axis {axis}")
    last = min(n - 1, math.ceil(10.0 * math.log10(n))) if max_lag is None else whole("max_lag", max_lag, 1, n - 1)
    taper = WINDOWS[choice("window", window, tuple(WINDOWS))] if window is not None else np.ones_like
    largest = float(np.max(np.abs(host))) or 1.0  # squares of very large or small values would leave floats' range
    series = np.moveaxis(host, axis, -1).reshape(-1, n) / largest
    if remove_mean:
        series = series - np.mean(series, axis=1, keepdims=True)
    size = next_fast_len(n + last, real=True)
    covariances = irfft(np.abs(rfft(series, size, axis=1)) ** 2, size, axis=1)[:, : last + 1] / n
    mean = np.mean(covariances, axis=0)
    if not mean[0] > 1e-28:
        raise ValueError("x is constant along the axis; expected series that vary")
    r = mean / mean[0]
    errors = _standard_errors(covariances, r, n)
    factors = taper(np.arange(last + 1.0) / (last + 1.0))
    bias = f"each lag m times (1 - m/{n})" + (f" and the {window} window" if window else "")
    bias += f"; a mean was removed from {series.shape[0]} series" if remove_mean else ""
    certificate = Certificate(0.0, 0.0, 0.0, 0, 1.0, bias=bias, standard_errors=tuple((errors * factors)[1:].tolist()))
    return _make_kernel(r * factors, ridge, spacing, "from_series", certificate)


def _read_values(name: str, value: Any) -> np.ndarray:
    host = angles.numbers_on_host(value, name).astype(np.float64)
    if not np.all(np.isfinite(host)):
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(host))[0])
        raise ValueError(f"{name}[{', '.join(map(str, at))}] is {host[at]}; expected finite numbers")
    return host


def _fit_autoregression(r: np.ndarray, spacing: float) -> tuple[np.ndarray, float]:
    """Coefficients (1, a_1, ..., a_n) of the autoregression with autocorrelations r, and its error (Durbin 1960)."""
    a, error = np.ones(1), 1.0
    for m in range(1, r.size):
        reflection = -float(np.dot(a, r[m:0:-1])) / error
        grown = np.append(a, 0.0)
        a = grown + reflection * grown[::-1]
        error *= (1.0 - reflection) * (1.0 + reflection)
        if error <= _SINGULAR:
            raise _refuse_degenerate(r, m, error, spacing)
    return a, error


def _refuse_degenerate(r: np.ndarray, step: int, error: float, spacing: float) -> ValueError:
    """Values that are not positive definite, or only just."""
    from scipy.linalg import eigh, toeplitz

    size = r.size if error > -_SINGULAR or r.size <= _LARGEST_MATRIX else step + 1
    values, vectors = eigh(toeplitz(r[:size]), subset_by_index=[0, 0])
    lowest, weights = float(values[0]), vectors[:, 0] / np.sum(np.abs(vectors[:, 0]))
    if lowest > -1e-10:
        return _refuse_lines(step, error)
    theta = math.pi * (np.arange(64 * r.size) + 0.5) / (64 * r.size)
    symbol = 1.0 + 2.0 * np.cos(np.outer(theta, np.arange(1, r.size))) @ r[1:]
    density, repair = spacing / (2.0 * math.pi) * symbol, -(lowest if size == r.size else float(np.min(symbol)))
    at, mass = int(np.argmin(density)), 2.0 * math.pi / spacing * float(np.mean(np.maximum(-density, 0.0)))
    return NotPositiveDefiniteError(
        f"values are not positive definite: the Toeplitz matrix of the first {size} has eigenvalue {lowest:.3g}; "
        f"continued by zeros their negative mass is {mass:.3g}; expected autocorrelations, such as sums over n - m "
        f"products divided by n (ridge={1.06 * repair + 1e-9:.2g} would repair these)",
        frequency=float(theta[at]) / spacing,
        density=float(density[at]),
        negative_mass=mass,
        witness=Witness(spacing * np.arange(size), weights, float(weights @ toeplitz(r[:size]) @ weights)),
    )


def _make_kernel(r: np.ndarray, ridge: float, spacing: float, origin: str, certificate: Certificate) -> Tabulated:
    """The law with density ``error / (2 pi abs(A(exp(i theta)))^2)`` of theta = omega spacing, of a ridge's values."""
    r[1:] /= 1.0 + ridge
    coefficients, error = _fit_autoregression(r, spacing)
    for lines in (False, True):
        with contextlib.suppress(UndecidedError):
            pieces = _spectrum(coefficients, error, lines=lines)
            pieces = _correct(pieces, r, error) if lines else pieces
            found = dataclasses.replace(certificate, mass=pieces.mass, tail_start=math.pi / spacing)
            law = Pieces(pieces.edges * (1.0 / spacing), pieces.series)
            kernel, _ = compare(tabulate(law, MEASURES[1], 0.0, origin, found), r, spacing * np.arange(r.size))
            if lines or kernel.certificate.sup_error <= _REPRODUCED:
                return kernel
    raise _refuse_lines(r.size - 1, error)


def _spectrum(coefficients: np.ndarray, error: float, *, lines: bool) -> Pieces:
    """The law of theta; with `lines`, which takes cubic time, an edge at each peak, where it is rounded."""
    edges, noise = math.pi * np.linspace(0.0, 1.0, 2 + coefficients.size // 8), 0.0
    if lines:
        noise = _ROUNDED * coefficients.size * float(np.sum(np.abs(coefficients)))
        zeros = np.roots(coefficients)
        peaks = np.abs(np.angle(zeros[np.abs(zeros) > _SHARP]))
        edges = np.union1d(edges, peaks[peaks < math.pi])

    def whitener(theta: np.ndarray) -> np.ndarray:
        return np.asarray(np.abs(np.polyval(coefficients[::-1], np.exp(-1j * theta))))

    def law(theta: np.ndarray) -> np.ndarray:
        return error / math.pi / whitener(theta) ** 2

    def level(centre: np.ndarray, half: np.ndarray) -> np.ndarray:
        return np.maximum(1e-14 / half, noise * law(centre) / whitener(centre))

    return build(law, edges, level, tolerance=1e-13, budget=_PANELS[lines])


def _correct(pieces: Pieces, r: np.ndarray, error: float) -> Pieces:
    """The density times ``1 + sum_m c_m cos(m theta)`` that has exactly the values r, where rounding spoiled them."""
    m = np.arange(r.size)
    found = pieces.fourier(np.arange(2.0 * r.size - 1.0))
    gram = 0.5 * (found[np.abs(m[:, None] - m)] + found[m[:, None] + m])
    series = np.linalg.lstsq(gram, r - found[: r.size], rcond=1e-13)[0]
    factor = 1.0 + np.cos(np.multiply.outer(pieces.nodes, m)) @ series
    if not np.min(factor) > 0.5:
        raise _refuse_lines(r.size - 1, error)
    return Pieces(pieces.edges, (pieces.values * factor) @ TO_SERIES)


def _refuse_lines(count: int, error: float) -> UndecidedError:
    return UndecidedError(
        f"values equal, up to rounding, those of at most {count} spectral lines (prediction error {error:.1e}), which "
        "have no density",
        "expected ridge=1e-9 or so, to add a little white noise, or fewer values",
    )


def _standard_errors(covariances: np.ndarray, r: np.ndarray, n: int) -> np.ndarray:
    count, size = covariances.shape
    if count >= 8:  # the ratio of two means, to first order
        residual = covariances - r * covariances[:, :1]
        return np.std(residual, axis=0, ddof=1) / (math.sqrt(count) * float(np.mean(covariances[:, 0])))
    full = np.concatenate([r[:0:-1], r])
    products, lag = np.correlate(full, full, "full")[full.size - 1 :], np.arange(size)
    variances = (1.0 + 2.0 * r**2) * products[0] + products[2 * lag] - 4.0 * r * products[lag]
    return np.sqrt(np.maximum(variances, 0.0) / (n * count))
