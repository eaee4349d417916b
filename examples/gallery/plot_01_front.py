"""
A designed kernel, in one picture
=================================

Sets of 32 frequencies, drawn or optimised, and how closely each follows the kernel that was asked for.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope

# %%
# A head of width 64 has 32 frequencies. `rfrope.design` chooses them for a context; `rfrope.sample` draws them
# independently, as random Fourier features are. The mean kernel is what equal content scores, averaged over contents.

rope = rfrope.design("matern(nu=1.5, scale=64)", head_dim=64, context=512, design="optimised")
kernel = rfrope.kernels.parse(rope.source.kernel)
drawn = rfrope.sample(kernel, 32, rng=0)

lags = np.arange(512)
mean_kernel = rfrope.analysis.mean_kernel
fig, ax = plt.subplots(figsize=(6, 3.7), layout="constrained")
ax.plot(lags, mean_kernel(lags, drawn), color="#E69F00", lw=1.2)
ax.plot(lags, mean_kernel(lags, rope), color="#0072B2", lw=1.6)
ax.plot(lags, kernel(lags), color="black", lw=1.2, ls="--")
ax.annotate("32 independent draws", (300, 0.24), color="#B87300")
ax.annotate("32 designed frequencies", (300, -0.13), color="#0072B2")
ax.annotate("Φ, Matérn 3/2", (95, 0.62))
ax.set(xlabel="lag (positions)", ylabel="mean kernel", ylim=(-0.35, 1.02))
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Root mean square error over all lags of the context:

for name, frequencies in (("designed", rope), ("drawn", drawn)):
    error = mean_kernel(lags, frequencies) - kernel(lags)
    print(f"{name}: {np.sqrt(np.mean(error**2)):.4f}")
