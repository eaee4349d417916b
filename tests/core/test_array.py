"""The module that knows array libraries."""

import importlib
import math

import numpy as np
import pytest
from conftest import library

from rfrope._core import array, blocks, libraries


@pytest.mark.parametrize("dtype", [*"bBhHiIlLqQefd", ">f8", ">i4", "?", "g", "D", "M8[s]", "U3"])
def test_plain_arrays_pass_quickly_as_others_pass_slowly(dtype):
    class Subclass(np.ndarray):
        """An array that the quick ways of plain arrays do not know."""

    plain = np.asarray([1, 0, 3]).astype(dtype)
    found = []
    for value in (plain, plain.view(Subclass)):
        try:
            value = array.numbers(value, np, name="x")
            found.append((array.is_integer(value), array.is_real_floating(value), array.widen(value, np).tolist()))
        except TypeError as error:
            found.append(str(error))
    assert found[0] == found[1]
    assert isinstance(found[0], str) == (dtype in ("?", "g", "D", "M8[s]", "U3"))


@pytest.mark.parametrize("size", [3, 2**12, 2**12 + 1])
def test_bounds_hold_for_every_element(size):
    bound = 2.0**500
    for one in (np.nan, np.inf, -np.inf, np.nextafter(bound, np.inf), -(2.0**501), 1e300, bound, -bound, 5e-324, 0.0):
        values = np.ones(size)
        values[size // 2 // 2 * 2] = one
        for given in (values, values[::2]):
            assert array.all_within(given, bound, np) == (abs(one) <= bound)
    assert array.all_within(np.ones((0, 3)), bound, np)


def test_a_device_without_float64():
    strict = library("array-api-strict").module
    try:
        place = strict.Device("no_float64")
    except ValueError:
        pytest.skip("this array-api-strict has no device without float64")
    assert "float64" in libraries.OTHER.dtypes(strict, None)
    assert "float64" not in libraries.OTHER.dtypes(strict, place)
    assert not array.has_float64(strict, place)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_complex_numbers_are_as_wide_as_their_parts(xp, dtype):
    real, imag = np.array([1.0, 1.0 / 3.0], dtype), np.array([-2.0, 0.1], dtype)
    found = array.make_complex(xp(real), xp(imag), array.namespace(x=xp(real)))
    assert xp.host(found).dtype == (real + 1j * imag).dtype
    np.testing.assert_array_equal(xp.host(found), real + 1j * imag)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_an_infinite_imaginary_part_leaves_the_real_part_alone(name):
    xp = library(name)
    real, imag = xp([1.0, 2.0]), xp([math.inf, -math.inf])
    found = xp.host(array.make_complex(real, imag, array.namespace(x=real)))
    np.testing.assert_array_equal([found.real, found.imag], [[1.0, 2.0], [math.inf, -math.inf]])


def test_how_to_convert_names_the_module_that_makes_arrays():
    jax, strict = library("jax"), library("array-api-strict")
    with pytest.raises(TypeError, match=r"pass array_api_strict\.asarray\(k\), or jax\.numpy\.asarray\(q\)$"):
        array.namespace(q=strict([1.0]), k=jax([1.0]))


def test_what_tensors_are_in_memory():
    """NumPy's own device is a text that other libraries do not know."""
    assert array.device(np.zeros(2)) is array.device(np.float64(2.0)) is array.device([1.0]) is None
    torch = library("torch").module
    np.testing.assert_array_equal(array.to_host(torch.tensor([1.5], dtype=torch.bfloat16)), np.float32([1.5]))
    dense = torch.eye(2)
    assert libraries.TORCH.are_plain_dense(dense, torch.nn.Parameter(dense, requires_grad=False))
    others = [dense.to_sparse(), dense.to_mkldnn(), torch.ones(2, requires_grad=True)]
    others += [torch.ones(2, dtype=torch.complex64).conj().imag, torch.ones(2, device="meta")]
    assert [libraries.TORCH.are_plain_dense(dense, one) for one in others] == [False] * len(others)


def test_what_is_lazy(xp):
    assert array.library(xp([1.0])).is_lazy == xp.lazy
    assert array.has_host_values(xp([1.0])) == (not xp.lazy and not xp.on_device)
    assert not array.library(xp([1.0])).is_traced(xp([1.0]))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_split_is_exact_and_its_halves_multiply_exactly(xp, dtype):
    x = np.random.default_rng(0).standard_normal(1000).astype(dtype) * 2.0 ** np.arange(-50, 50).repeat(10)
    x = x.astype(dtype)
    high, low = (xp.host(v) for v in array.split(xp(x), array.namespace(x=xp(x))))
    assert high.dtype == low.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(high.astype(np.longdouble) + low, x)
    bits = 26 if dtype == "float64" else 12
    for half in (high, low):
        mantissa, _ = np.frexp(half.astype(np.float64))
        np.testing.assert_array_equal(mantissa * 2.0**bits, np.rint(mantissa * 2.0**bits))
    if xp.name == "jax":  # and survives a compiler
        jax = importlib.import_module("jax")
        for one, other in zip(jax.jit(lambda v: array.split(v, xp.module))(xp(x)), (high, low), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("dtype", "wider"), [("float16", "float32"), ("float32", "float64"), ("float64", "float64")])
def test_arithmetic_is_one_float_wider(dtype, wider):
    """The generic turning, too: each feature is rounded once, from the sum of two products in the wider float."""
    assert array.wider_float(np.ones(1, dtype), np) == np.dtype(wider)
    x, u = np.random.default_rng(0).standard_normal((2, 500, 1))
    x = np.concatenate([x, x[::-1]], axis=1).astype(dtype)
    cos, sin = np.cos(u), np.sin(u)
    got = blocks.turned(x, cos, sin, blocks.TurnOptions("half", "half"), None, np)
    wide, cos, sin = x.astype(wider), cos.astype(wider), sin.astype(wider)
    first, second = wide[:, :1] * cos - wide[:, 1:] * sin, wide[:, :1] * sin + wide[:, 1:] * cos
    assert np.array_equal(got, np.concatenate([first, second], axis=1).astype(dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_what_comes_from_a_read_only_array_is_a_copy(xp, dtype):
    """Nobody can write through it to what was not to be written to; `astype` copies nothing that is right already."""
    host = np.arange(4).astype(dtype)
    host.flags.writeable = False
    space = array.namespace(x=xp([1.0]))
    made = array.from_host(host, space, device=xp.device)
    if xp.writable and space is not np:
        made[0] = 7
    assert host[0] == 0
    assert array.astype(made, made.dtype, array.namespace(x=made)) is made
