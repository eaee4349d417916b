"""Models of transformers: what cannot be read, replaced, tuned or put into a config; models stay as they were."""

import dataclasses
import warnings

import numpy as np
from conftest import library

import rfrope

DOCUMENTS = np.random.default_rng(0).integers(3, 30, (3, 12))
LADDER, HALF = rfrope.geometric(8), rfrope.Rope(rfrope.geometric(8))
ONE = rfrope.Rope(rfrope.geometric(16), polar=True)
KINDS = ["sliding_attention", "full_attention"]
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64}
TWO_ROPES = {KINDS[0]: {"rope_type": "default", "rope_theta": 100.0}, KINDS[1]: {"rope_type": "default"}}


def transformers():
    """The integration, of which importing raises a few warnings of transformers."""
    library("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tiny_models  # skips where transformers is not installed

        from rfrope.integrations import transformers

    return tiny_models, transformers


def made(model_type="llama", **values):
    tiny_models, _ = transformers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tiny_models.made(model_type, **values)


def bidirectional():
    tiny_models, _ = transformers()
    sizes = {name: one for name, one in tiny_models.SIZES.items() if name not in ("head_dim", "num_key_value_heads")}
    kinds = tiny_models.transformers
    return kinds.ModernBertModel(kinds.ModernBertConfig(**sizes, cls_token_id=1, sep_token_id=2, local_attention=64))


def atlas(model_type="llama", documents=DOCUMENTS, part=None, **values):
    return transformers()[1].atlas(made(model_type, **values), documents, part=part)


def read(model, documents=DOCUMENTS):
    return next(transformers()[1].read_heads(model, documents))


def replaced(rope, model_type="llama", by="replace_rotary", change=lambda model: None, options=(), **values):
    """Replace rotations, which is refused; the model is as it was."""
    (tiny_models, integration), model = transformers(), made(model_type, **values)
    before = tiny_models.logits(model)
    change(model)
    try:
        getattr(integration, by)(model, rope, **dict(options))
    finally:
        assert bool((tiny_models.logits(model) == before).all())
        assert not any("polar" in vars(layer) or "turning" in vars(layer) for layer in model.modules())


def layers(other, of="smollm3", model_type="smollm3", **values):
    """Replace rotations by those of the layers of another config."""
    told = made(of, **values).config.to_dict() | other
    replaced(rfrope.models.list_layers(told), model_type, **values)


def configured(told):
    """A model whose config says so; transformers wraps some errors of a config into its own."""
    transformers()[1].register()
    try:
        return made(rope_parameters={"rope_type": "rfrope", **told})
    except Exception as error:
        raise error.__cause__ or error from None


def texts(count=9, length=96):
    return [*np.random.default_rng(0).integers(3, 32, (count, length))]


def tuned(model_type="llama", documents=None, context=96, model=None, **options):
    model = made(model_type, max_position_embeddings=32, **options.pop("values", {})) if model is None else model
    documents = texts() if documents is None else documents
    return transformers()[1].tune(model, documents, context, **{"window": 16, "steps": 1} | options)


ROWS = [
    # an atlas of attention that is not that of an atlas
    (lambda: atlas("mistral", sliding_window=11), ValueError, "12 tokens, more than the window of 11 of layers 0-1"),
    (lambda: atlas("cohere2", sliding_window=8, layer_types=KINDS), ValueError, "the window of 8 of layer 0"),
    (lambda: atlas("gemma2", sliding_window=64, attn_logit_softcapping=2.0), ValueError,
     ("layers.0.self_attn has attention ", "its logits are capped at 2;")),
    (lambda: atlas("gpt_oss", **EXPERTS), ValueError, "a learned sink beside the keys"),
    (lambda: atlas("hunyuan_v1_dense"), ValueError, ("a norm with a weight ", "follows the rotation")),
    (lambda: transformers()[1].atlas(bidirectional(), DOCUMENTS, part="full_attention"), ValueError,
     "it is bidirectional"),
    (lambda: atlas("gemma2", sliding_window=8, attn_logit_softcapping=None, layer_types=KINDS), ValueError,
     "or `part` with a kind that attends to all"),
    (lambda: atlas("gemma2", part="none", layer_types=KINDS), ValueError, ("part is 'none', but ", "'full_attention'")),
    (lambda: atlas("cohere2", part="full_attention", sliding_window=64, layer_types=KINDS), ValueError,
     ("part is 'full_attention', but ", "has Ropes for 'sliding_attention'; expected")),
    (lambda: atlas("gemma3_text", layer_types=KINDS, rope_parameters=TWO_ROPES), ValueError,
     ("part is None, but ", "expected one")),
    (lambda: atlas(documents=DOCUMENTS[:2]), ValueError, "there are 2 documents; expected at least 3"),
    (lambda: transformers()[1].atlas(3, DOCUMENTS), TypeError, "model is 3; expected a model"),
    (lambda: read(3), TypeError, "model is 3; expected a model of transformers"),
    (lambda: read(library("torch").module.nn.Linear(2, 2)), ValueError, "no attention that turns q and k"),
    (lambda: read(made("phi", partial_rotary_factor=0.5, num_key_value_heads=4)), ValueError,
     "turns 8 features of 16 and keeps the others apart"),
    # documents that are no token ids
    *(
        (lambda call=call, ids=ids: call([ids() if callable(ids) else ids] * 3), error, "documents[0] " + words)
        for call in (lambda given: atlas(documents=given), lambda given: read(made(), given))
        for ids, error, words in (
            ([3, 32], ValueError, "has the token 32; expected 0 to 31, the vocabulary of the model"),
            ([-1, 3], ValueError, "has the token -1; expected 0 to 31"),
            ([1.0, 2.0], TypeError, "has dtype float64; expected token ids, whole numbers"),
            (lambda: library("torch").module.ones(4), TypeError, "has dtype float32; expected token ids"),
            ("a text", TypeError, "is 'a text'; expected token ids"),
            ([[1, 2], [3, 4]], ValueError, "has shape (2, 2); expected the ids of its tokens"),
            (np.zeros(0, int), ValueError, "has shape (0,)"),
        )
    ),
    # Ropes in place of a rotation
    (lambda: replaced([HALF] * 2), TypeError, ("rope is [", "expected a Rope, or a dict of Ropes by kind of layer")),
    (lambda: replaced(LADDER[:4]), ValueError, "the Rope has 4 blocks, but LlamaRotaryEmbedding has 8"),
    (lambda: replaced(dataclasses.replace(HALF, pairing="interleaved")), ValueError, "the Rope pairs 'interleaved',"),
    (lambda: replaced(dataclasses.replace(HALF, pairing=None)), ValueError, "rope.pairing is None"),
    (lambda: replaced({KINDS[1]: HALF}), ValueError, "rope has full_attention; expected a Rope for all, too"),
    (lambda: replaced(ONE), ValueError, "rope is polar; expected a Rope with polar=False"),
    (lambda: transformers()[1].replace_rotary(library("torch").module.nn.Linear(2, 2), HALF), ValueError,
     "Linear: it has no rotary module; expected one that makes tables"),
    *(
        (lambda flags=flags: layers({"no_rope_layers": flags}, num_hidden_layers=4), ValueError, words)
        for flags, words in (
            ([1, 0, 1, 0], "rope has no RoPE in layer 1, and the config of this SmolLM3ForCausalLM RoPE"),
            ([1, 1, 1, 1], "rope has RoPE in layer 3, and the config of this SmolLM3ForCausalLM no RoPE"),
        )
    ),
    (lambda: layers({"num_hidden_layers": 3, "no_rope_layers": [1] * 3, "layer_types": None}, num_hidden_layers=4),
     ValueError, "rope is for 3 layers, and this SmolLM3ForCausalLM has 4"),
    (lambda: layers({"layer_types": KINDS[::-1]}, "gemma3_text", "gemma3_text", layer_types=KINDS), ValueError,
     "rope has the RoPE 'full_attention' in layer 0, and the config of this"),
    (lambda: layers({"layer_types": KINDS}, "gemma3_text", "llama"), ValueError,
     "rope has the RoPE 'sliding_attention' in layer 0, and the config of this"),
    # configs of rope_type "rfrope"
    *(
        (lambda told=told: configured(told), ValueError, words)
        for told, words in (
            ({}, "needs either 'kernel' or 'frequencies'"),
            ({"kernel": "gaussian", "frequencies": [1.0]}, "needs either 'kernel' or 'frequencies'"),
            ({"frequencies": [1.0], "seed": 3}, "has frequencies and seed"),
            ({"kernel": "gaussian", "factor": 2.0}, "has factor; expected no such key"),
            ({"frequencies": [1.0, 0.5, 0.25]}, "rope_parameters has 3 frequencies; expected 8, one for each block"),
            ({"kernel": "cauchy", "seed": -1}, "seed"),
            ({"frequencies": [[1.0], [2.0]]}, "frequencies"),
            ({"frequencies": [1.0, float("nan")]}, "rope_parameters['frequencies'] holds NaN"),
        )
    ),
    # tuning
    (lambda: tuned(context=32), ValueError, "context is 32; expected more than the 32 trained positions"),
    (lambda: tuned(starts="yawn"), ValueError, "starts is 'yawn'; did you mean 'yarn'"),
    (lambda: tuned(starts=()), ValueError, "starts is empty"),
    (lambda: tuned(documents=texts(9, 95)), ValueError, "texts[0] has 95 tokens; expected at least 96"),
    (lambda: tuned(documents=texts(4)), ValueError, "texts has 4 documents; expected at least 5"),
    (lambda: tuned(documents=["a"] * 9), ValueError, "tokenizer is None, but texts[0] is a text"),
    (lambda: tuned(documents=[[0.5] * 99] * 9), TypeError, "texts[0] has dtype float64; expected token ids"),
    (lambda: tuned(documents="text"), TypeError, "texts is 'text'; expected a sequence"),
    (lambda: tuned(window=64), ValueError, "window is 64; expected"),
    (lambda: tuned(window=2), ValueError, "window is 2; expected"),
    (lambda: tuned(documents=texts()[:6] * 2), ValueError, "texts[6] is texts[0] again"),
    (lambda: tuned(documents=[one + 20 for one in texts()]), ValueError, "texts[0] has the token "),
    (lambda: tuned(starts={"as it is": LADDER**2}), ValueError, "starts['as it is'] differs from"),
    (lambda: tuned(part="full"), ValueError, "part is 'full'"),
    (lambda: tuned(model=3), TypeError, "model is 3; expected a model of transformers"),
    (lambda: tuned(model=made().model), ValueError, "model is a LlamaModel, which has no logits; expected a causal"),
    (lambda: tuned("mistral", values={"sliding_window": 8}), ValueError, "all layers see only 8 positions; expected"),
]  # fmt: skip
