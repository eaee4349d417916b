"""
A kernel that is learned in training
====================================

Training moves two numbers, the scale and the smoothness of a Matérn kernel, and all frequencies follow.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import rfrope
from rfrope import designs

# %%
# The task: predict each value of a noisy curve from its neighbours, by attention to the lag alone.
# `rfrope.designs.learned_kernel` returns the frequencies as a function of the parameters of the kernel.

law = designs.learned_kernel(rfrope.design("matern(nu=1.5, scale=80)", head_dim=64, context=128, rng=0))
rng = np.random.default_rng(0)
clean = (
    4.0 * rfrope.sinusoidal(np.arange(2048.0), rfrope.sample("gaussian(scale=12)", 64, rng=1)) @ rng.normal(size=128)
)
noisy = clean + np.std(clean) * rng.normal(size=2048)
lags = np.arange(-127, 128)
windows = np.lib.stride_tricks.sliding_window_view(noisy, 255)


def loss(values):
    """Return the mean squared error of the prediction; a token does not see itself."""
    frequencies = law.frequencies(dict(zip(law.parameters, values, strict=True)))
    weights = np.where(lags == 0, 0.0, np.exp(8.0 * rfrope.analysis.mean_kernel(lags, frequencies)))
    return np.mean((windows @ (weights / weights.sum()) - clean[127:-127]) ** 2) / np.var(clean)


start = [float(np.squeeze(one)) for one in law.parameters.values()]
steps = [start]
found = minimize(loss, start, method="Nelder-Mead", callback=lambda x: steps.append(x.copy()), options={"maxiter": 40})

# %%
# The kernel before, on the way and at the end; each has the same 32 points of its design.

fig, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5), layout="constrained")
far = np.arange(128)
for number, colour in ((0, "0.6"), (8, "#56B4E9"), (len(steps) - 1, "#0072B2")):
    omega = law.frequencies(dict(zip(law.parameters, steps[number], strict=True)))
    left.plot(far, rfrope.analysis.mean_kernel(far, omega), color=colour, lw=1.6, label=f"after {number} steps")
left.set(xlabel="lag", ylabel="mean kernel")
left.legend(frameon=False)
right.plot([loss(one) for one in steps], color="#D55E00", lw=1.6)
right.set(xlabel="step", ylabel="error, as a share of the variance")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()
print({name: round(float(value), 2) for name, value in zip(law.parameters, found.x, strict=True)})

# %%
# In PyTorch, ``RotaryEmbedding(rope, learnable="kernel")`` learns these parameters by gradients, with the model.
