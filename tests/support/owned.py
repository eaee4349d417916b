"""Results in the arrays of the library that was given."""

from typing import Any

import numpy as np


def check_owned(
    xp: Any, found: Any, wanted: Any, *, rtol: float = 0.0, atol: float = 0.0, dtype: str = "float64"
) -> None:
    """Assert that an array is one of the library `xp`, of this dtype, and of the shape and values of another."""
    assert xp.owns(found)
    assert found.dtype == xp.dtype(dtype)
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(xp.host(found), wanted, rtol=rtol, atol=atol)
