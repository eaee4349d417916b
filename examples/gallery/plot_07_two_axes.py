"""
Kernels of images
=================

In two axes a kernel is a picture: axial ladders favour the axes, an isotropic law does not.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope

# %%
# 32 blocks for lags up to 24 patches in each direction. `rfrope.axial` gives half of them to each axis, and
# `rfrope.golden_gate` spreads their directions evenly. The last set is drawn from a Gaussian in two axes.

kernel = rfrope.kernel("gaussian", scale=6.0, ndim=2)
sets = {
    "axial ladders": rfrope.axial(rfrope.geometric(16, base=100.0), rfrope.geometric(16, base=100.0)),
    "golden gate": rfrope.golden_gate(32, low=0.05, high=1.0),
    "Gaussian, stratified": rfrope.design(kernel, head_dim=64, context=(25, 25), rng=0),
}
lags = np.arange(-24, 25)
grid = np.stack(np.meshgrid(lags, lags, indexing="ij"), axis=-1)
fig, axes = plt.subplots(1, 4, figsize=(11, 3.2), layout="constrained", sharey=True)
pictures = {name: rfrope.analysis.mean_kernel(grid, rope) for name, rope in sets.items()}
pictures["Gaussian, Φ itself"] = kernel(grid)
for ax, (name, values) in zip(axes, pictures.items(), strict=True):
    image = ax.imshow(values, extent=(-24.5, 24.5, 24.5, -24.5), vmin=-1, vmax=1, cmap="PuOr")
    ax.set(title=name, xlabel="lag in columns")
axes[0].set_ylabel("lag in rows (patches)")
fig.colorbar(image, ax=axes, label="mean kernel")
plt.show()

# %%
# The score of equal content 12 patches away, along a row and along the diagonal (8 rows and 9 columns):

for name, values in pictures.items():
    print(f"{name}: {values[24, 36]:.2f} along a row, {values[24 + 8, 24 + 9]:.2f} on the diagonal")

# %%
# A video has three axes: rows and columns of a frame, and time. The figure has slices at three lags in time, for one
# ladder per axis, and for a Matérn kernel that is isotropic within a frame and half as long in time.

video = rfrope.kernel("matern", nu=1.5, scale=(6.0, 6.0, 3.0), ndim=3)
sets = {
    "axial ladders": rfrope.axial(*(rfrope.geometric(16, base=100.0) for _ in range(3))),
    "Matérn, Sobol'": rfrope.design(video, head_dim=96, context=(25, 25, 9), rng=0),
}
fig, axes = plt.subplots(len(sets), 3, figsize=(7.4, 5.0), layout="constrained", sharex=True, sharey=True)
for row, (name, rope) in zip(axes, sets.items(), strict=True):
    for ax, time in zip(row, (0, 2, 6), strict=True):
        lag = np.concatenate([grid, np.full((*grid.shape[:2], 1), time)], axis=-1)
        values = rfrope.analysis.mean_kernel(lag, rope)
        image = ax.imshow(values, extent=(-24.5, 24.5, 24.5, -24.5), vmin=-1, vmax=1, cmap="PuOr")
        ax.set_title(f"{time} frames apart", fontsize="medium")
    row[0].set_ylabel(f"{name}\nlag in rows")
for ax in axes[-1]:
    ax.set_xlabel("lag in columns")
fig.colorbar(image, ax=axes, label="mean kernel")
plt.show()
