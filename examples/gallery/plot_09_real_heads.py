"""
What real heads score by lag
============================

Mean scores of two heads of SmolLM2-135M-Instruct against the lag, with the model's own frequencies.
"""

import matplotlib.pyplot as plt
import numpy as np

from rfrope import heads
from rfrope.data import smollm2_heads

# %%
# One head looks at the previous token, whatever the tokens are: its mean score over all pairs of a query and a key
# (`rfrope.heads.profile` scores every pair at every lag) is highest there. The other, an induction head, looks for
# what followed the same token before. That depends on content, so its mean over all pairs has no peak at the lag of 59
# tokens at which the text repeats itself.

held = smollm2_heads()
fig, axes = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
for ax, (name, title) in zip(axes, {"previous": "previous token", "induction": "induction"}.items(), strict=True):
    q, k, lags = held[f"{name}_q"], held[f"{name}_k"], np.arange(-90, 1)
    profile = heads.profile(q, k, lags, held["inv_freq"], scale=1 / 8)
    ax.fill_between(lags, profile.mean - profile.spread, profile.mean + profile.spread, alpha=0.25, lw=0)
    ax.plot(lags, profile.mean, ".-")
    ax.set(xlabel="lag, key minus query (positions)", ylabel="mean score, and its spread over pairs", title=title)
plt.show()

# %%
# The lag at which the first head looks, from its q and k, with a standard error:

found = heads.effective_offset(held["previous_q"], held["previous_k"], held["inv_freq"], max_lag=90)
print(f"lag {float(found.offset):.2f} ± {float(found.stderr):.2f}")
