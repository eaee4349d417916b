"""
Choose a kernel
===============

Families that fall to one half at the same lag differ in how they begin and how they end.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope

# %%
# A Gaussian is flat near lag 0 and almost 0 at long lags. An exponential falls from the first lag on, and a rational
# quadratic keeps a long tail. Each is rescaled so that it is one half at lag 64. The right panel has the same curves
# on a logarithmic axis.

texts = {
    "Gaussian": ("gaussian(scale=1)", "#0072B2", (128, 3e-3), "right"),
    "Matérn 3/2": ("matern(nu=1.5, scale=1)", "#009E73", (322, 1.2e-3), "left"),
    "exponential": ("exponential(scale=1)", "#D55E00", (395, 2.2e-2), "left"),
    "rational quadratic": ("rational_quadratic(alpha=0.5, scale=1)", "#CC79A7", (330, 0.17), "left"),
}
lags, fine, kernels = np.arange(0, 513), np.linspace(0.0, 8.0, 80_001), {}
fig, (near, far) = plt.subplots(1, 2, figsize=(8.4, 3.7), layout="constrained")
for name, (text, colour, place, side) in texts.items():
    half = fine[np.argmax(rfrope.kernels.parse(text)(fine) < 0.5)]
    kernels[name] = rfrope.kernels.parse(text.replace("scale=1", f"scale={64.0 / half:.6g}"))
    near.plot(lags[:161], kernels[name](lags[:161]), color=colour)
    far.semilogy(lags, kernels[name](lags), color=colour)
    far.annotate(name, place, color=colour, ha=side)
near.plot(64, 0.5, "o", color="black", ms=4)
near.annotate("one half at lag 64", (64, 0.5), (8, 2), textcoords="offset points")
near.set(xlabel="lag (positions)", ylabel="Φ", ylim=(0, 1.02), xlim=(0, 160))
far.set(xlabel="lag (positions)", ylim=(1e-5, 1.5), xlim=(0, 512))
for ax in (near, far):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The value of each at a short and at a long lag:

for name, kernel in kernels.items():
    print(f"{name}: {kernel(8.0):.3f} at lag 8, {kernel(512.0):.2g} at lag 512")

# %%
# `rfrope.kernels.names` lists all of them, and `rfrope.kernels.parse` reads them as text. Products and mixtures of
# kernels are kernels too.

short, long = rfrope.kernel("gaussian", scale=8.0), rfrope.kernel("matern", nu=1.5, scale=256.0)
print(rfrope.kernels.mixture([0.5, 0.5], [short, long]))
