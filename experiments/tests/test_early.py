"""Trainings that came first: a learned offset, a language model, digits."""

from __future__ import annotations

import numpy as np
import packages
import pytest
from campaign import campaign
from conftest import library

import rfrope
from rfrope import heads


@pytest.fixture
def script(monkeypatch):
    yield from packages.experiment_scripts(monkeypatch, library("torch").module)


def test_phases_converge_to_the_offset_times_the_frequency_and_to_no_other(script):
    run = script("learned_offset").train(rfrope.geometric(16, base=200.0), 5, causal=False, steps=150)
    heavy = run.weights >= 0.5
    assert np.sum(heavy) >= 8
    wanted = heads.phase_shift(-5, run.omega)
    off = np.angle(np.exp(1j * (run.phases - wanted)))
    assert np.max(np.abs(off[heavy])) < 0.15
    np.testing.assert_allclose(np.abs(off), np.abs(run.misses), atol=1e-12)
    assert run.alignment > 0.98
    assert run.learned == pytest.approx(run.at_claim, abs=0.02)
    assert run.peak == pytest.approx(-5.0, abs=0.1)
    for offset in (5.0, -4.0, -6.0, 0.0):
        angles = np.abs(np.angle(np.exp(1j * (run.phases + offset * run.omega))))
        assert np.sum(run.weights * angles) / np.sum(run.weights) > 0.2
    assert run.losses[-20:].mean() < run.losses[0] - 1.0
    assert run.after[run.lags == -5] == run.after.max() > 4.0 * run.before[run.lags == -5]


def test_the_gradient_that_the_closed_form_is_the_zero_of(script, monkeypatch):
    """For contents that are all alike, each query's gradient is the imaginary part that the page has."""
    torch, learned = library("torch").module, script("learned_offset")
    monkeypatch.setattr(learned, "NOISE", 0.0)
    omega, generator = rfrope.geometric(8), torch.Generator().manual_seed(3)
    head = learned.Head(omega, True, generator)
    q, k = learned.contents(8, generator), learned.contents(8, generator)
    attention = head(q, k)
    rows = torch.arange(4, learned.LENGTH)
    torch.log(attention[0, rows, rows - 4]).mean().backward()
    z = learned.mean_turn(omega, 4, attention[0].detach().numpy()[4:])
    miss = head.phases.detach().numpy() - 4 * omega
    np.testing.assert_allclose(head.phases.grad, np.imag(np.exp(1j * miss) * (z - 1.0)) / 4.0, atol=1e-13)


def test_the_loss_is_the_cross_entropy_of_the_copied_token(script):
    torch, learned = library("torch").module, script("learned_offset")
    tokens = torch.arange(learned.LENGTH)[None] % 7
    attention = torch.zeros(1, learned.LENGTH, learned.LENGTH, dtype=torch.float64)
    rows = torch.arange(3, learned.LENGTH)
    attention[0, rows, rows - 3], attention[0, rows, rows - 2] = 0.25, 0.75
    assert float(learned.copy_loss(attention, tokens, 3)) == pytest.approx(np.log(4.0))
    attention[0, 7:] = 0.0
    attention[0, rows, (rows - 3) % 7] += 0.5  # another place with the same token counts, too
    attention[0, 3:7, :] *= 0.0
    attention[0, torch.arange(3, 7), torch.arange(4)] = 0.5
    assert float(learned.copy_loss(attention, tokens, 3)) == pytest.approx(np.log(2.0))


@campaign
@pytest.mark.parametrize("name", ["train_lm", "train_digits"])
def test_models_that_are_trained_differ_by_their_rotation_alone(script, name):
    torch = library("torch").module
    if name == "train_digits":
        pytest.importorskip("sklearn", reason="experiments/train_digits.py needs scikit-learn")
    train = script(name)
    plain = train.Model("none", 3).state_dict()
    for encoding in train.ENCODINGS:
        state = train.Model(encoding, 3).state_dict()
        assert all(torch.equal(plain[key], state[key]) for key in plain), encoding
        extra = {key.rpartition(".")[2] for key in state.keys() - plain.keys()}
        wanted = {"frequencies": "learned" in encoding, "table": encoding == "sinusoidal"}
        assert extra == {part for part, has in wanted.items() if has}, encoding


@campaign
def test_digits_at_twice_the_size(script):
    pytest.importorskip("sklearn", reason="experiments/tune_digits.py needs scikit-learn")
    tune = script("tune_digits")
    as_it_is, interpolated = (tune.starts()[name].frequencies for name in ("as it is", "interpolate"))
    np.testing.assert_array_equal(as_it_is, 2.0 * interpolated)
    patches, places, digits = tune.pictures(slice(0, 3), tune.TWICE)
    assert (patches.shape, places.shape, digits.shape) == ((3, 64, 4), (64, 2), (3,))
    assert float(places.max()) == tune.TWICE - 1
