"""
Exact phases against float32
============================

Positions times frequencies in float32 lose the angle long before position 1 000 000.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope

# %%
# Most code multiplies in float32 and takes the cosine then. `rfrope.rotation_table` removes whole turns first, so only
# the result is rounded. The reference is Python's own integer arithmetic on fractions.

frequencies = rfrope.geometric(64, base=5e5)
positions = np.unique(np.rint(np.geomspace(1, 2**24, 60)).astype(np.int64))
exact, _ = rfrope.rotation_table(positions, frequencies)
naive = np.cos(positions.astype(np.float32)[:, None] * frequencies.astype(np.float32))
rounded, _ = rfrope.rotation_table(positions, frequencies, dtype=np.float32)

fig, ax = plt.subplots(figsize=(6, 3.7), layout="constrained")
ax.loglog(positions, np.abs(naive - exact).max(axis=1), color="#D55E00")
ax.loglog(positions, np.abs(rounded - exact).max(axis=1), color="#0072B2")
ax.annotate("phases in float32", (30, 1e-4), color="#D55E00")
ax.annotate("rfrope, cosines in float32", (30, 1.2e-7), color="#0072B2")
ax.set(xlabel="position", ylabel="largest error of a cosine")
ax.spines[["top", "right"]].set_visible(False)
plt.show()
