"""Runs the attention classes of transformers without their weights, for `make_pairings`.

A class is built with its own config. Each linear layer is replaced by one that gives features which rise with their
number, so that a feature is known by its rank wherever the class moves it. The class is called twice, with the tables
of cos and sin that its own rotary class makes of a few positions, and with tables that turn nothing; both times the
query and the key are caught at the door of the attention function. So what is run is the whole way from the linear
layer to the scores, with all that moves on it, and not the function of cos and sin alone.

It needs PyTorch and transformers, and the package never imports it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TOKENS = 6  # two rows of three, where a class makes its own positions from the size of a picture
NEAR = 50  # positions up to which phases of the classes, in float32, are compared with those of float64


@dataclass(frozen=True)
class Case:
    """What names and annotations do not reveal: which class, which values of a config, which call.

    Attributes
    ----------
    attention, rotary : str
        Names of the classes.
    config : dict
        Values for the config, where the class cannot be built with its own defaults.
    pixels : tuple of int
        Size of the picture that the rotary class wants in place of positions.
    """

    attention: str = ""
    rotary: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    pixels: tuple[int, ...] = ()


_GLM_V = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}
_INDEXER = {f"indexer_{key}": n for key, n in (("n_heads", 4), ("kv_heads", 1), ("head_dim", 256), ("budget", 64))}
_INDEXER |= {"indexer_compress_ratio": 4}
_OMNI = "Qwen2_5OmniAttention", "Qwen2_5OmniRotaryEmbedding"
# as many heads as tokens: these turn a head by its number
_CODEC = Case(config={"num_attention_heads": TOKENS, "num_key_value_heads": TOKENS, "hidden_size": 64 * TOKENS})
CASES = {
    "codegen": Case(attention="CodeGenAttention"),
    "cohere_compass_text": Case(
        config={"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
    ),
    "dbrx": Case(config={"attn_config": {"kv_n_heads": 1, "rope_theta": 10000.0, "clip_qkv": 1e9}}),
    "deepseek_ocr2_encoder": Case("DeepseekOcr2VisionAttention", "DeepseekOcr2VisionRotaryEmbedding"),
    "diffusion_gemma_text": Case("DiffusionGemmaEncoderTextAttention DiffusionGemmaDecoderTextAttention"),
    "dinov3_vit": Case(pixels=(32, 48)),
    "efficientloftr": Case(pixels=(8, 12)),
    "eomt_dinov3": Case(pixels=(32, 48)),
    "evolla": Case("EvollaAttention", "EvollaRotaryEmbedding"),
    "glm4v_moe_text": Case(config={"head_dim": 128, "rope_parameters": _GLM_V}),
    "glm4v_text": Case(config={"rope_parameters": _GLM_V}),
    "glm_image_text": Case(config={"rope_parameters": _GLM_V}),
    "gptj": Case(attention="GPTJAttention"),
    "hunyuan_v1_dense": Case(config={"head_dim": 128}),
    "hunyuan_v1_moe": Case(config={"head_dim": 128}),
    "hunyuan_vl_text": Case(
        config={
            "head_dim": 128,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 16, 16, 16]},
        }
    ),
    "llama4_vision_model": Case(config={"image_size": 28, "patch_size": 14}, pixels=(28, 28)),
    "longcat_flash": Case(attention="LongcatFlashMLA"),
    "minimax": Case(attention="MiniMaxAttention"),
    "ministral": Case(config={"head_dim": 128}),
    "nemotron": Case(config={"head_dim": 128, "num_key_value_heads": 8}),
    "neucodec": _CODEC,
    "qwen2_5_omni_dit": Case("DiTAttention", "Qwen2_5OmniDiTRotaryEmbedding"),
    "qwen2_5_omni_talker": Case(*_OMNI),
    "qwen2_5_omni_text": Case(*_OMNI),
    "qwen3_omni_moe_talker_code_predictor": Case(
        "Qwen3OmniMoeTalkerCodePredictorAttention", "Qwen3OmniMoeRotaryEmbedding"
    ),
    "qwen3_omni_moe_talker_text": Case("Qwen3OmniMoeThinkerTextAttention", "Qwen3OmniMoeTalkerRotaryEmbedding"),
    "qwen3_omni_moe_text": Case(
        "Qwen3OmniMoeThinkerTextAttention", "Qwen3OmniMoeThinkerTextRotaryEmbedding", config={"head_dim": 128}
    ),
    "qwen4_exp_text": Case(config=_INDEXER),
    "sapiens2": Case(pixels=(32, 48)),
    "t5gemma2_decoder": Case(attention="T5Gemma2MergedAttention"),
    "t5gemma2_text": Case(attention="T5Gemma2SelfAttention"),
    "voxtral_realtime_encoder": Case(attention="VoxtralRealtimeAttention"),
    "xcodec2": _CODEC,
}


@dataclass(frozen=True)
class Seen:
    """A query or key of one head as a class has it, unturned and turned, and what it was turned by.

    Attributes
    ----------
    name : str
        Class, kind of layer, and which of the two.
    still, turned : ndarray, (tokens, d)
    cos, sin : ndarray, (tokens, columns)
        The class's own table: one column for each block, or each column twice.
    positions : ndarray, (tokens,), or None
        None where a token has several.
    frequencies : ndarray, (D,), or None
        The class's own, where it holds them.
    """

    name: str
    still: np.ndarray
    turned: np.ndarray
    cos: np.ndarray
    sin: np.ndarray
    positions: np.ndarray | None = None
    frequencies: np.ndarray | None = None


class UndeterminedError(Exception):
    """Why nothing is known of a model type."""


# -- classes and configs -----------------------------------------------------------------------------------------------


def config_classes() -> dict[str, type]:
    """The config classes of transformers by model type, those of parts included."""
    import transformers

    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    found: dict[str, type] = {}

    def add(kind: Any) -> None:
        if kind.model_type in found:
            return
        found[kind.model_type] = kind
        for spec in (getattr(kind, "sub_configs_defaults", None) or {}).values():
            part = getattr(spec, "config_class", spec)
            if isinstance(part, type) and part is not transformers.AutoConfig:
                add(part)

    for name in mapping:
        add(mapping[name])
    return found


def made_config(kind: type, model_type: str, **values: Any) -> Any:
    """A config with the defaults of its class, but for what `CASES` and the caller say."""
    config = kind(**CASES.get(model_type, Case()).config, **values)
    config._attn_implementation_internal = "sdpa"
    return config


def modelling(config: Any) -> Any:
    """The module with the classes of the model that a config belongs to."""
    name = (config if isinstance(config, type) else type(config)).__module__.replace(".configuration_", ".modeling_")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UndeterminedError(f"transformers has its config and no model ({error})") from None


def _classes(config: Any, names: str, mentions: str = "") -> list[type]:
    """Classes of a model that are made of a config, those first whose annotation names this one."""
    module = modelling(config)
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    kinds = [
        kind
        for kind in kinds
        if re.search(names, kind.__name__)
        and not re.search("Layer$|Cross|Indexer|Memory|FlashAttention2", kind.__name__)
        and hasattr(kind, "forward")
        and "config" in inspect.signature(kind).parameters
        and re.search(mentions, inspect.getsource(kind))
    ]
    wanted = rf"\b{type(config).__name__}\b"
    own = [k for k in kinds if re.search(wanted, str(inspect.signature(k).parameters["config"]))]
    return own or [k for k in kinds if ("Vision" in k.__name__) == ("vision" in config.model_type)]


def _one_class(config: Any, chosen: str, names: str, mentions: str = "") -> list[type]:
    """The classes that a case names, else the only one there is, else none."""
    if chosen:
        return [getattr(modelling(config), name) for name in chosen.split()]
    kinds = _classes(config, names, mentions)
    if len(kinds) > 1:
        raise UndeterminedError(f"several classes: {', '.join(kind.__name__ for kind in kinds)}")
    return kinds


# -- one call ----------------------------------------------------------------------------------------------------------


def seen_of(model_type: str, config: Any) -> list[Seen]:
    """What the attention class of a model does to a query and a key, in each kind of layer."""
    case = CASES.get(model_type, Case())
    attentions = _one_class(config, case.attention, "Attention|Attn", r"apply_\w*(rot|rope)|rotary|freqs")
    rotary = next((kind(config) for kind in _one_class(config, case.rotary, "RotaryEmbedding|RopePosition")), None)
    if not attentions:
        raise UndeterminedError("no attention class that turns queries")
    return [
        seen
        for kind in _kinds(config, rotary)
        for one in attentions
        for seen in _turning(one, rotary, config, case, kind)
    ]


def _turning(attention: type, rotary: Any, config: Any, case: Case, kind: str) -> list[Seen]:
    """What the first layer of a kind does that turns its queries: some have no positions."""
    pair: list[Seen] = []
    for index in _layers(config, kind):
        layer = _built(attention, config, index)
        if getattr(layer, "rope_layer_type", kind) == kind:
            pair = _called(layer, rotary, config, case, kind)
            if any(not np.array_equal(seen.still, seen.turned) for seen in pair):
                break
    return pair


def _kinds(config: Any, rotary: Any) -> list[str]:
    """The kinds of layers that the rotary class has frequencies for; a single one is called ''."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [kind for kind, value in parameters.items() if isinstance(value, dict)]
    return [kind for kind in kinds if hasattr(rotary, f"{kind}_inv_freq")] or [""]


def _layers(config: Any, kind: str) -> list[int]:
    """Layers to look at until one turns its queries: some have no positions."""
    kinds = list(getattr(config, "layer_types", None) or [])
    if kind in kinds:
        return [kinds.index(kind)]
    return [kinds.index(one) for one in dict.fromkeys(kinds)] or [0]


@contextmanager
def _cheap_layers() -> Iterator[None]:
    """Linear layers that do not draw their weights, which nothing reads."""
    from torch.nn import Linear

    draw = Linear.reset_parameters
    Linear.reset_parameters = lambda self: None
    try:
        yield
    finally:
        Linear.reset_parameters = draw


def _built(kind: type, config: Any, index: int) -> Any:
    """An attention layer whose linear layers give features that rise with their number, whatever comes in."""
    import torch

    wanted = inspect.signature(kind).parameters.values()
    with _cheap_layers():
        layer = kind(**{one.name: _given(one, config, index) for one in wanted if _is_needed(one)})
    for module in layer.modules():
        if isinstance(module, torch.nn.Linear):
            width = module.out_features
            steps = np.random.default_rng(width).uniform(0.5, 1.5, width)
            module.forward = _constant(torch.tensor(np.cumsum(steps)))
            module.weight, module.bias = torch.nn.Parameter(torch.zeros(1, 1)), None
    for name, weight in layer.named_parameters():
        if name.endswith("bias"):
            weight.data.fill_(0.0)  # some hold whatever the memory held
        elif weight.ndim > 1 or not name.endswith("weight"):  # these are not drawn here either
            weight.data.fill_(1.0)
    return layer.double().eval()


def _is_needed(one: inspect.Parameter) -> bool:
    always = one.name in ("config", "layer_idx")
    return always or (one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL))


def _given(one: inspect.Parameter, config: Any, index: int) -> Any:
    known = {"config": config, "layer_idx": index, "is_causal": True}
    if one.name in known:
        return known[one.name]
    name = "num_attention_heads" if one.name == "num_heads" else one.name
    number = getattr(config, name, None)
    return config.num_attention_heads if number is None and name == "num_key_value_heads" else number


def _constant(row: Any) -> Any:
    def forward(x: Any, *_: Any, **__: Any) -> Any:
        return row.expand(*x.shape[:-1], -1).clone()

    return forward


class _CaughtError(Exception):
    """Carries a query and a key out of an attention layer."""


def _called(layer: Any, rotary: Any, config: Any, case: Case, kind: str) -> list[Seen]:
    """Query and key of the first call that the classes accept."""
    refused = []
    takes = not _TABLES.isdisjoint(inspect.signature(layer.forward).parameters)  # else it makes its own table
    for positions in _positions(case):
        try:
            given = _table(layer, rotary, config, positions, kind)
            cos, sin = _cos_sin(given)
            if len(cos) != TOKENS and not case.pixels:
                raise ValueError(f"a table of {len(cos)} rows")
        except _REFUSALS as error:
            refused.append(f"{tuple(positions.shape)}: {error}")
            continue
        for states in _states(config, len(cos)):
            try:
                turned = _caught(layer, given, positions, states)
                still = _caught(layer, _neutral(given), positions if takes else 0 * positions, states)
            except _REFUSALS as error:
                refused.append(f"{tuple(positions.shape)}, {tuple(states.shape)}: {type(error).__name__} {error}")
                continue
            alone = positions.numpy()[0] if positions.shape == (1, TOKENS) else None
            held = getattr(rotary, f"{kind}_inv_freq" if kind else "inv_freq", None)
            own = None if held is None else held.double().numpy()
            name = f"{type(layer).__name__} {kind}".strip()
            return [
                Seen(f"{name} {which}", still[i], turned[i], cos, sin, alone, own)
                for i, which in enumerate(("query", "key"))
            ]
    raise UndeterminedError("; ".join(refused)[:1000])


_TABLES = {"position_embeddings", "freqs_ci"}
_REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, NameError, AssertionError)


def _positions(case: Case) -> Iterator[Any]:
    """Positions, or a picture, in the shapes that classes want them in: first of several axes, then of one."""
    import torch

    if case.pixels:
        yield torch.ones(1, 3, *case.pixels)
        return
    draw = np.random.default_rng(0).permutation(4 * TOKENS).reshape(4, TOKENS)
    several = (draw[:2].T, draw[None, :2].transpose(0, 2, 1), draw[:3].T, draw[:, None], draw[:3, None])
    yield from map(torch.tensor, several)
    yield torch.tensor([[0, 1, 7, NEAR, 300, 2000]])


def _states(config: Any, tokens: int) -> Iterator[Any]:
    """Hidden states of as many tokens: in one sequence, packed, as a picture, and with an axis more."""
    import torch

    width = getattr(config, "memory_attention_hidden_size", None) or getattr(config, "hidden_size", None) or 64
    for shape in ((1, tokens), (tokens,), (1, 2, tokens // 2), (1, 1, tokens)):
        yield torch.ones(*shape, width, dtype=torch.float64)


def _table(layer: Any, rotary: Any, config: Any, positions: Any, kind: str) -> Any:
    """What the layer takes for positions: cos and sin, complex numbers, or a dict of them."""
    import torch

    if rotary is None:  # GPT-J and CodeGen, whose layers hold a table of sin and cos
        sin, cos = layer.embed_positions[positions].chunk(2, dim=-1)
        return cos, sin
    wanted = inspect.signature(rotary.forward).parameters
    if positions.is_floating_point():  # a picture
        made = rotary(positions.double())
    else:
        options = {"layer_type": kind} if "layer_type" in wanted and kind else {}
        made = rotary(torch.ones(1, 1, dtype=torch.float64), positions, **options)
    if isinstance(made, tuple):
        made = tuple(one.flatten(1, -2) if one.ndim > 3 else one for one in made)
    return {kind: made} if hasattr(layer, "rope_layer_type") else made


def _cos_sin(given: Any) -> tuple[np.ndarray, np.ndarray]:
    """A table as two matrices with one row a token."""
    if isinstance(given, dict):
        (given,) = given.values()
    cos, sin = given if isinstance(given, tuple) else (given.real, given.imag)
    return tuple(one.reshape(-1, one.shape[-1]).double().numpy() for one in (cos, sin))


def _neutral(given: Any) -> Any:
    """The same as a table that turns nothing."""
    if isinstance(given, dict):
        return {kind: _neutral(one) for kind, one in given.items()}
    if isinstance(given, tuple):
        return 0 * given[0] + 1, 0 * given[1]
    return 0 * given + 1


def _caught(layer: Any, given: Any, positions: Any, states: Any) -> tuple[np.ndarray, np.ndarray]:
    """Query and key of the first head as they come to the attention function, or to the first product."""
    import torch

    tokens = int(np.prod(states.shape[:-1]))
    wanted = inspect.signature(layer.forward).parameters
    mask = str(wanted["attention_mask"]) if "attention_mask" in wanted else ""
    options = {
        **dict.fromkeys(("hidden_states", "query", "key", "value"), states),
        **dict.fromkeys(_TABLES, given),
        "attention_mask": None if "dict" in mask else torch.zeros(1, 1, tokens, tokens, dtype=torch.float64),
        "merged_attention_mask": None,
        "encoder_hidden_states": states if type(layer).__name__ == "T5Gemma2MergedAttention" else None,
        "context_hidden_states": states[..., :0, :],
        "cu_seqlens": torch.tensor([0, tokens], dtype=torch.int32),
        "position_ids": positions,
        "shared_kv_states": {},
        "alibi": None,
    }
    options = {
        name: options.get(name)
        for name, one in wanted.items()
        if name in options or (one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL))
    }
    for door in (_attention_function, _first_product):
        try:
            with torch.no_grad(), door():
                layer(**options)
        except _CaughtError as caught:
            query, key = caught.args
            return _first_head(query, tokens), _first_head(key, tokens)
    raise RuntimeError("it compared no query with a key")


def _first_head(x: Any, tokens: int) -> np.ndarray:
    while x.ndim > 2:
        x = x[0]
    return x[:tokens].double().numpy()


@contextmanager
def _attention_function() -> Iterator[None]:
    """Every attention function of transformers raises what it is called with."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

    def door(module: Any, query: Any, key: Any, *_: Any, **__: Any) -> None:
        raise _CaughtError(query, key)

    functions.get_interface = lambda *_, **__: door
    try:
        yield
    finally:
        del functions.get_interface


def _first_product() -> Any:
    """The first product of two tensors raises them; for classes that compare queries with keys by themselves."""
    import torch

    class Door(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name == "scaled_dot_product_attention":
                raise _CaughtError(*args[:2])
            if name in ("matmul", "bmm", "baddbmm"):
                query, key = args[-2:]
                raise _CaughtError(query, key.transpose(-1, -2))
            return func(*args, **(kwargs or {}))

    return Door()
