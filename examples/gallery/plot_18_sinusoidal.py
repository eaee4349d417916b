"""
The sinusoidal embedding and its shifts
=======================================

One matrix, the same at every position, moves the embedding; its products are the mean kernel of RoPE.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope
from rfrope import analysis, rotation

# %%
# `rfrope.sinusoidal` stacks sine and cosine of the same frequencies that RoPE turns by;
# `rfrope.rotation.shift_matrix` is the matrix that moves it by a number of positions.

omega, positions = rfrope.geometric(16), np.arange(64)
embedding = rfrope.sinusoidal(positions, omega)
moved = embedding @ rotation.shift_matrix(9, omega).T
print(f"largest difference: {np.abs(moved - rfrope.sinusoidal(positions + 9, omega)).max():.1e}")

# %%
# The product of two positions depends on their lag alone: D times the mean kernel.

products = embedding @ embedding[32]
lags = positions - 32
fine = np.linspace(lags[0], lags[-1], 500)
fig, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5), layout="constrained", width_ratios=(1.15, 1.0))
image = left.imshow(embedding.T, aspect="auto", cmap="RdBu", vmin=-1.0, vmax=1.0, interpolation="nearest")
left.axhline(15.5, color="black", lw=1.0)
left.set(xlabel="position", title="the embedding", yticks=(7.5, 23.5))
left.set_yticklabels(["sines of\n16 blocks", "cosines of\n16 blocks"])
fig.colorbar(image, ax=left, ticks=(-1, 0, 1))
right.plot(fine, analysis.mean_kernel(fine, omega), color="#D55E00", lw=1.0, label="mean kernel")
right.plot(lags, products / 16, "o", ms=3.5, color="#0072B2", label="product / D")
right.set(xlabel="lag to position 32 (positions)", ylim=(0, 1.05), title="products with position 32")
right.legend(frameon=False, loc="lower center", ncols=2)
right.spines[["top", "right"]].set_visible(False)
plt.show()
