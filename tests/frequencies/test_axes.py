"""Frequency sets of several axes: exact values, scores that depend on the lag alone, and what is refused."""

import math

import mpmath
import numpy as np
import pytest
from owned import check_owned
from scipy import special

import rfrope
from rfrope import geometric
from rfrope.frequencies import isotropic

RNG = np.random.default_rng(6)


def vectors_of(maker):
    """A maker of several axes, of whose Rope only the frequencies are looked at."""

    def made(*arguments, **options):
        rope = maker(*arguments, **options)
        assert isinstance(rope, rfrope.Rope)
        assert (rope.sections, rope.attention_factor, rope.pairing) == (None, 1.0, "half")
        assert rope.head_dim == 2 * rope.frequencies.shape[-2]
        return rope.frequencies

    return made


axial, golden_gate, mixed, mrope = map(vectors_of, (rfrope.axial, rfrope.golden_gate, rfrope.mixed, rfrope.mrope))


def by_hand(sets, order):
    """Axial frequencies block by block."""
    sets = [np.asarray(s)[:, None] if np.ndim(s) == 1 else np.asarray(s) for s in sets]
    starts = np.cumsum([0, *(s.shape[1] for s in sets)])
    queues = [[(j, row) for row in s] for j, s in enumerate(sets)]
    if order == "chunked":
        taken = [item for queue in queues for item in queue]
    else:
        taken = []
        while any(queues):
            taken += [queue.pop(0) for queue in queues if queue]
    result = np.zeros((len(taken), starts[-1]))
    for i, (j, row) in enumerate(taken):
        result[i, starts[j] : starts[j + 1]] = row
    return result


SETS = {
    "one axis": ([1.0, 0.5, 0.25],),
    "image": (geometric(3), geometric(3)),
    "unequal": ([1.0, 0.1, 0.01], [1.0]),
    "video": ([3.0], geometric(4), geometric(2)),
    "plane and time": (RNG.standard_normal((3, 2)), geometric(5)),
    "an axis without blocks": (geometric(2), [], geometric(1)),
    "no blocks": ([], []),
}


# -- axial -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["chunked", "interleaved"])
@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
def test_axial_puts_every_block_in_its_place(xp, sets, order):
    got = axial(*(xp(np.asarray(s, dtype=np.float64)) for s in sets), order=order)
    check_owned(xp, got, by_hand(sets, order))


def test_axial_takes_lists_beside_arrays_whole_numbers_and_narrow_ones(xp):
    got = axial(xp(np.array([1.0, 0.5]), "float32"), [2], xp(np.array([3])))
    check_owned(xp, got, by_hand(([1.0, 0.5], [2.0], [3.0]), "chunked"))


@pytest.mark.parametrize("order", ["chunked", "interleaved"])
def test_axial_joins_sets_of_each_head_with_a_common_one(xp, order):
    heads, common = RNG.standard_normal((3, 4, 2)), geometric(2)
    got = xp.host(axial(xp(heads), xp(common), order=order))
    assert got.shape == (3, 6, 3)
    for one, of_head in zip(got, heads, strict=True):
        np.testing.assert_array_equal(one, by_hand((of_head, common), order))


# -- mixed -------------------------------------------------------------------------------------------------------------


def test_mixed_are_two_perpendicular_ladders(xp):
    angles = np.array([0.0, 1.0, -2.5, 7.0])
    got = mixed(8, xp(angles), base=100.0)
    turned = np.concatenate([np.exp(1j * angles), 1j * np.exp(1j * angles)]).reshape(2, 4)
    sizes = np.array([100.0 ** (-4.0 * j / 16.0) for j in range(4)])
    expected = np.concatenate([turned[0][:, None] * sizes, turned[1][:, None] * sizes], axis=-1)
    check_owned(xp, got, np.stack([expected.real, expected.imag], axis=-1), atol=1e-15)


# -- golden gate -------------------------------------------------------------------------------------------------------


def exact_directions(ndim: int, n: int) -> np.ndarray:
    """The published formulas in many digits."""
    with mpmath.workdps(50):
        if ndim == 2:
            angles = [i * mpmath.pi * (mpmath.sqrt(5) - 1) / 2 for i in range(n)]
            return np.array([[float(mpmath.cos(a)), float(mpmath.sin(a))] for a in angles])
        g = mpmath.findroot(lambda v: v ** (ndim + 1) - v - 1, 1.5)
        rows = [[mpmath.erfinv(2 * mpmath.frac(i * g**-j) - 1) for j in range(1, ndim + 1)] for i in range(1, n + 1)]
        return np.array([[float(v / mpmath.norm(row)) for v in row] for row in rows])


@pytest.mark.parametrize("ndim", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("heads", "zeros"), [(None, 0), (3, 0), (2, 5), (1, 16)])
def test_golden_gate_is_the_published_formula(ndim, heads, zeros):
    got = golden_gate(16, low=0.2, high=20.0, ndim=ndim, heads=heads, zero_blocks=zeros)
    count = 16 * (heads or 1)
    sizes = np.concatenate([np.zeros(zeros), np.geomspace(0.2, 20.0, 16 - zeros)])
    expected = np.reshape(exact_directions(ndim, count), (heads or 1, 16, ndim)) * sizes[:, None]
    np.testing.assert_allclose(got, expected if heads else expected[0], rtol=0, atol=2e-11)


def test_golden_gate_with_one_block_has_the_low_magnitude():
    assert golden_gate(1, low=0.5, high=3.0).tolist() == [[0.5, 0.0]]
    assert golden_gate(0, low=0.5, high=3.0, ndim=3).shape == (0, 3)
    assert golden_gate(2, low=0.5, high=3.0, heads=0).shape == (0, 2, 2)
    assert golden_gate(2, low=0.5, high=3.0, dtype="float32").dtype == np.float32


# -- M-RoPE ------------------------------------------------------------------------------------------------------------


def owners_by_hand(sections, interleaved):
    """Axis of each block, in the words of the models' code."""
    if not interleaved:
        return [axis for axis, length in enumerate(sections) for _ in range(length)]
    owners = [0] * sum(sections)
    for axis in range(1, len(sections)):
        at = slice(axis, sections[axis] * len(sections), len(sections))
        owners[at] = [axis] * len(owners[at])
    return owners


@pytest.mark.parametrize(
    ("sections", "interleaved"),
    [((16, 24, 24), False), ((11, 11, 10), True), ((4, 0, 1), True), ((4, 4), True), ((0, 3, 0), False), ((5,), False)],
)
def test_mrope_gives_each_block_to_its_axis(xp, sections, interleaved):
    ladder = geometric(sum(sections), base=1e6)
    got = mrope(xp(ladder), sections, interleaved=interleaved)
    expected = np.zeros((len(ladder), len(sections)))
    expected[np.arange(len(ladder)), owners_by_hand(sections, interleaved)] = ladder
    check_owned(xp, got, expected)
    assert np.count_nonzero(expected, axis=0).tolist() == list(sections)


def test_mrope_takes_sections_of_any_kind():
    expected = mrope(geometric(4), (2, 1, 1))
    for sections in ([2, 1, 1], np.array([2, 1, 1]), (np.int64(2), 1, 1)):
        assert np.array_equal(mrope(geometric(4), sections), expected)
    other = rfrope.frequencies.mrope(rfrope.Rope(geometric(4), sections=(1, 1, 2)), (2, 1, 1))
    assert (np.array_equal(other.frequencies, expected), other.sections) == (True, None)
    assert mrope([], (0, 0)).shape == (0, 2)


def test_magnitudes_far_apart_do_not_overflow():
    sizes = np.linalg.norm(golden_gate(3, low=1e-150, high=1e150), axis=-1)
    np.testing.assert_allclose(sizes, [1e-150, 1.0, 1e150], rtol=1e-13)
    assert np.all(np.isfinite(golden_gate(5, low=1e-320, high=1e150, ndim=3)))


def harmonic_sums(units, degree):
    """Sums over pairs of Legendre's polynomial: 0 for a spherical design that has this degree."""
    return float(np.sum(special.eval_legendre(degree, units @ units.T)))


def test_rings_of_two_axes_have_equal_angles_and_each_is_a_little_further():
    found = isotropic([2.0, 1.0, 0.5], 4).frequencies.reshape(3, 4, 2)
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), [[2.0] * 4, [1.0] * 4, [0.5] * 4], rtol=1e-15)
    angles = np.arctan2(found[..., 1], found[..., 0])
    np.testing.assert_allclose(angles, math.pi * (np.arange(4) + np.arange(3)[:, None] / 3.0) / 4.0, atol=1e-15)


@pytest.mark.parametrize("n", [1, 5, 16])
def test_the_mean_kernel_of_a_ring_is_the_expansion_of_jacobi_and_anger(n):
    z, phi = 23.0, np.linspace(0.0, math.pi, 7)
    lags = z / 2.0 * np.stack([np.cos(phi), np.sin(phi)], axis=-1)
    orders = n * np.arange(1, 40 // n + 2)
    terms = (-1.0) ** orders * special.jv(2 * orders, z) * np.cos(2.0 * orders * phi[:, None])
    expected = special.jv(0, z) + 2.0 * np.sum(terms, axis=1)
    np.testing.assert_allclose(rfrope.analysis.mean_kernel(lags, isotropic([2.0], n)), expected, atol=1e-13)


@pytest.mark.parametrize(("n", "degree", "beyond"), [(3, 2, 4), (6, 4, 6)])
def test_lines_of_three_axes_are_spherical_designs_up_to_a_degree(n, degree, beyond):
    units = isotropic([1.0], n, ndim=3).frequencies
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1.0, rtol=1e-14)
    for one in range(2, degree + 1, 2):
        assert harmonic_sums(units, one) / n < 1e-12
    assert harmonic_sums(units, beyond) / n > 1e-2
