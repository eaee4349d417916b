"""
From a kernel to an engine
==========================

Frequencies as a config, as a GGUF's tensor or as an ONNX cache, and what the engine's own arithmetic loses.
"""

import matplotlib.pyplot as plt

import rfrope
from rfrope import engines

# %%
# `rfrope.engines.export` gives the data, ``engines.write`` the file; `rfrope.engines.rounding` says what is lost.

rope = rfrope.design("matern(nu=1.5, scale=256)", head_dim=64, context=32_768, rng=0)
print([engine.name for engine in engines.records() if engine.format])
print(list(engines.export(rope, "transformers")))
for name in ("transformers", "vllm", "llama.cpp"):
    print(f"{name}: {engines.rounding(rope, name)}")

# %%
# The frequencies that all of them carry:

fig, ax = plt.subplots(figsize=(6, 3.7), layout="constrained")
rfrope.plotting.wavelengths({"Matérn 3/2": rope, "base 10000": rfrope.geometric(32)}, context=32_768, ax=ax)
plt.show()
