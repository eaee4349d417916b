"""Every public function that takes a Rope, given a polar one: it does what the frequencies say, or says why not."""

import dataclasses
import inspect
import itertools
from typing import Any

import numpy as np
import pytest
from campaign import campaign
from paired_calls import CALLS
from public import FUNCTIONS

import rfrope
from rfrope import Rope, analysis, engines, heads, models, moments, rotation, scaling

pytestmark = pytest.mark.usefixtures("quick_fits")

OMEGA = rfrope.geometric(4, base=100.0)
POLAR = Rope(OMEGA, polar=True, context=64)
AT, LAGS = np.arange(6), np.array([0.0, -1.0, -7.0])
MAGNITUDES = np.random.default_rng(0).gamma(2.0, size=(2, 6, 4))
WIDE = np.concatenate([MAGNITUDES, 0.5 * MAGNITUDES], -1)
YARN, LLAMA = {"original_max_position_embeddings": 32}, {"low_freq_factor": 1.0, "high_freq_factor": 4.0}

WORKS = {  # functions of frequencies alone: with those of a polar Rope they do what they do with the bare ones
    "analysis.aliasing_distance": lambda w: analysis.aliasing_distance(w, 99),
    "analysis.first_negative_lag": lambda w: analysis.first_negative_lag(w, 99),
    "analysis.fit_kernel": lambda w: analysis.fit_kernel(w, 20),
    "analysis.mean_kernel": lambda w: analysis.mean_kernel(LAGS, w),
    "analysis.turns": lambda w: analysis.turns(w, 9),
    "analysis.wavelengths": lambda w: analysis.wavelengths(w),
    "heads.aligned_shift": lambda w: heads.aligned_shift(-1.0, w, np.ones(4)),
    "heads.offset_of": lambda w: heads.offset_of(w, OMEGA, low=-5.0),
    "heads.phase_shift": lambda w: heads.phase_shift(-1.0, w),
    "heads.shifted_mean_kernel": lambda w: heads.shifted_mean_kernel(LAGS, w, np.ones(4)),
    "moments.kernel_gap": lambda w: moments.kernel_gap(w, "gaussian(scale=8)", 20),
    "rotation_table": lambda w: rfrope.rotation_table(AT, w),
    "rotation.phases": lambda w: rotation.phases(AT, w),
    "rotation.shift_matrix": lambda w: rotation.shift_matrix(3.0, w),
    "sinusoidal": lambda w: rfrope.sinusoidal(AT, w),
}
MAPS = {  # of frequencies to others: a polar Rope stays one
    "axial": lambda w: rfrope.axial(w, w),
    "mrope": lambda w: rfrope.mrope(w, (2, 2)),
    "scaling.dynamic_ntk": lambda w: scaling.dynamic_ntk(w, 2.0, seq_len=128, max_position_embeddings=64),
    "scaling.linear": lambda w: scaling.linear(w, 4.0),
    "scaling.llama3": lambda w: scaling.llama3(w, 4.0, **YARN, **LLAMA),
    "scaling.longrope": lambda w: scaling.longrope(
        w, short_factor=4 * [2.0], long_factor=4 * [4.0], factor=2.0, **YARN
    ),
    "scaling.ntk": lambda w: scaling.ntk(w, 4.0),
    "scaling.proportional": lambda w: scaling.proportional(w, factor=2.0),
    "scaling.riflex": lambda w: scaling.riflex(w, period=20, length=64),
    "scaling.yarn": lambda w: scaling.yarn(w, 4.0, **YARN),
}
OF_FEATURES = [name for name in CALLS if name != "heads.profile"]  # of features that RoPE turns alone
POLAR_ROPE, NO_ENGINE = "rope is polar, but the ", "no engine supports polar attention"
NO_OFFSET = "cannot look at an offset"
REFUSED = {
    "analysis.plan": (lambda w: analysis.plan(w, 128), POLAR_ROPE + "methods for longer contexts"),
    "analysis.similarity": (lambda w: analysis.similarity(LAGS, w), "polar contents have no direction"),
    "engines.export": (lambda w: engines.export(w, "transformers"), NO_ENGINE),
    "engines.rounding": (lambda w: engines.rounding(w, "vllm"), NO_ENGINE),
    "engines.write": (lambda w: engines.write("/nowhere/x.json", w, "transformers"), NO_ENGINE),
    "heads.atlas": (lambda w: heads.atlas(WIDE, WIDE, w), "an atlas is of queries and keys that turn"),
    "heads.positional_attention": (lambda w: heads.positional_attention(w, 9), NO_OFFSET),
    "heads.positional_scores": (lambda w: heads.positional_scores(LAGS, w), NO_OFFSET),
    "models.audit": (lambda w: models.audit(OMEGA, w), POLAR_ROPE + "tables of a model"),
    "models.diff": (lambda w: models.diff(OMEGA, w), "new is polar, but scores of equal content"),
}
ELSEWHERE = {  # with tests of their own, or drawn
    *("heads.profile", "analysis.summarise", "save", "rotation.rotate_polar", "rotation.rerotate"),
    *("rotation.relocate", "designs.learned_kernel", "models.repair", "scaling.scale_axis"),
    *("plotting.kernel", "plotting.mean_kernels", "plotting.wavelengths"),
}
ROPES = {"frequencies", "rope", "old", "new", "before", "after", "sets"}  # what arguments that take one are called


def plain(value: Any) -> list[np.ndarray]:
    """The numbers of a result."""
    if isinstance(value, Rope | np.ndarray | float | int | None) or not dataclasses.is_dataclass(value):
        several = isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value))
        return [part for one in value for part in plain(one)] if several else [np.asarray(value, object)]
    return [np.asarray(one, object) for one in vars(value).values()]


def assert_equal(found: Any, wanted: Any) -> None:
    for one, other in zip(plain(found), plain(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_function_that_takes_a_rope_is_here():
    tables = [*WORKS, *MAPS, *OF_FEATURES, *REFUSED, *ELSEWHERE]
    taking = {one for one in FUNCTIONS.values() if ROPES & {*inspect.signature(one).parameters}}
    assert {FUNCTIONS[name] for name in tables} == taking


@campaign
@pytest.mark.parametrize("name", WORKS)
def test_frequencies_alone_mean_the_same(name):
    assert_equal(WORKS[name](POLAR), WORKS[name](OMEGA))
    if name != "analysis.aliasing_distance":  # which is None for these
        with pytest.raises(AssertionError):
            assert_equal(WORKS[name](POLAR), WORKS[name](np.array([0.7, 0.31, 0.2, 0.05])))


@pytest.mark.parametrize("name", MAPS)
def test_a_map_of_a_polar_rope_is_polar(name):
    found = MAPS[name](POLAR)
    assert found.polar
    assert found.head_dim == found.n_blocks
    assert_equal(found.frequencies, MAPS[name](OMEGA).frequencies)


@pytest.mark.parametrize("name", OF_FEATURES)
def test_features_are_not_magnitudes(name):
    CALLS[name](Rope(OMEGA))
    with pytest.raises(ValueError, match=r"the Rope has polar=True; expected rotation.rotate_polar for it"):
        CALLS[name](POLAR)


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_says_why(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call(POLAR)


def test_methods_of_the_rope():
    np.testing.assert_array_equal(POLAR.table(AT)[0], rfrope.rotation_table(AT, OMEGA)[0])
    for given, (inverse, x) in itertools.product((None, 4), ((False, MAGNITUDES), (True, WIDE))):
        rope = Rope(OMEGA, polar=True, attention_factor=0.5, head_dim=given)
        wanted = rotation.rotate_polar(x, AT, OMEGA, scale=0.5, inverse=inverse)
        np.testing.assert_array_equal(rope.rotate(x, AT, inverse=inverse), wanted)


@pytest.mark.parametrize("pairings", [("half", "half"), ("half", "interleaved")])
@pytest.mark.parametrize("given", [None, 4])
def test_cached_polar_keys_go_from_one_polar_rope_to_another(pairings, given):
    old, new = (
        Rope(w, polar=True, pairing=one, head_dim=given, attention_factor=factor)
        for w, one, factor in zip((OMEGA, 0.5 * OMEGA), pairings, (1.0, 1.5), strict=True)
    )
    cached = old.rotate(MAGNITUDES, AT)
    np.testing.assert_allclose(rotation.rerotate(cached, AT, old, new), new.rotate(MAGNITUDES, AT), atol=1e-14)
    np.testing.assert_allclose(rotation.relocate(cached, AT, AT + 9, old), old.rotate(MAGNITUDES, AT + 9), atol=1e-14)


def test_what_is_drawn_is_drawn_of_the_frequencies():
    pytest.importorskip("matplotlib")
    from rfrope import plotting

    calls = {
        "kernel": lambda w: plotting.kernel("gaussian(scale=8)", 20, frequencies=w),
        "mean_kernels": lambda w: plotting.mean_kernels({"x": w}, 20),
        "wavelengths": lambda w: plotting.wavelengths({"x": w}, context=20),
    }
    for name, draw in calls.items():
        drawn = [[np.asarray(line.get_xydata()) for line in draw(one).lines] for one in (POLAR, OMEGA)]
        assert drawn[0], name
        for one, other in zip(*drawn, strict=True):
            np.testing.assert_array_equal(one, other)
