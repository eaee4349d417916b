"""
A head that looks at the previous token
=======================================

Positions alone can make a head: constant content, turned by a shift, sharpened by a temperature.
"""

import matplotlib.pyplot as plt

import rfrope
from rfrope import heads, plotting

# %%
# `rfrope.heads.temperature_for_mass` says how sharp the head has to be for nine tenths of its attention to lie at lag
# -1, over a context of 1024; `rfrope.heads.positional_attention` is what it then attends to.

ladder = rfrope.geometric(64)
temperature = heads.temperature_for_mass(0.9, ladder, context=1024)
profile = heads.positional_attention(ladder, 1024, offset=-1, temperature=temperature)
fig, ax = plt.subplots(figsize=(6, 3.7), layout="constrained")
plotting.attention(profile, ax=ax)
ax.set(xscale="linear", xlim=(-12.5, 0.5))  # beyond, there is nothing to see
plt.show()
print(f"temperature {temperature:.4f}; attention at lag -1: {profile.mass:.3f}")

# %%
# The frequencies decide how hard that is: the same mass asks for another temperature where a kernel is narrower.

for name, frequencies in {
    "ladder of base 10 000": ladder,
    "ladder of base 500 000": rfrope.geometric(64, base=5e5),
    "Gaussian of scale 4": rfrope.sample("gaussian(scale=4)", 64, design="quantile"),
}.items():
    print(f"{name}: {heads.temperature_for_mass(0.9, frequencies, context=1024):.4f}")
