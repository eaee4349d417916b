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
# A head of width 128 with base 10 000, trained on 4096 positions and stretched eight times. Single values of a mean
# kernel oscillate from one lag to the next: the right panel shows by how much it rises, averaged over all lags of each
# third of an octave.

before = rfrope.geometric(64)
after = {
    "linear": scaling.linear(before, 8.0),
    "NTK": scaling.ntk(before, 8.0),
    "YaRN": scaling.yarn(before, 8.0, original_max_position_embeddings=4096),
    "Llama 3": scaling.llama3(
        before, 8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=4096
    ),
}
colours = dict(zip(after, ("#D55E00", "#009E73", "#0072B2", "#CC79A7"), strict=True))
places = {"linear": (2, 7.5), "NTK": (25, 3.0), "YaRN": (31, 1.6), "Llama 3": (45, 2.6)}
fig, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.9), layout="constrained")
for name, rope in after.items():
    left.plot(analysis.wavelengths(rope) / analysis.wavelengths(before), color=colours[name])
    left.annotate(name, places[name], color=colours[name], ha="right" if name in ("NTK", "YaRN") else "left")
left.set(xlabel="block", ylabel="wavelength relative to before", title="how much each block is slowed")

lags = np.arange(1, 32_768)
starts = np.unique(np.searchsorted(lags, np.geomspace(1, 32_767, 46)[:-1]))
counts = np.diff(np.append(starts, lags.size))
middles = np.add.reduceat(lags, starts) / counts
for name, rope in after.items():
    change = analysis.mean_kernel(lags, rope) - analysis.mean_kernel(lags, before)
    right.semilogx(middles, np.add.reduceat(change, starts) / counts, color=colours[name])
right.axvline(4096, color="0.5", ls=":", lw=1.0)
right.annotate("trained", (4096, 0.0), (-3, 4), textcoords="offset points", ha="right", color="0.35")
right.axhline(0.0, color="0.35", lw=0.8)
right.set(xlabel="lag (positions)", ylabel="change of the mean kernel", title="score of equal content")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# YaRN also multiplies scores, which the curves leave out:

for name, rope in after.items():
    print(f"{name}: scores times {rope.attention_factor**2:.3f}")
