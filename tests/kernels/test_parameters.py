"""Parameters of kernels in their normal form."""

import numpy as np
import pytest
from conftest import library

from rfrope._core import array
from rfrope.kernels import parameters


def test_shares_keep_what_sums_to_one_and_normalise_the_rest():
    assert parameters.shares("weights", [0.1] * 10) == (0.1,) * 10
    third = parameters.shares("weights", np.full(3, 0.33333333333))
    assert parameters.shares("weights", third) == third
    for found in (third, *(parameters.shares("weights", [0.5, 0.5 + off]) for off in (1e-10, -1e-10))):
        assert sum(found) == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1.0, 1e150, 1e300])
def test_radius_at_any_size(size):
    found = parameters.radius(size * np.array([[3.0, -4.0], [0.0, 0.0], [0.0, np.inf], [1.0, np.nan]]), np)
    np.testing.assert_allclose(found, [5.0 * size, 0.0, np.inf, np.nan], rtol=1e-15)
    assert parameters.radius(np.array([[-3.0 * size]]), np).tolist() == [3.0 * size]


@pytest.mark.parametrize(
    ("dtype", "read"),
    [
        *[("float32", read) for read in (np.asarray, list, np.ndarray.tolist)],
        ("float16", np.asarray),
        ("bfloat16", list),
    ],
)
def test_a_softmax_of_a_narrow_dtype_is_normalised(dtype, read):
    """Its sum is off by its own rounding; what is off by more is refused."""
    dtype = np.dtype(dtype if dtype != "bfloat16" else pytest.importorskip("ml_dtypes").bfloat16)
    for seed in range(200):
        size = np.exp(np.random.default_rng(seed).standard_normal(2 + seed % 12).astype(dtype))
        assert sum(parameters.shares("weights", read(size / size.sum(dtype=dtype)))) == pytest.approx(1.0, abs=1e-15)
    off = 8.0 * array.resolution(size)
    with pytest.raises(ValueError, match=r"weights is .*expected sum 1"):
        parameters.shares("weights", read(np.asarray([0.5, 0.5 + off], dtype=dtype)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_softmax_of_other_libraries_is_read(dtype):
    torch, jax = library("torch").module, library("jax").module
    weights = torch.softmax(torch.linspace(0.0, 1.0, 9, dtype=getattr(torch, dtype)), 0)
    for one in (weights, jax.asarray(weights.float().numpy(), dtype=dtype)):
        assert sum(parameters.shares("weights", one)) == pytest.approx(1.0, abs=1e-15)
