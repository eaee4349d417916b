"""
Choose a kernel
===============

Families that fall to one half at the same lag differ in how they begin and how they end.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope

# %%
# A Gaussian is flat near 0 and then gone; an exponential tells neighbours apart at once; a rational quadratic keeps a
# tail. Each is rescaled so that it is one half at lag 64.

texts = {
    "Gaussian": "gaussian(scale=1)",
    "Matérn 3/2": "matern(nu=1.5, scale=1)",
    "exponential": "exponential(scale=1)",
    "rational quadratic": "rational_quadratic(alpha=0.5, scale=1)",
}
lags = np.arange(0, 513)
fine = np.linspace(0.0, 8.0, 80_001)
fig, ax = plt.subplots(figsize=(6, 3.7), layout="constrained")
for (name, text), colour in zip(texts.items(), ("#0072B2", "#009E73", "#D55E00", "#CC79A7"), strict=True):
    half = fine[np.argmax(rfrope.kernels.parse(text)(fine) < 0.5)]
    kernel = rfrope.kernels.parse(text.replace("scale=1", f"scale={64.0 / half:.6g}"))
    values = kernel(lags)
    ax.plot(lags, values, color=colour, label=f"{name}: {values[8]:.3f} at 8, {values[512]:.2g} at 512")
ax.axhline(0.5, color="0.5", lw=0.6)
ax.set(xlabel="lag (positions)", ylabel="Φ")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()

# %%
# ``rfrope kernels`` lists all of them, and `rfrope.kernels.parse` reads such a text. Products and mixtures of kernels
# are kernels too.

near, far = rfrope.kernel("gaussian", scale=8.0), rfrope.kernel("matern", nu=1.5, scale=256.0)
print(rfrope.kernels.mixture([0.5, 0.5], [near, far]))
