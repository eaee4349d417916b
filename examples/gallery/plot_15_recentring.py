"""
Shifts move the centre of a kernel
==================================

Phase shifts move the centre of a kernel and keep its shape. In this way a head can learn to look back.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope
from rfrope import heads

# %%
# `rfrope.heads.phase_shift` turns each block by minus the offset times its frequency. On average over draws the kernel
# is then that of ``kernel.phi(lags - offset)``.

kernel = rfrope.kernel("gaussian", scale=4.0)
frequencies = rfrope.design(kernel, head_dim=64, context=64, design="quantile").frequencies
lags = np.arange(-32, 17)
fig, ax = plt.subplots(figsize=(6, 3.7), layout="constrained")
fine = np.linspace(lags[0], lags[-1], 400)
for offset, colour, side in ((0, "0.4", "left"), (-5, "#0072B2", "right"), (-16, "#D55E00", "right")):
    curve = heads.shifted_mean_kernel(lags, frequencies, heads.phase_shift(offset, frequencies))
    ax.plot(lags, curve, ".", color=colour, ms=4)
    ax.plot(fine, kernel.phi(fine - offset), color=colour, lw=1.0)
    ax.annotate(f"offset {offset}".replace("-", "−"), (offset, 1.03), color=colour, ha=side)
ax.set(xlabel="lag, key minus query (positions)", ylabel="mean kernel", ylim=(-0.1, 1.1))
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The sinusoidal embedding has the same property: a fixed matrix, the same at every position, moves it.

positions = np.arange(100)
embedding = rfrope.sinusoidal(positions, frequencies)
moved = embedding @ rfrope.rotation.shift_matrix(5, frequencies).T
print(f"largest difference: {np.abs(moved - rfrope.sinusoidal(positions + 5, frequencies)).max():.1e}")
