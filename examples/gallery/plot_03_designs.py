"""
Designs compared
================

The error of the mean kernel against the number of frequencies, for each design.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope

# %%
# The error of independent draws falls like one over the square root of their number. Stratified draws and quantiles
# cover the same law evenly; ``optimised`` fits the frequencies to the lags of the context.

kernel, context = rfrope.kernel("gaussian", scale=32.0), 512
lags, blocks = np.arange(context), (8, 16, 32, 64)


def rms(frequencies):
    """Error of a set, or the mean of those of several heads, over the context."""
    curves = np.atleast_2d(rfrope.analysis.mean_kernel(lags if frequencies.ndim == 1 else lags[:, None], frequencies))
    return np.sqrt(np.mean((curves - kernel(lags)) ** 2))


errors = {
    "iid": [rms(rfrope.sample(kernel, n, rng=0, heads=16)) for n in blocks],
    "stratified": [rms(rfrope.sample(kernel, n, rng=0, heads=16, design="stratified")) for n in blocks],
    "quantile": [rms(rfrope.sample(kernel, n, design="quantile")) for n in blocks],
    "optimised": [rms(rfrope.designs.optimise(kernel, n, max_lag=context - 1).frequencies) for n in blocks],
}
fig, ax = plt.subplots(figsize=(6, 3.7), layout="constrained")
styles = zip(("#E69F00", "#009E73", "#CC79A7", "#0072B2"), "os^D", strict=True)
for (name, values), (colour, marker) in zip(errors.items(), styles, strict=True):
    ax.loglog(blocks, values, color=colour, marker=marker)
    ax.annotate(name, (blocks[-1], values[-1]), (8, 0), textcoords="offset points", color=colour, va="center")
ax.set(xlabel="frequencies of a head, D", ylabel="rms error over the context", xticks=blocks, xticklabels=blocks)
ax.minorticks_off()
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The errors, by D:

for name, values in errors.items():
    print(f"{name:10}", "  ".join(f"{value:.2e}" for value in values))
