"""
Schemes for longer contexts, before and after
=============================================

What linear, NTK, YaRN and Llama 3 scaling do to the wavelengths of a head, and to its mean kernel.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope
from rfrope import analysis, scaling

# %%
# A head of width 128 with base 10 000, trained on 4096 positions and stretched eight times.

before = rfrope.geometric(64)
after = {
    "linear": scaling.linear(before, 8.0),
    "NTK": scaling.ntk(before, 8.0),
    "YaRN": scaling.yarn(before, 8.0, original_max_position_embeddings=4096),
    "Llama 3": scaling.llama3(
        before, 8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=4096
    ),
}
colours = ("#D55E00", "#009E73", "#0072B2", "#CC79A7")
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
for (name, rope), colour, style in zip(after.items(), colours, ("-", "--", "-", "-."), strict=True):
    left.plot(analysis.wavelengths(rope) / analysis.wavelengths(before), color=colour, ls=style, label=name)
lags = np.unique(np.rint(np.geomspace(1, 32_767, 400)))
right.semilogx(lags, analysis.mean_kernel(lags, before), color="black", lw=1.4, label="before")
for (name, rope), colour in zip(after.items(), colours, strict=True):
    right.semilogx(lags, analysis.mean_kernel(lags, rope), color=colour, lw=1.0, label=name)
left.set(xlabel="block", ylabel="wavelength, times that before", title="how much each block is slowed")
right.set(xlabel="lag (positions)", ylabel="mean kernel", title="what equal content scores")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
plt.show()

# %%
# YaRN also multiplies scores, which the curves leave out:

for name, rope in after.items():
    print(f"{name}: scores times {rope.attention_factor**2:.3f}")
