"""
An atlas of all heads of a model
================================

How much the lag explains in each of the 270 heads of SmolLM2-135M-Instruct, why heads look at the first token, and
which blocks need no rotation.
"""

import csv
import pathlib

import matplotlib.pyplot as plt
import numpy as np

from rfrope import heads
from rfrope.data import smollm2_heads

# %%
# ``rfrope heads MODEL --texts FILE... --table heads_smollm2.csv`` reads every head on eight pages of these docs
# (`rfrope.heads.atlas`), each number with its error over the pages. The lag alone explains more than half of the
# variance of the logits in few heads. The heads that it explains best look at the previous tokens.

places = (pathlib.Path(one, "docs", "_data", "heads_smollm2.csv") for one in (".", "../.."))
lines = next(one for one in places if one.is_file()).read_text("utf-8").splitlines()
rows = list(csv.DictReader(lines[1:]))
table = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
fig, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.9), layout="constrained")
number = int(table["head"].max()) + 1
image = left.imshow(table["lag_explained"].reshape(-1, number).T, aspect="auto", vmin=0.0, vmax=1.0, cmap="cividis")
fig.colorbar(image, ax=left, label="explained by the lag")
left.set(xlabel="layer", ylabel="head", title="variance of the logits")
strong = table["lag_explained"] > 0.4
right.errorbar(
    table["offset"][strong],
    table["lag_explained"][strong],
    xerr=table["offset_stderr"][strong],
    yerr=table["lag_explained_stderr"][strong],
    fmt="o",
    markersize=3,
)
right.set_xscale("symlog", linthresh=4.0)
right.set(xlabel="offset (lag of the peak)", ylabel="explained by the lag", title="where these heads look")
plt.show()

# %%
# The first key can score above the others for two reasons: it differs from them, or slowly turning blocks favour
# distant keys. In this model the key itself is the reason in every head that has more than half of its attention
# there. On the right, half of the blocks do not rotate. The logits change less if these blocks are chosen by the
# predicted change than if they are those with the shortest q and k.

fig, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.9), layout="constrained")
sinks = table["sink"] > 0.5
for chosen, label in ((~sinks, "other heads"), (sinks, "attention above 1/2")):
    left.plot(table["sink_slow"][chosen], table["sink_key"][chosen], "o", markersize=3, label=label)
left.axline((0.0, 0.0), slope=1.0, color="0.6", linewidth=0.8)
left.set(xlabel="by slow blocks", ylabel="by the key itself", title="advantage of the first key")
left.legend()
errors = {"xerr": table["norm_change_half_stderr"], "yerr": table["change_half_stderr"]}
right.errorbar(table["norm_change_half"], table["change_half"], **errors, fmt="o", markersize=3)
right.axline((0.1, 0.1), (1.0, 1.0), color="0.6", linewidth=0.8)
right.set(
    xscale="log", yscale="log", xlabel="chosen by norms", ylabel="chosen by the prediction", title="change of a logit"
)
plt.show()

# %%
# Shares by frequency, with their errors, of the strongest previous-token head, from the queries and keys that ship with
# the package: four parts of one text.

held = smollm2_heads()
q, k = (held[f"previous_{name}"][:168].reshape(4, 1, 42, 64) for name in "qk")
found = heads.atlas(q, k, held["inv_freq"])
fig, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
ax.bar(np.arange(32), found.share.value[0], yerr=2.0 * found.share.stderr[0])
ax.set(xlabel="block, fastest first", ylabel="share of the variance")
plt.show()
print(found)
