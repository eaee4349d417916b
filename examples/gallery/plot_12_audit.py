"""
Audit of a broken model
=======================

A table of frequencies in half precision, and one that forgot its scheme: what is wrong, and from which position on.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope
from rfrope import models

# %%
# The config asks for YaRN; the two buffers are what a faulty loader left in the model.

scheme = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
config = {"model_type": "qwen3", "head_dim": 128, "max_position_embeddings": 131072, "rope_parameters": scheme}
(rope,) = rfrope.from_config(config)
broken = {"half precision": rope.frequencies.astype(np.float16), "plain RoPE": rfrope.geometric(64, base=1e6)}
for name, inv_freq in broken.items():
    print(name, models.audit(inv_freq, config), sep="\n", end="\n\n")

# %%
# The error that they cause in the score of equal content:

lags = np.unique(np.rint(np.geomspace(1, 131_071, 600)))
meant = rfrope.analysis.mean_kernel(lags, rope)
fig, ax = plt.subplots(figsize=(6, 3.7), layout="constrained")
for (name, inv_freq), colour in zip(broken.items(), ("#D55E00", "#0072B2"), strict=True):
    error = np.abs(rfrope.analysis.mean_kernel(lags, inv_freq.astype(np.float64)) - meant)
    ax.loglog(lags, np.maximum.accumulate(error), color=colour, label=name)
ax.set(xlabel="lag (positions)", ylabel="largest error of the score so far")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()
