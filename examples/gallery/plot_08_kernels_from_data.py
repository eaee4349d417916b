"""
Kernels drawn from data
=======================

Three kinds of data, their autocorrelations as kernels, and 32 frequencies that follow each.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope
from rfrope import bochner
from rfrope.data import smollm2_heads

# %%
# The keys of a language model over 169 tokens, the rows of a picture (a random terrain), and a series with a season.
# `rfrope.bochner.from_series` estimates the law of frequencies of each, and states the bias of the estimate.

rng = np.random.default_rng(0)
terrain = rng.normal(size=(256, 256)).cumsum(axis=0).cumsum(axis=1)
season = np.cos(2 * np.pi * np.arange(4096) / 12 + 0.05 * rng.normal(size=4096).cumsum()) + rng.normal(size=4096)
data = {
    "keys of a text": (smollm2_heads()["induction_k"].astype(float), 0, 48),
    "rows of a picture": (terrain, 1, 128),
    "a season of 12": (season, 0, 96),
}
fig, axes = plt.subplots(1, 3, figsize=(9.4, 3.4), layout="constrained", sharey=True)
for ax, (title, (values, axis, reach)) in zip(axes, data.items(), strict=True):
    kernel = bochner.from_series(values, axis=axis, max_lag=reach, window="parzen")
    rope = rfrope.design(kernel, head_dim=64, context=reach, design="optimised")
    lags = np.arange(reach)
    ax.plot(lags, kernel(lags), color="black", lw=1.6, label="kernel of the data")
    ax.plot(lags, rfrope.analysis.mean_kernel(lags, rope), color="#0072B2", lw=1.2, label="32 frequencies")
    ax.set(title=title, xlabel="lag")
    ax.spines[["top", "right"]].set_visible(False)
axes[1].legend(frameon=False)
plt.show()
