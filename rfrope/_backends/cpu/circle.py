"""The circle: cos and sin by polynomials, in loops that are vectorised as they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from rfrope._backends.cpu.compiling import inlined

# 1/(2 pi) as the sum of two floats
TURN_1, TURN_2 = 0.15915494309189535, -9.839338337591243e-18

# sin(pi r/2)/r and cos(pi r/2) as polynomials in r^2 for |r| <= 1/2: interpolation in the Chebyshev nodes of [0, 1/4]
# with 40 digits (mpmath); error 1.3e-16; tests hold them against mpmath
SIN = (
    1.5707963267948966, -0.6459640975062443, 0.07969262624604301, -0.004681754132340976, 0.0001604411507421909,
    -3.59864335298231e-06, 5.633933781537854e-08,
)  # fmt: skip
COS = (
    1.0, -1.2337005501361697, 0.2536695079010467, -0.02086348076331121, 0.0009192602741831558,
    -2.520203677046026e-05, 4.710609726757823e-07, -6.321256869628588e-09,
)  # fmt: skip
# sin(2 pi r)/r and cos(2 pi r) for |r| <= 1/2, to 2.1e-11 and 9.4e-13: enough for float32 and narrower, and no quarter
# turns to select
NARROW_SIN = (
    6.2831853071363515, -41.341702218258554, 81.60524741403077, -76.70580003163633, 42.05775187640783,
    -15.086552699921647, 3.7812823478863007, -0.6207369744067331,
)  # fmt: skip
NARROW_COS = (
    0.9999999999990582, -19.739208801568317, 64.93939395750503, -85.45681452640346, 60.24458609245169,
    -26.425615424200487, 7.899154746434429, -1.696862015952548, 0.24374971577130713,
)  # fmt: skip
SHIFT = 1.5 * 2.0**52  # moves a number's whole part to the end of its mantissa
_ONE, _TO_SIGN, _SIGN = np.uint64(1), np.uint64(62), np.uint64(1 << 63)


@intrinsic
def fma(typing, a, b, c):  # type: ignore[no-untyped-def]
    """Return a * b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


@intrinsic
def polynomial(typing, x, coefficients):  # type: ignore[no-untyped-def]
    """Return the value of a polynomial with constant coefficients, lowest power first, by Horner's rule with `fma`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        point, held = arguments
        *lower, value = (builder.extract_value(held, i) for i in range(coefficients.count))
        for coefficient in reversed(lower):
            value = builder.fma(value, point, coefficient)
        return value

    return types.float64(types.float64, coefficients), generate


@inlined
def bits_of(value):  # type: ignore[no-untyped-def]
    """Return the bits of a float."""
    return np.float64(value).view(np.uint64)


@inlined
def float_of(bits):  # type: ignore[no-untyped-def]
    """Return the float of some bits."""
    return np.uint64(bits).view(np.float64)


@inlined
def cos_sin_of_quarters(rest, whole):  # type: ignore[no-untyped-def]
    """Cos and sin of some quarter turns: at most a half, and a whole number plus `SHIFT`."""
    square = rest * rest
    sin, cos = polynomial(square, SIN) * rest, polynomial(square, COS)
    count = bits_of(whole)  # its last two bits say which quarter
    odd = (count & _ONE) == _ONE
    turned_cos, turned_sin = (sin if odd else cos), (cos if odd else sin)
    return (
        float_of(bits_of(turned_cos) ^ (((count + _ONE) << _TO_SIGN) & _SIGN)),
        float_of(bits_of(turned_sin) ^ ((count << _TO_SIGN) & _SIGN)),
    )


@inlined
def cos_sin(high, low):  # type: ignore[no-untyped-def]
    """Cos and sin of 2 pi (high + low), for a sum of some turns."""
    quarters, more = 4.0 * high, 4.0 * low
    whole = (quarters + more) + SHIFT
    return cos_sin_of_quarters((quarters - (whole - SHIFT)) + more, whole)


@inlined
def cos_sin_narrow(high, low):  # type: ignore[no-untyped-def]
    """Cos and sin of 2 pi (high + low) for features narrower than float64."""
    rest = high + low
    rest -= np.rint(rest)
    square = rest * rest
    return polynomial(square, NARROW_COS), polynomial(square, NARROW_SIN) * rest
