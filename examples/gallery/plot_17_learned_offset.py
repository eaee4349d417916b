"""
Phases that learn an offset
===========================

Training moves the phase of each block to the offset of the head, unless rivals on one side push it elsewhere.
"""

import csv
import math
import pathlib

import matplotlib.pyplot as plt

# %%
# ``python experiments/learned_offset.py`` trains heads that copy the token L positions back, and writes how far each
# block ends from L times its frequency. Here are the blocks of the ladder, by their frequency; large points are blocks
# that can tell the offset, faint ones those that cannot.

written = pathlib.Path("experiments/results/learned_offset.csv")
lines = next(one for one in (written, pathlib.Path("../..") / written) if one.is_file()).read_text("utf-8").splitlines()
rows = [row for row in csv.DictReader(lines[1:]) if row["frequencies"] == "geometric"]
kinds = list(dict.fromkeys(row["keys"] for row in rows))
fig, axes = plt.subplots(1, len(kinds), figsize=(8.4, 3.9), sharey=True, layout="constrained")
for ax, kind in zip(axes, kinds, strict=True):
    for length, colour, marker in (("1", "#0072B2", "o"), ("4", "#D55E00", "s"), ("12", "#009E73", "^")):
        one = [row for row in rows if (row["keys"], row["L"]) == (kind, length)]
        x, y, line = ([float(row[name]) for row in one] for name in ("frequency", "miss", "closed form"))
        tells = [float(row["weight"]) >= 0.5 for row in one]
        ax.plot(x, line, color=colour, lw=1.0)
        for chosen, style in ((True, {"ms": 5.5, "label": f"L = {length}"}), (False, {"ms": 3.0, "alpha": 0.45})):
            points = [pair for pair, sure in zip(zip(x, y, strict=True), tells, strict=True) if sure == chosen]
            ax.plot(*zip(*points, strict=True), marker, color=colour, mew=0, ls="", **style)
    ax.axhline(0.0, color="0.35", lw=0.8)
    ax.set(xscale="log", xlabel="frequency (radians per position)", title=f"keys {kind}")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set(ylabel="phase minus L times the frequency", ylim=(-3.3, 3.3))
axes[0].set_yticks([-math.pi, -math.pi / 2, 0, math.pi / 2, math.pi], ["−π", "−π/2", "0", "π/2", "π"])
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
plt.show()

# %%
# The lines are where a closed form says that they settle (see the page on learned frequencies and phases).
