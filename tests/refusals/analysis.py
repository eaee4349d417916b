"""Analysis: curves, blocks, bases, fits, summaries, plans, budgets, and scores of two positions."""

import numpy as np

import rfrope
from rfrope.analysis import (
    aliasing_distance,
    base_for_context,
    density_of_states,
    departure,
    dirichlet,
    first_negative_lag,
    fit_kernel,
    log_uniform_kernel,
    mean_kernel,
    plan,
    scaling_effect,
    sine_share,
    summarise,
    wavelengths,
)

W, X = [1.0, 0.5], np.ones((3, 4))
HEADS, PLANE = np.ones((2, 3, 1)), np.ones((3, 2))
LADDER = rfrope.Rope(rfrope.geometric(16), context=1024)
ONE_SET = "expected one set, (D,) or (D, k)"

ROWS = [
    # curves
    (lambda: mean_kernel([1.0], []), ValueError, "frequencies has shape (0,); expected at least one block"),
    (lambda: mean_kernel([1.0] * 3, PLANE), ValueError, ("lags has shape (3,), but frequencies", "k = 2")),
    (lambda: mean_kernel(1.0, HEADS), ValueError, ("lags has shape ()", "use lags[..., None]")),
    (lambda: mean_kernel(np.ones((5, 3, 2, 1)), HEADS), ValueError, "do not broadcast"),
    (lambda: log_uniform_kernel([1.0], 1.0), ValueError, "base is 1.0; expected a number above 1"),
    (lambda: log_uniform_kernel(1e200), ValueError, ("lags holds", "above 2**500")),
    (lambda: dirichlet([1.0], 2, step=1e200), ValueError, "step is 1e+200; expected a positive number up to"),
    (lambda: first_negative_lag(PLANE, 5), ValueError, "frequencies has shape (3, 2)"),
    (lambda: aliasing_distance(HEADS, 5), ValueError, ("(2, 3, 1)", "call the function for each head")),
    # blocks and bases
    (lambda: wavelengths(np.ones((3, 0))), ValueError, "(3, 0); expected at least one position axis"),
    (lambda: density_of_states([1e200]), ValueError, "magnitudes above 2**500"),
    (lambda: density_of_states([]), ValueError, "magnitudes of shape (0,); expected at least one block"),
    (lambda: base_for_context(4096, 64, max_base=3000.0), ValueError, "max_base is 3000.0; expected more than 3321.9"),
    # content
    (lambda: sine_share(X, X[:, :2], 1, W), ValueError, "q has shape (3, 4) but k has (3, 2); expected the same"),
    (lambda: sine_share(X, X, 3, []), ValueError, "frequencies has shape"),
    (lambda: departure(X, X, 1, [1.0] * 3), ValueError, "frequencies has D = 3 blocks, which needs 6 features, but q"),
    (lambda: departure(X, X, [1.0], np.ones((2, 2))), ValueError, "lags has shape (1,), but frequencies of shape (2,"),
    (lambda: departure(X[0], X[0], 1, W), ValueError, "q and k have leading axes (); expected n pairs"),
    (lambda: departure(X, X[:2], 1, W), ValueError, "q and k do not broadcast"),
    (lambda: departure(X, X, [[1.0]], HEADS[:, :2]), ValueError, ("has shape (2, 2, 1)", ONE_SET)),
    # fits and effects
    (lambda: fit_kernel(PLANE, 10), ValueError, "frequencies has shape (3, 2); expected one set"),
    (lambda: fit_kernel(W, 10, mixtures=2), TypeError, "mixtures is 2; expected True or False"),
    (lambda: fit_kernel(W, 10, names=["matern"], mixtures=True), ValueError, "no family in names has one parameter"),
    (lambda: fit_kernel(W, 10, names=["gausian"]), ValueError, "'gausian'; did you mean 'gaussian'"),
    (lambda: fit_kernel(W, 10, names=["spectral_mixture"]), ValueError, "which has a parameter 'weights' for which no"),
    (lambda: scaling_effect([1], W, np.ones((2, 1))), ValueError, "after has shape (2, 1); expected (D,)"),
    (lambda: scaling_effect([], W, W), ValueError, "lags has shape (0,); expected at least one lag"),
    # summaries
    (lambda: summarise(1.0, 8), ValueError, ("frequencies is a single number", ONE_SET)),
    (lambda: summarise(HEADS, 8), ValueError, (ONE_SET, "call the function for each head")),
    (lambda: summarise([1.0]), ValueError, "context is missing"),
    (lambda: summarise(W, 8, head_dim=2), ValueError, "head_dim is 2; expected a whole number from 3"),
    (lambda: summarise([1.0], 8, name=3), TypeError, "name is 3; expected a string"),
    (lambda: summarise(PLANE, (8, 8, 8)), ValueError, "context has 3 numbers; expected one, or 2, one for each axis"),
    (lambda: summarise(PLANE, (8, 1)), ValueError, "context is 1"),
    (lambda: summarise(rfrope.Rope(W, polar=True), 9, head_dim=64), ValueError, "head_dim is 64"),
    # plans
    (lambda: plan(LADDER, 1024), ValueError, "context is 1024; expected more than the 1024 trained positions"),
    (lambda: plan(W, 64), ValueError, "trained_context is missing; expected the positions in training, such as 4096"),
    (lambda: plan([0.0, 0.0], 64, trained_context=32), ValueError, "all frequencies of rope are 0; expected at least"),
    (lambda: plan(HEADS, 64, trained_context=32), ValueError, "rope has shape"),
    (lambda: plan(LADDER, 4096, progress=3), TypeError, "progress is 3; expected None, True, False"),
]
