"""Verdicts on functions: a certificate of a kernel, a witness against one, or what would decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core.results import Result
from rfrope.bochner.piecewise import Sealed

_EVEN = 1e-9  # by how much steps between points may differ, relative to them
_CELLS = 2**20  # lags of a quadratic form that are held at once


@dataclass(frozen=True)
class Certificate(Result):
    """Accuracy with which a tabulated law realises a function or data, at stated lags.

    The kernel is positive definite by construction, a nonnegative table of its law. So ``sup_error`` says that the
    given function, at the lags that were compared, differs from a positive definite function by at most that. No number
    of values says anything about a function between them; ``bound`` holds there as well for functions that have no
    mass, and no detail, besides what was seen.

    Attributes
    ----------
    sup_error : float
        Largest difference between the kernel's Phi and the given one at the lags that were compared. For `from_density`
        an estimate of the integral of the density's error at the frequencies that were looked at.
    lag : float
        Where it is.
    reach : float
        The largest lag that was compared; infinite for `from_density`, where no lag is.
    n_lags : int
        How many.
    mass : float
        Mass of the law as computed, before it is made 1: atom, what was captured, and the fitted tail.
    negative_mass : float
        Removed by `nearest`; what is within the tolerance elsewhere.
    atom : float
        Probability of frequency 0, the limit of Phi at large lags.
    tail_start, tail_exponent, tail_mass : float
        Beyond ``tail_start`` (radians per unit of position) the density of the length of omega is a power law.
    bias : str
        What is known to differ from the truth, for estimates from data.
    standard_errors : tuple of float
        Standard errors of the autocorrelations at lags 1, 2, ..., for estimates from data.
    whole_lags : int
        Every whole lag 1, 2, ..., ``whole_lags`` is among those compared.
    unaccounted : float
        Spectral mass whose place is not known: by how much what was found differs from 1, and what the errors of the
        computation may amount to. Infinite, which is to say unknown, for a density that was normalised: where no total
        is given, nothing says whether there is mass that no frequency met.
    tolerance : float
        Negative mass that passes for rounding: what was asked for, or the errors of the given function if larger.
    n_frequencies : int
        For `from_density`, at how many frequencies the density was compared with the table: a feature that lies between
        two of them is not seen.
    """

    sup_error: float
    lag: float
    reach: float
    n_lags: int
    mass: float
    negative_mass: float = 0.0
    atom: float = 0.0
    tail_start: float = math.inf
    tail_exponent: float = math.inf
    tail_mass: float = 0.0
    bias: str = ""
    standard_errors: tuple[float, ...] = ()
    whole_lags: int = 0
    unaccounted: float = 0.0
    tolerance: float = 0.0
    n_frequencies: int = 0

    @property
    def bound(self) -> float:
        """Bound on the error of Phi, mass that is unaccounted for included: ``sup_error + 2 unaccounted``.

        Mass m that the table lacks changes Phi by m, and once more when the rest is divided by 1 - m. Infinite where
        ``unaccounted`` is.
        """
        return self.sup_error + 2.0 * self.unaccounted

    def __str__(self) -> str:
        if self.n_frequencies:
            seen = (
                f"density compared at {self.n_frequencies} frequencies: differences integrate to {self.sup_error:.2g}"
            )
        else:
            whole = f", all whole ones up to {self.whole_lags} among them" if self.whole_lags else ""
            seen = f"Phi compared at {self.n_lags} lags up to {self.reach:.6g}{whole}: within {self.sup_error:.2g}"
        if math.isinf(self.unaccounted):
            return f"{seen}; mass that was not met: unknown, as no total was given; bound: unknown"
        bias = f"; bias: {self.bias}" if self.bias else ""
        return f"{seen}; unaccounted mass {self.unaccounted:.2g}; bound {self.bound:.2g}{bias}"


@dataclass(frozen=True, eq=False, repr=False)
class Witness(Sealed, Result):
    """Points and weights whose quadratic form is negative: a proof that a function is not positive definite.

    ``sum_ij w_i w_j phi(x_i - x_j)`` is at least 0 for every positive definite phi. As the weights' magnitudes sum to
    1, no positive definite function comes closer than ``-value`` to phi at all the lags ``x_i - x_j``, and the negative
    spectral mass of phi is at least ``-value``.

    Attributes
    ----------
    points : ndarray, (n,) for one axis, (n, k) for k
    weights : ndarray, (n,)
        Real; the sum of their magnitudes is 1.
    value : float
        The quadratic form as computed.

    Examples
    --------
    >>> import numpy as np
    >>> from rfrope import bochner
    >>> def box(x):
    ...     return (np.abs(x) <= 1.0) * 1.0
    >>> try:
    ...     bochner.from_function(box)
    ... except bochner.NotPositiveDefiniteError as error:
    ...     x, w = error.witness.points, error.witness.weights
    >>> bool(w @ box(x[:, None] - x) @ w < -0.01)
    True
    """

    points: np.ndarray
    weights: np.ndarray
    value: float

    def __repr__(self) -> str:
        return f"<witness of {self.weights.size} points, quadratic form {self.value:.3g}>"

    def quadratic_form(self, phi: Callable[[np.ndarray], Any]) -> float:
        """``sum_ij w_i w_j phi(x_i - x_j)``, or of ``phi(length of x_i - x_j)`` for several axes.

        Parameters
        ----------
        phi : callable
            As for `from_function`.

        Returns
        -------
        float
        """
        steps = np.diff(self.points) if self.points.ndim == 1 else np.empty(0)
        if steps.size and np.ptp(steps) <= _EVEN * abs(steps[0]):  # a few values serve all pairs
            found = np.asarray(phi(np.abs(self.points - self.points[0])), dtype=np.float64)
            shared = np.correlate(self.weights, self.weights, "full")[self.weights.size - 1 :]
            return math.fsum((shared * found * np.where(self.points == self.points[0], 1.0, 2.0)).tolist())
        rows = max(1, _CELLS // self.weights.size)
        total = np.zeros(self.weights.size)
        for start in range(0, self.weights.size, rows):
            part = slice(start, start + rows)
            lags = self.points[part, None] - self.points
            lags = lags if lags.ndim == 2 else np.sqrt(np.sum(lags * lags, axis=-1))
            found = np.asarray(phi(lags.ravel()), dtype=np.float64).reshape(lags.shape)
            total[part] = self.weights[part] * np.sum(found * self.weights, axis=1)
        return math.fsum(total.tolist())


class NotPositiveDefiniteError(ValueError):
    """A function is not a kernel: its spectral density is negative somewhere.

    Attributes
    ----------
    frequency : float
        Where the density is lowest, radians per unit of position (the length of omega for more axes); where only the
        witness is known, the frequency that it looks at.
    density : float
        The density there; -inf for a negative atom, NaN where only the witness is known.
    negative_mass : float
        The integral of the negative part of the density, as far as it was computed; with a witness alone, at least
        that.
    witness : Witness or None
        Points and weights whose quadratic form is negative. None for a density, which is negative at `frequency`.
    """

    def __init__(
        self,
        message: str,
        *,
        frequency: float = math.nan,
        density: float = math.nan,
        negative_mass: float = math.nan,
        witness: Witness | None = None,
    ) -> None:
        super().__init__(message)
        self.frequency, self.density, self.negative_mass, self.witness = frequency, density, negative_mass, witness


class UndecidedError(ValueError):
    """Neither a kernel nor a witness against it was found.

    Attributes
    ----------
    reason : str
        What could not be settled.
    decides : str
        What would decide it.
    """

    def __init__(self, reason: str, decides: str = "") -> None:
        super().__init__(f"{reason}; {decides}" if decides else reason)
        self.reason, self.decides = reason, decides
