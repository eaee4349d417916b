"""
Speed over time
===============

How long some functions took at earlier revisions, as multiples of the newest of them.
"""

import csv
import pathlib

import matplotlib.pyplot as plt

# %%
# ``python -m benchmarks.compare`` measured it and wrote the file; the page on benchmarks says how, and what noise is.

folder = next(one for one in (pathlib.Path("docs"), pathlib.Path("../../docs")) if (one / "benchmarks.csv").is_file())
lines = (folder / "benchmarks.csv").read_text("utf-8").splitlines()
rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
rows = [row for row in rows if row["ratio"] and row["revision"] != "control"]
revisions = sorted({row["revision"]: row["date"] for row in rows}, key=[row["revision"] for row in rows].index)
jobs = list(dict.fromkeys(row["job"] for row in rows))

# %%
# A bar is the interval of the ratio; 1 is the newest revision.

fig, ax = plt.subplots(figsize=(6.4, 5.6), layout="constrained")
colours = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
for number, revision in enumerate(revisions):
    for row in (row for row in rows if row["revision"] == revision):
        height = jobs.index(row["job"]) + 0.16 * (number - 0.5 * (len(revisions) - 1))
        style = {"color": colours[number % 6], "lw": 2.5}
        ax.plot([float(row["low"]), float(row["high"])], [height, height], **style, solid_capstyle="butt")
        label = f"{revision}, {row['date']}" if row["job"] == jobs[0] else None
        ax.plot(float(row["ratio"]), height, "o", color=colours[number % 6], ms=4, label=label)
ax.axvline(1.0, color="0.35", lw=1.0, ls="--")
ax.set(xscale="log", xlabel="time, as a multiple of that at the newest revision", yticks=range(len(jobs)))
ax.set_yticklabels(jobs, fontsize="small")
ax.invert_yaxis()
ax.spines[["top", "right"]].set_visible(False)
fig.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
plt.show()
