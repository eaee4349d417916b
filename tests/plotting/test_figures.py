"""Figures: what is drawn is what was computed, and pyplot is left alone."""

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

import calls
import matplotlib as mpl
import refused
from matplotlib import pyplot
from matplotlib.figure import Figure

import rfrope
from rfrope import analysis, plotting
from rfrope.plotting import figures

KERNEL = rfrope.kernel("gaussian", scale=16.0)


@pytest.fixture(autouse=True)
def backend():
    """A backend without a window, and no figures left over."""
    before = mpl.get_backend()
    pyplot.switch_backend("agg")
    pyplot.close("all")  # of doctests
    yield
    pyplot.close("all")
    pyplot.switch_backend(before)


@pytest.fixture
def ax():
    return Figure().subplots()


def lines(ax):
    return {line.get_label(): np.asarray(line.get_ydata()) for line in ax.lines}


def named(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_a_kernel_and_its_frequencies(ax):
    omega = rfrope.sample(KERNEL, 32, rng=0)
    assert plotting.kernel("gaussian(scale=16)", 64, ax=ax) is ax
    assert not ax.collections
    plotting.kernel(KERNEL, 64, frequencies=omega, ax=ax)
    assert np.array_equal(lines(ax)["Φ"], KERNEL(np.arange(65)))
    assert np.array_equal(lines(ax)["these frequencies"], analysis.mean_kernel(np.arange(65), omega))
    assert ax.get_title() == "gaussian(scale=16.0)"
    (band,) = ax.collections
    edges = band.get_paths()[0].vertices
    half = np.max(edges[edges[:, 0] == 40.0, 1]) - KERNEL(40.0)
    assert half == pytest.approx(((0.5 * (1.0 + KERNEL.phi2(40.0)) - KERNEL(40.0) ** 2) / 32) ** 0.5)
    assert "32 independent draws" in band.get_label()


def test_a_few_heads_are_lines_and_many_their_range_and_median(ax):
    omega = rfrope.sample(KERNEL, 8, rng=0, heads=6)
    curves = analysis.mean_kernel(np.arange(65)[:, None], omega)
    plotting.kernel(KERNEL, 64, frequencies=omega[:3], ax=ax)
    np.testing.assert_allclose([line.get_ydata() for line in ax.lines[:3]], curves[:3])
    assert len(ax.lines) == 4
    assert named(ax) == ["one standard deviation of 8 independent draws", "these frequencies (3 heads)", "Φ"]
    other = ax.figure.add_subplot()
    plotting.kernel(KERNEL, 64, frequencies=omega, ax=other)
    assert named(other)[1] == "these frequencies: range and median of 6 heads"
    vertices = other.collections[1].get_paths()[0].vertices
    for lag in (1, 30, 63):
        edges = vertices[vertices[:, 0] == lag, 1]
        np.testing.assert_allclose([edges.min(), edges.max()], [curves[:, lag].min(), curves[:, lag].max()])
        assert other.lines[0].get_ydata()[lag] == pytest.approx(np.median(curves[:, lag]))


def test_several_axes_run_along_the_diagonal(ax):
    law = rfrope.kernel("gaussian", scale=(8.0, 4.0), ndim=2)
    omega = rfrope.sample(law, 8, rng=0)
    plotting.kernel(law, 32, frequencies=omega, ax=ax)
    diagonal = np.stack([np.arange(33)] * 2, axis=-1)
    assert np.array_equal(lines(ax)["Φ"], law(diagonal))
    assert np.array_equal(lines(ax)["these frequencies"], analysis.mean_kernel(diagonal, omega))
    assert "every axis" in ax.get_xlabel()


def test_long_ranges_are_thinned_to_whole_lags(ax):
    plotting.kernel(KERNEL, 2**20, ax=ax)
    x = ax.lines[0].get_xdata()
    assert (len(x) < 4200, x[-1]) == (True, 2**20)
    assert np.array_equal(x, np.unique(np.rint(x)))
    assert np.array_equal(x[:2049], np.arange(2049))


def test_mean_kernels_of_several_sets(ax):
    sets = {"slow": rfrope.geometric(8, base=1e6), "axial": rfrope.axial(rfrope.geometric(4), rfrope.geometric(4))}
    assert plotting.mean_kernels(sets, 5000, ax=ax) is ax
    drawn = {line.get_label(): line for line in ax.lines}
    assert named(ax) == ["slow", "axial"]
    lags = np.arange(5001)
    for name, band in zip(sets, ax.collections, strict=True):
        vectors = lags if name == "slow" else np.stack([lags, lags], axis=-1)
        curve = analysis.mean_kernel(vectors, sets[name])
        edges = band.get_paths()[0].vertices[:, 1]
        assert edges.min() == pytest.approx(curve.min())  # every lag counts, though few are drawn
        middle = drawn[name]
        assert len(middle.get_xdata()) < 520
        near = middle.get_xdata() < 100
        np.testing.assert_allclose(middle.get_ydata()[near][:8], curve[:8], atol=1e-12)


def test_few_lags_are_drawn_as_a_line(ax):
    plotting.mean_kernels({"whole": rfrope.geometric(8, base=1e6)}, 900, ax=ax)
    (line,) = (line for line in ax.lines if line.get_label() == "whole")
    assert np.array_equal(line.get_xdata(), np.arange(901))
    np.testing.assert_allclose(line.get_ydata(), analysis.mean_kernel(np.arange(901), rfrope.geometric(8, base=1e6)))


def test_labels_are_drawn_as_they_are(ax):
    plotting.mean_kernels({"_hidden": [0.5], "a$\\foo$b": [0.5]}, 8, ax=ax)
    assert named(ax) == [" _hidden", "a\\$\\foo\\$b"]
    ax.figure.canvas.draw()


def test_wavelengths_of_several_sets(ax):
    sets = {"ladder": rfrope.geometric(8), "with zeros": [0.5, 0.0]}
    assert plotting.wavelengths(sets, context=512, ax=ax) is ax
    drawn = lines(ax)
    np.testing.assert_allclose(drawn["ladder"], 2 * np.pi / rfrope.geometric(8), rtol=1e-15)
    assert drawn["with zeros"][0] == 4 * np.pi
    assert np.isnan(drawn["with zeros"][1])
    assert set(drawn["context 512"]) == {512}
    assert ax.get_yscale() == "log"
    joined = plotting.wavelengths({"up": [0.5, 0.4, 0.0, 0.4], "no order": [0.5, 0.4, 0.6]}, ax=ax.figure.add_subplot())
    assert [line.get_linestyle() for line in joined.lines] == ["-", "None"]
    plotting.wavelengths({"none": [0.0]}, ax=ax.figure.add_subplot())
    ax.figure.canvas.draw()


@pytest.mark.parametrize("name", plotting.__all__)
def test_pyplot_is_left_alone_unless_there_are_no_axes(ax, name, tmp_path):
    draw, arguments = calls.calls(tmp_path)[f"plotting.{name}"]
    before = dict(mpl.rcParams)
    draw(**arguments, ax=ax)
    assert pyplot.get_fignums() == []
    assert dict(mpl.rcParams) == before
    drawn = draw(**arguments)
    assert pyplot.gcf() is drawn.figure
    drawn.figure.canvas.draw()


def test_what_is_refused_opens_no_figure():
    for call, error, _ in refused.rows("plotting"):
        with pytest.raises(error):
            call()
    assert pyplot.get_fignums() == []


def test_the_first_lines_of_a_figure_can_be_told_apart():
    assert len({tuple(sorted(figures.style_line(number).items())) for number in range(24)}) == 24
