"""
One draw is not the mean
========================

The score of a real query and key against lag: closed-form mean, its standard deviation over draws, and eight draws.
"""

import matplotlib.pyplot as plt
import numpy as np

import rfrope
from rfrope.data import smollm2_heads

# %%
# q and k come from an attention head of SmolLM2-135M-Instruct, before rotation. `rfrope.expected_score` is
# ``(q . k) Φ``; `rfrope.score_variance` says how far one draw of the frequencies is from it.

heads = smollm2_heads()
q, k = heads["previous_q"][60].astype(float), heads["previous_k"][59].astype(float)
kernel = rfrope.kernel("matern", nu=1.5, scale=32.0)
lags = -np.arange(0, 129)
mean = rfrope.expected_score(q, k, lags, kernel)
deviation = np.sqrt(rfrope.score_variance(q, k, lags, kernel))

fig, ax = plt.subplots(figsize=(6, 4.0), layout="constrained")
band = ax.fill_between(lags, mean - deviation, mean + deviation, color="#0072B2", alpha=0.25, lw=0)
for seed in range(8):
    frequencies = rfrope.sample(kernel, 32, rng=seed)
    draws = rfrope.scores(q[None], np.tile(k, (len(lags), 1)), np.array([0]), lags, frequencies)[0]
    (draw,) = ax.plot(lags, draws, color="#E69F00", lw=0.8)
(middle,) = ax.plot(lags, mean, color="black", lw=1.8)
names = {"mean over draws": middle, "± one standard deviation": band, "eight draws": draw}
fig.legend(names.values(), names, loc="outside upper center", ncols=3, frameon=False)
ax.set(xlabel="lag, key minus query (positions)", ylabel="score")
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The deviation as a multiple of the mean, at three lags:

for lag in (1, 16, 64):
    print(f"lag -{lag}: {deviation[lag] / abs(mean[lag]):.1f}")
