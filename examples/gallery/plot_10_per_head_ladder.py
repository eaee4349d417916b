"""
A scale for each head
=====================

Eight heads that see from 8 to 1024 positions, in one call.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope
from rfrope import plotting

# %%
# ``ladder=(first, last)`` spreads the scale of a kernel over the heads at equal ratios. Frequencies have the shape
# (heads, D, 1), and `rfrope.Rope.rotate` gives each head its own.

rope = rfrope.design("matern(nu=1.5)", head_dim=64, context=4096, heads=8, ladder=(8.0, 1024.0), rng=0)
print(rope.frequencies.shape)
lags = np.unique(np.rint(np.geomspace(1, 4095, 300)))
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
curves = rfrope.analysis.mean_kernel(lags[:, None], rope)
for head, curve in enumerate(curves):
    left.semilogx(lags, curve, color=plt.colormaps["viridis"](head / 7))
left.set(xlabel="lag (positions)", ylabel="mean kernel")
left.spines[["top", "right"]].set_visible(False)
plotting.frequencies(rope, ax=right)
plt.show()
