"""
RoPE read as a kernel
=====================

A geometric ladder is a set of samples of a log-uniform law; its mean kernel falls like the logarithm of the lag.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope
from rfrope import analysis, plotting

# %%
# With ever more frequencies the ladder's curve becomes `rfrope.analysis.log_uniform_kernel`, a difference of cosine
# integrals (dashed). With 64 it follows the limit at short lags and oscillates about it at long ones.
# `rfrope.plotting.mean_kernels` computes every lag, and draws the range and the median of neighbouring lags.

bases = (1e4, 5e5)
fig, ax = plt.subplots(figsize=(6, 3.7), layout="constrained")
plotting.mean_kernels({f"base {base:g}": rfrope.geometric(64, base=base) for base in bases}, 131_071, ax=ax)
lags = np.unique(np.rint(np.geomspace(1, 131_071, 500)))
for base in bases:
    ax.plot(lags, analysis.log_uniform_kernel(lags, base), color="black", lw=1.0, ls="--")
plt.show()

# %%
# The first lag at which equal content scores below 0:

for base in (1e4, 5e5):
    print(f"base {base:g}: {analysis.first_negative_lag(rfrope.geometric(64, base=base), 131_071)}")
