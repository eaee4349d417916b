"""
Speed over time
===============

How long some functions took at earlier revisions, as multiples of the newest of them.
"""

import csv
import datetime
import pathlib

import matplotlib.pyplot as plt

# %%
# ``python -m benchmarks.compare`` measured it and wrote the file; the page on benchmarks says how, and what noise is.

places = (pathlib.Path(one, "docs", "_data", "benchmarks.csv") for one in (".", "../.."))
lines = next(one for one in places if one.is_file()).read_text("utf-8").splitlines()
rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
rows = [row for row in rows if row["ratio"] and row["revision"] != "control"]
dates = {row["revision"]: row["date"] for row in rows}
revisions = list(dates)  # from the oldest
jobs = list(dict.fromkeys(row["job"] for row in rows))

# %%
# A bar is the interval of the ratio; 1 is the newest revision. Jobs that gained most stand on top.

gains = {job: max(float(row["ratio"]) for row in rows if row["job"] == job) for job in jobs}
jobs.sort(key=gains.get, reverse=True)
fig, ax = plt.subplots(figsize=(7.4, 5.4), layout="constrained")
for number, (revision, colour) in enumerate(zip(revisions, ("#56B4E9", "#0072B2", "#D55E00"), strict=False)):
    day = datetime.date.fromisoformat(next(row["date"] for row in rows if row["revision"] == revision))
    label = f"{day:%d %B %Y}" + (", later" if number and dates[revisions[number - 1]] == day.isoformat() else "")
    for row in (row for row in rows if row["revision"] == revision):
        height = jobs.index(row["job"]) + 0.2 * (number - 0.5 * (len(revisions) - 1))
        ax.plot([float(row["low"]), float(row["high"])], [height, height], color=colour, lw=2.5, solid_capstyle="butt")
        ax.plot(float(row["ratio"]), height, "o", color=colour, ms=5, label=label)
        label = None
ax.axvline(1.0, color="0.35", lw=1.0, ls="--")
ax.annotate("newest", (1.0, 1.0), (4, -4), xycoords=("data", "axes fraction"), textcoords="offset points", va="top")
ax.set(xscale="log", xlabel="time, as a multiple of that at the newest revision", yticks=range(len(jobs)))
ax.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
ax.xaxis.minorticks_off()
ax.set_yticklabels(jobs)
ax.invert_yaxis()
ax.grid(axis="y", color="0.5", alpha=0.25, lw=0.5)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(loc="lower right", frameon=False)
plt.show()
