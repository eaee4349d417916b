"""The circle: cos and sin of angles in turns by polynomials, in loops that are vectorised as they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

# 1/(2 pi) as the sum of two floats
TURN_1, TURN_2 = 0.15915494309189535, -9.839338337591243e-18

# sin(2 pi r)/r and cos(2 pi r) as polynomials in r^2 for |r| <= 1/8: interpolation in the Chebyshev nodes of
# [0, 1/64] with 40 digits (mpmath); tests hold them against mpmath
_S0, _S1, _S2, _S3, _S4, _S5, _S6 = (
    6.283185307179586,
    -41.341702240399634,
    81.60524927594804,
    -76.70585970427454,
    42.058685020160894,
    -15.093804209987114,
    3.7808689593022957,
)
_C1, _C2, _C3, _C4, _C5, _C6, _C7 = (
    -19.739208802178716,
    64.93939402266795,
    -85.45681720652271,
    60.244641328867296,
    -26.426250908622137,
    7.903091687751697,
    -1.6968494702918826,
)
# The same for |r| <= 1/2, to 2.1e-11 and 9.4e-13: enough for float32 and narrower, and no quarter turns to select
_N0, _N1, _N2, _N3, _N4, _N5, _N6, _N7 = (
    6.2831853071363515,
    -41.341702218258554,
    81.60524741403077,
    -76.70580003163633,
    42.05775187640783,
    -15.086552699921647,
    3.7812823478863007,
    -0.6207369744067331,
)
_M0, _M1, _M2, _M3, _M4, _M5, _M6, _M7, _M8 = (
    0.9999999999990582,
    -19.739208801568317,
    64.93939395750503,
    -85.45681452640346,
    60.24458609245169,
    -26.425615424200487,
    7.899154746434429,
    -1.696862015952548,
    0.24374971577130713,
)


@intrinsic
def fma(typing, a, b, c):  # type: ignore[no-untyped-def]
    """Return a * b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


@njit(inline="always")
def cos_sin(high, low):  # type: ignore[no-untyped-def]
    """Cos and sin of 2 pi (high + low), |low| small or the sum arbitrary: quarter turns by selection."""
    quarters = np.rint(4.0 * (high + low))
    rest = (high - 0.25 * quarters) + low
    square = rest * rest
    sin = fma(square, _S6, _S5)
    sin = fma(square, sin, _S4)
    sin = fma(square, sin, _S3)
    sin = fma(square, sin, _S2)
    sin = fma(square, sin, _S1)
    sin = fma(square, sin, _S0) * rest
    cos = fma(square, _C7, _C6)
    cos = fma(square, cos, _C5)
    cos = fma(square, cos, _C4)
    cos = fma(square, cos, _C3)
    cos = fma(square, cos, _C2)
    cos = fma(square, cos, _C1)
    cos = fma(square, cos, 1.0)
    quadrant = quarters - 4.0 * np.rint(0.25 * quarters)  # -2, -1, 0, 1 or 2
    odd = abs(quadrant) == 1.0
    turned_cos = sin if odd else cos
    turned_sin = cos if odd else sin
    if quadrant == 1.0 or abs(quadrant) == 2.0:
        turned_cos = -turned_cos
    if quadrant <= -1.0 or quadrant == 2.0:
        turned_sin = -turned_sin
    return turned_cos, turned_sin


@njit(inline="always")
def cos_sin_narrow(high, low):  # type: ignore[no-untyped-def]
    """Cos and sin of 2 pi (high + low) for features narrower than float64."""
    rest = high + low
    rest -= np.rint(rest)
    square = rest * rest
    sin = fma(square, _N7, _N6)
    sin = fma(square, sin, _N5)
    sin = fma(square, sin, _N4)
    sin = fma(square, sin, _N3)
    sin = fma(square, sin, _N2)
    sin = fma(square, sin, _N1)
    sin = fma(square, sin, _N0) * rest
    cos = fma(square, _M8, _M7)
    cos = fma(square, cos, _M6)
    cos = fma(square, cos, _M5)
    cos = fma(square, cos, _M4)
    cos = fma(square, cos, _M3)
    cos = fma(square, cos, _M2)
    cos = fma(square, cos, _M1)
    return fma(square, cos, _M0), sin
