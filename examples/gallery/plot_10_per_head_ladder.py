"""
A scale for each head
=====================

Eight heads that see from 8 to 1024 positions, in one call.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope

# %%
# ``ladder=(first, last)`` spreads the scale of a kernel over the heads at equal ratios. Frequencies have the shape
# (heads, D, 1), and `rfrope.Rope.rotate` gives each head its own.

rope = rfrope.design("matern(nu=1.5)", head_dim=64, context=4096, heads=8, ladder=(8.0, 1024.0), rng=0)
print(rope.frequencies.shape)
lags = np.unique(np.rint(np.geomspace(1, 4095, 300)))
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
curves = rfrope.analysis.mean_kernel(lags[:, None], rope)
waves = np.sort(rfrope.analysis.wavelengths(rope))
for head, (curve, wave) in enumerate(zip(curves, waves, strict=True)):
    colour = plt.colormaps["viridis"](head / 7)
    left.semilogx(lags, curve, color=colour)
    right.semilogy(wave, ".", color=colour)
left.set(xlabel="lag (positions)", ylabel="mean kernel")
right.set(xlabel="block, by wavelength", ylabel="wavelength (positions)")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()
