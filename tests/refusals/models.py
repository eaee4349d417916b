"""Models: what no probe, audit, comparison or config can make sense of."""

import constructed_models as made_up
import numpy as np

import rfrope
from rfrope import models
from rfrope.models.layer_patterns import count_layers

LADDER = [1.0, 0.5]
TURN = made_up.model(made_up.PLAIN)
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}
GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 8}
UNNUMBERED = models.list_layers({"model_type": "llama", "head_dim": 8})
RATIOS, NAMELESS = {"model_type": "deepseek_v4", "compress_ratios": [7]}, {"model_type": "gpt_oss", "layer_types": [1]}
FLAG = ("no_rope_layers[1] is ", "; expected a whole number")


def one_axis(q, k, positions):
    return TURN(q, k, positions[..., 0])


def of_layers(model_type, **values):
    return models.list_layers({"model_type": model_type, "num_hidden_layers": 3, **values})


ROWS = [
    # probe
    (lambda: models.probe(3, head_dim=8), TypeError, "apply is 3; expected a function"),
    (lambda: models.probe(TURN), ValueError, "head_dim is None; expected the features"),
    (lambda: models.probe(TURN, head_dim=8, heads=4, kv_heads=3), ValueError, "kv_heads is 3; expected a number that"),
    (lambda: models.probe(TURN, head_dim=8, gives="score"), ValueError, "gives is 'score'; did you mean 'scores'"),
    (lambda: models.probe(lambda q, k, p: q, head_dim=8), TypeError, "expected a pair"),
    (lambda: models.probe(lambda q, k, p: (q[..., :4], k), head_dim=8), ValueError,
     "apply gave queries of shape (1, 1, 40, 4); expected (1, 1, 40, 8)"),
    (lambda: models.probe(lambda q, k, p: (q, 3), head_dim=8), TypeError, "for keys; expected an array of real"),
    (lambda: models.probe(lambda q, k, p: q, head_dim=8, gives="scores"), ValueError, "apply gave scores of shape"),
    (lambda: models.probe(TURN, rfrope.Rope(made_up.PLAIN, polar=True)), ValueError, "polar"),
    (lambda: models.probe(one_axis, made_up.QWEN2_VL, axes=1), ValueError, "axes is 1, and expected turns by 3"),
    # audit
    (lambda: models.audit(np.ones(4)), ValueError, "rope is None, and what has no config"),
    (lambda: models.audit({"weights": np.ones(4)}, LADDER), ValueError, "looked for keys called inv_freq"),
    (lambda: models.audit(np.ones((3, 5)), LADDER), ValueError, "expected frequencies"),
    (lambda: models.audit(np.ones((2, 3, 4)), LADDER), ValueError, "expected frequencies"),
    (lambda: models.audit((np.ones((3, 2)), np.ones((4, 2))), LADDER), ValueError, "expected the same"),
    (lambda: models.audit(np.ones(2), np.ones((2, 2, 1))), ValueError, "one axis and one head"),
    (lambda: models.audit(np.array(["a"]), [1.0]), TypeError, "expected real or complex"),
    (lambda: models.audit(np.ones(0), [1.0]), ValueError, "at least one frequency"),
    # compare, diff and relocation
    (lambda: models.compare(LLAMA, ["vlm"]), ValueError,
     "engines[0] is 'vlm'; did you mean 'vLLM'? Expected one of 'tr"),
    (lambda: models.compare(LLAMA, []), ValueError, "engines is empty"),
    (lambda: models.compare(LLAMA, [3]), ValueError, "engines[0] is 3; expected one of"),
    (lambda: models.diff(np.ones((2, 4, 1)), LLAMA), ValueError, "old has frequencies (2, 4, 1); expected (D,)"),
    (lambda: models.diff(LLAMA, {"model_type": "bert"}), ValueError, "describes no RoPE"),
    (lambda: models.diff(LLAMA, rfrope.Rope(np.ones(4), polar=True)), ValueError, "new is polar"),
    (lambda: models.diff(LLAMA, 3), TypeError, "new is 3; expected a config, its path, a Rope, or frequencies"),
    (lambda: models.compare("model.gguf"), ValueError,
     "model.gguf is a GGUF, which llama.cpp alone reads; expected a"),
    (lambda: models.diff("model.gguf", LLAMA), FileNotFoundError, "model.gguf: there is no such file; expected a GGUF"),
    (lambda: models.can_relocate({"model_type": "bert"}), ValueError, "config describes no RoPE"),
    (lambda: models.can_relocate(LLAMA, pairing="both"), ValueError, "pairing is 'both'"),
    # layers
    (lambda: UNNUMBERED.kinds_by_layer(), ValueError, "part is None, and the parts with numbered layers are none"),
    (lambda: models.list_layers(GEMMA).kinds_by_layer("vision"), ValueError, "part is 'vision'; expected one of ''"),
    (lambda: count_layers({"n_layer": -1}), ValueError, "n_layer is -1; expected a whole number from 0"),
    (lambda: of_layers("gpt_oss", layer_types=["full_attention"]), ValueError, "layer_types has 1 entries"),
    (lambda: of_layers("gemma3_text", sliding_window_pattern=0), ValueError, "sliding_window_pattern is 0"),
    (lambda: of_layers("llama4_text", no_rope_layers=[1]), ValueError, "no_rope_layers is [1]; expected"),
    (lambda: of_layers("smollm3", no_rope_layers=[1, 0]), ValueError, "no_rope_layers is [1, 0]; expected"),
    (lambda: of_layers("lfm2", full_attn_idxs=[-1]), ValueError, "full_attn_idxs[0] is -1"),
    (lambda: models.list_layers(RATIOS), ValueError, "compress_ratios holds 7; expected one of 0, 128, 4"),
    (lambda: models.list_layers(NAMELESS), ValueError, "layer_types holds 1; expected names"),
    *(
        (lambda flag=flag: of_layers("smollm3", no_rope_layers=[1, flag, 1]), error, FLAG)
        for flag, error in ((0.5, TypeError), ("0", TypeError), (None, TypeError), (2, ValueError), (-1, ValueError))
    ),
]  # fmt: skip
