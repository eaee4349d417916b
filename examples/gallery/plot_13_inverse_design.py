"""
A kernel from data
==================

Take the autocorrelation of a signal, and give attention the same shape.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope
from rfrope import bochner

# %%
# A noisy rhythm of 24 positions whose phase drifts. `rfrope.bochner.from_series` estimates its law of frequencies, a
# kernel like every other: it has samplers, designs and closed forms.

rng = np.random.default_rng(0)
phase = 2.0 * np.pi * np.arange(8192) / 24.0 + np.cumsum(rng.normal(scale=0.1, size=8192))
signal = np.cos(phase) + 0.5 * rng.normal(size=8192)
kernel = bochner.from_series(signal, max_lag=256, window="parzen")
rope = rfrope.design(kernel, head_dim=64, context=256, design="quantile")

lags = np.arange(256)
fig, ax = plt.subplots(figsize=(6, 3.7), layout="constrained")
ax.plot(lags, kernel(lags), color="black", lw=1.4)
ax.plot(lags, rfrope.analysis.mean_kernel(lags, rope), color="#0072B2", lw=1.0)
ax.annotate("Φ, from the signal", (30, 0.75))
ax.annotate("32 frequencies", (30, 0.65), color="#0072B2")
ax.set(xlabel="lag (positions)", ylabel="kernel")
ax.spines[["top", "right"]].set_visible(False)
plt.show()
