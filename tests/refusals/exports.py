"""Exports: what an engine cannot carry, and options that it does not take."""

from dataclasses import replace

import numpy as np

import rfrope
from rfrope import Rope, engines, models

ROPE = Rope(rfrope.geometric(8), context=300)
SECTIONS = Rope(rfrope.geometric(8), sections=(4, 2, 2), context=8)
AXES = rfrope.mrope(rfrope.geometric(8), (4, 2, 2))
NEIGHBOURS = replace(ROPE, pairing="interleaved")
WIDER = replace(ROPE, head_dim=24)
SHARED, LOUD, QUIET = (replace(ROPE, attention_factor=factor) for factor in (1.1, 2.0, 0.9))
(LLAMA,) = rfrope.from_config({"model_type": "llama", "head_dim": 16})
(GLM,) = rfrope.from_config({"model_type": "glm4", "head_dim": 32})
(GEMMA,) = rfrope.from_config({"model_type": "gemma", "head_dim": 16, "max_position_embeddings": 300})
ANYWHERE = ("transformers", "llama.cpp", "ONNX")
SETLESS = [one.name for one in engines.records() if one.format and not (one.format.heads or one.format.any_rope)]
CARRIED = [  # the Rope, the engine, and why it does not carry it
    *((SECTIONS, one, "it has 3 position axes; for text alone, pass replace(rope, sections=None)") for one in ANYWHERE),
    *((AXES, one, "it has 3 position axes, and the engine has one; ") for one in ANYWHERE),
    *((AXES, one, "as in text, export frequencies.sum(-1)") for one in ANYWHERE),
    *((Rope(np.ones(4), pairing=None, context=8), one, "its pairing is None") for one in ANYWHERE),
    *((Rope(np.ones((2, 8, 1)), context=8), one, "(2, 8, 1), one set per head, but the engine") for one in SETLESS),
    (NEIGHBOURS, "vLLM", "it pairs 'interleaved', and the engine only 'half'"),
    (SHARED, "MLX", "its attention factor 1.1 would be dropped"),
    (QUIET, "MLX-LM", "its attention factor is 0.9, and MLX-LM computes only factors of 1"),
    (LOUD, "MLX-LM", "its attention factor 2.0 needs an original context below 8 positions"),
    (WIDER, "MLX-LM", "its classes turn whole heads, and the Rope turns 16 features of 24"),
    (replace(GEMMA, pairing="half"), "MLX-LM", "its class of 'gemma' was not observed to read divisors"),
    (NEIGHBOURS, "transformers", "most classes of transformers pair halves"),
    (replace(GLM, pairing="half"), "transformers", "the class of 'glm4' pairs 'interleaved', and the Rope 'half'"),
    (replace(LLAMA, head_dim=24), "transformers", "the class of 'llama' turns whole heads, and the Rope turns 16"),
    (WIDER, "llama.cpp", "llama turns whole heads, and the Rope turns 16 features of 24"),
]

LAYERED = {"model_type": "gemma3_text", "num_hidden_layers": 4, "head_dim": 16, "max_position_embeddings": 512}

ROWS = [
    *(
        (lambda rope=rope, to=to: engines.export(rope, to), ValueError, (f"rope cannot be exported to {to}: ", why))
        for rope, to, why in CARRIED
    ),
    (lambda: engines.export(models.list_layers(LAYERED), "vLLM"), TypeError,
     "rope is the layers of a model; expected one of its ropes at a time"),
    *(
        (lambda to=to: engines.export([ROPE, ROPE], to), ValueError, "rope has 2 Ropes, one per layer, but engines use")
        for to in ("transformers", "llama.cpp", "MLX")
    ),
    (lambda: engines.export(ROPE, "vlm"), ValueError, "is 'vlm'; did you mean 'vLLM'? Expected one of 'transformers'"),
    (lambda: engines.export(ROPE, "mlx", base=1e4), ValueError, "base is 10000.0, which MLX does not use; expected no"),
    (lambda: engines.export(ROPE, "json", context=8), ValueError, "context is 8, which json does not use"),
    (lambda: engines.export(ROPE, "llama.cpp", architecture="qwen3"), ValueError, "is 'qwen3', whose loader"),
    *(
        (
            lambda rope=rope: engines.export(rope, "llama.cpp", architecture="gemma4"),
            ValueError,
            f"the attention factor {rope.attention_factor} would multiply the sliding layers of gemma4 too",
        )
        for rope in (SHARED, QUIET)
    ),
    (lambda: engines.write("a.txt", ROPE, "vllm"), ValueError, "'a.txt'; expected for vLLM a name that ends in .json"),
    (lambda: engines.write("a.npz", ROPE, "mlx", model="a"), ValueError, "model is 'a', but nothing is copied for MLX"),
    (lambda: engines.write("a.gguf", ROPE, "llama.cpp"), ValueError, "model is None; expected for llama.cpp the GGUF"),
    (lambda: engines.write("a.json", ROPE, "vllm", part="x"), ValueError, "part is 'x', but model is None; expected"),
    (lambda: engines.write("a.json", ROPE, "vllm", model="a", part=3), TypeError, "part is 3; expected the name of a"),
]  # fmt: skip
