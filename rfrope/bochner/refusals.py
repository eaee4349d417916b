"""Errors of functions that are not kernels, and of those of which it is not known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rfrope.bochner.witnesses import Witness


class NotPositiveDefiniteError(ValueError):
    """A function is not a kernel: its spectral density is negative somewhere.

    Attributes
    ----------
    frequency : float
        Frequency of the lowest density, in radians per unit of position (for more axes, the length of omega); with only
        a witness, the frequency that it examines.
    density : float
        The density there; -inf for a negative atom, NaN with only a witness.
    negative_mass : float
        Integral of the negative part of the density, as far as computed; with only a witness, a lower bound.
    witness : Witness or None
        Points and weights with a negative quadratic form. None for a density, which is negative at `frequency`.

    See Also
    --------
    bochner.Witness, bochner.nearest

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> try:
    ...     rfrope.bochner.from_function(lambda x: (np.abs(x) <= 1.0) * 1.0)
    ... except rfrope.bochner.NotPositiveDefiniteError as error:
    ...     print(error.witness.value < 0.0)
    True
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
        The open question.
    decides : str
        A way to decide it.

    See Also
    --------
    bochner.from_function, bochner.NotPositiveDefiniteError

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> try:
    ...     rfrope.bochner.from_function(np.cos)
    ... except rfrope.bochner.UndecidedError as error:
    ...     print("phi does not settle" in error.reason)
    True
    """

    def __init__(self, reason: str, decides: str = "") -> None:
        super().__init__(f"{reason}; {decides}" if decides else reason)
        self.reason, self.decides = reason, decides
