"""
Phases that learn an offset
===========================

Training moves the phase of each block to the offset that a head looks at, or to where rivals on one side push it.
"""

import csv
import pathlib

import matplotlib.pyplot as plt

# %%
# ``python examples/learned_offset.py`` trains heads that copy the token L positions back, and writes how far each block
# ends from L times its frequency. Here are the blocks of the ladder, by their frequency; large points are blocks that
# can tell the offset.

folder = next(
    one for one in (pathlib.Path("docs"), pathlib.Path("../../docs")) if (one / "learned_offset.csv").is_file()
)
lines = (folder / "learned_offset.csv").read_text("utf-8").splitlines()
rows = [row for row in csv.DictReader(lines[1:]) if row["frequencies"] == "geometric"]
kinds = list(dict.fromkeys(row["keys"] for row in rows))
fig, axes = plt.subplots(1, len(kinds), figsize=(6.4, 3.7), sharey=True, layout="constrained")
for ax, kind in zip(axes, kinds, strict=True):
    for length, colour, marker in (("1", "#0072B2", "o"), ("4", "#E69F00", "s"), ("12", "#009E73", "^")):
        one = [row for row in rows if (row["keys"], row["L"]) == (kind, length)]
        x, y = ([float(row[name]) for row in one] for name in ("frequency", "miss"))
        sizes = [24.0 if float(row["weight"]) >= 0.5 else 5.0 for row in one]
        ax.scatter(x, y, s=sizes, color=colour, marker=marker, lw=0, label=f"L = {length}")
        ax.plot(x, [float(row["closed form"]) for row in one], color=colour, lw=0.8)
    ax.axhline(0.0, color="0.35", lw=0.8)
    ax.set(xscale="log", xlabel="frequency (radians per position)", title=f"keys {kind}")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("phase, less L times the frequency (radians)")
axes[-1].legend(frameon=False, fontsize="small")
plt.show()

# %%
# The lines are where a closed form says that they settle (see the page on learned frequencies and phases).
