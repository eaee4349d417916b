"""Frequencies of configs against transformers itself: its own source in float64, and its models' own classes.

transformers computes in float32. To compare to 1e-14 its functions are run in float64: their source is read from the
installed package, every float32 in it is written as float64, and it is executed beside the original.
"""

import copy
import importlib
import inspect
import json
import re
import textwrap
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from campaign import one_of, sparse
from config_classes import SMALL, every_class, find_class, torch, transformers
from conftest import rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from packages import WARNINGS
from published import BY_MODEL, PUBLISHED, lists

import rfrope
from rfrope.data.model_types import has_defaults, model_types

rope_utils = importlib.import_module("transformers.modeling_rope_utils")
CONFIGS = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
STRICT = importlib.import_module("huggingface_hub.errors").StrictDataclassError
pytestmark = WARNINGS
FLOAT32 = 3e-6  # what exponents in float32 cost at a base of 1e9


# -- transformers in float64 -------------------------------------------------------------------------------------------


def in_float64(source: str) -> str:
    """Source with every float32 as float64."""
    return re.sub(r"torch\.float(32)?\b", "torch.float64", source).replace(".float()", ".double()")


def rope_utils_in_float64() -> types.ModuleType:
    module = types.ModuleType(rope_utils.__name__)
    module.__package__ = rope_utils.__package__
    exec(compile(in_float64(inspect.getsource(rope_utils)), "rope utilities in float64", "exec"), vars(module))
    return module


FUNCTIONS = rope_utils_in_float64().ROPE_INIT_FUNCTIONS


def method_in_float64(rotary: type, name: str) -> Any:
    """A static method of a model's class, such as ``compute_default_rope_parameters``."""
    source = textwrap.dedent(inspect.getsource(getattr(rotary, name))).removeprefix("@staticmethod\n")
    space = dict(vars(importlib.import_module(rotary.__module__)))
    exec(compile("from __future__ import annotations\n" + in_float64(source), name, "exec"), space)
    return space[name]


def rotary_classes(config: Any) -> list[type]:
    """The classes that make tables of cos and sin, of the model that a config belongs to; the config's own first."""
    try:
        module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    except ModuleNotFoundError:
        return []
    found = [
        kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and re.search("Rotary|RopePosition", name)
    ]
    found = [kind for kind in found if "config" in inspect.signature(kind.__init__).parameters]
    own = [k for k in found if type(config).__name__ in str(inspect.signature(k.__init__).parameters["config"])]
    return own or [kind for kind in found if "Vision" not in kind.__name__]


def reference(config: Any, layer: str, seq_len: int | None = None) -> tuple[np.ndarray, float]:
    """Frequencies and attention factor by transformers' own source in float64."""
    told = config.rope_parameters[layer] if layer else config.rope_parameters
    options = {"layer_type": layer} if layer else {}
    config = config.per_layer_config[layer] if layer and "gemma4" in type(config).__module__ else config
    if told["rope_type"] == "default" or told.get("alpha"):
        name = "compute_ntk_alpha_rope_parameters" if told.get("alpha") else "compute_default_rope_parameters"
        frequencies, factor = method_in_float64(rotary_classes(config)[0], name)(config, **options)
    else:
        frequencies, factor = FUNCTIONS[told["rope_type"]](config, seq_len=seq_len, **options)
    assert frequencies.dtype == torch.float64
    return frequencies.numpy(), factor


def own_buffers(config: Any) -> dict[str, np.ndarray]:
    """Frequencies in float32 as the model's own class holds them, by kind of layer."""
    (kind, *_) = rotary_classes(config)
    held = {name: buffer for name, buffer in kind(config).named_buffers() if "original" not in name}
    return {name.removesuffix("inv_freq").rstrip("_"): v.numpy() for name, v in held.items() if "inv_freq" in name}


# -- published configurations ------------------------------------------------------------------------------------------


def config_at(whole: Any, place: str) -> tuple[Any, str]:
    """The config of transformers for a place that `from_config` names, and the kind of layer."""
    *parts, last = place.split(".")
    layer = "" if last.endswith("_config") else last
    for part in [*parts, *([last] if last.endswith("_config") else [])]:
        whole = getattr(whole, part)
    # a config that is flat in the file is filed under text_config
    return (whole if getattr(whole, "text_config", None) is None else whole.text_config), layer


def built(config: dict[str, Any]) -> Any:
    kinds = {config["model_type"], *(part.get("model_type") for part in config.values() if isinstance(part, dict))}
    if missing := {kind for kind in kinds - {None} if kind not in CONFIGS and kind not in every_class()}:
        pytest.skip(f"this transformers, {transformers.__version__}, has no {', '.join(sorted(missing))}")
    return CONFIGS[config["model_type"]].from_dict(copy.deepcopy(config))


PLACES = [
    (one.model, index)
    for one in PUBLISHED
    for index, place in enumerate(one.places)
    if place.rope_type != "axial" and one.config["model_type"] not in ("gptj", "codegen")
]


@pytest.mark.parametrize(("model", "index"), PLACES)
def test_published(model, index):
    part = rfrope.from_config(BY_MODEL[model].config)[index]
    config, layer = config_at(built(BY_MODEL[model].config), part.source.model.name)
    expected, factor = reference(config, layer)
    assert part.frequencies.shape == expected.shape
    np.testing.assert_allclose(part.frequencies, expected, rtol=1e-14, atol=0.0)
    if part.source.model.model_type != "phimoe":  # its class has its own, see below
        assert part.attention_factor == factor
    np.testing.assert_allclose(part.frequencies, own_buffers(config)[layer], rtol=FLOAT32, atol=0.0)
    told = config.rope_parameters[layer] if layer else config.rope_parameters
    assert part.source.rope_parameters["rope_theta"] == told["rope_theta"]
    assert part.context == config.max_position_embeddings


@pytest.mark.parametrize(("seq_len", "factor"), [(None, 1.25), (4096, 1.25), (4097, 1.5)])
def test_phi_35_moe_has_a_factor_for_each_regime(seq_len, factor):
    config = copy.deepcopy(BY_MODEL["Phi-3.5 MoE"].config)
    config["rope_scaling"] |= {"short_mscale": 1.25, "long_mscale": 1.5}
    (part,) = rfrope.from_config(config, seq_len=seq_len)
    assert part.attention_factor == factor
    rotary = rotary_classes(built(config))[0](built(config))
    cos, _ = rotary(torch.ones(1), torch.tensor([[0, (seq_len or 1) - 1]]))
    assert float(cos[0, 0, 0]) == factor  # position 0


@pytest.mark.parametrize("config", [BY_MODEL["GPT-J 6B"].config, BY_MODEL["CodeGen 350M"].config, "gptj", "codegen"])
def test_models_with_a_table_of_sinusoids(config):
    config = {"model_type": config} if isinstance(config, str) else config
    (part,) = rfrope.from_config(config)
    whole = built(config)
    assert (part.rotary_dim, part.head_dim) == (whole.rotary_dim, whole.hidden_size // whole.num_attention_heads)
    assert part.context == whole.max_position_embeddings
    module = importlib.import_module(type(whole).__module__.replace("configuration", "modeling"))
    table = module.create_sinusoidal_positions(64, part.rotary_dim).numpy()
    cos, sin = rfrope.rotation_table(np.arange(64), part.frequencies)
    np.testing.assert_allclose(np.concatenate([sin, cos], axis=-1), table, atol=1e-5)


AXIAL = [(one.model, i) for one in PUBLISHED for i, place in enumerate(one.places) if place.rope_type == "axial"]


def turned(kind: type, config: Any, rows: np.ndarray) -> np.ndarray:
    """Angle of the first half of the features at patches (row, column), from a vision model's cos and sin."""
    cos, sin = kind(config)(torch.ones(1), torch.tensor(rows))
    half = cos.shape[-1] // 2
    assert torch.equal(cos[:, :half], cos[:, half:])  # pairing "half"
    return np.arctan2(sin[:, :half].numpy(), cos[:, :half].numpy())


@pytest.mark.parametrize(("model", "index"), AXIAL)
def test_published_vision(model, index):
    part = rfrope.from_config(BY_MODEL[model].config)[index]
    whole = built(BY_MODEL[model].config)
    config = whole if not part.source.model.name else whole.vision_config
    frequencies = rfrope.mrope(part.frequencies, part.sections)
    if part.source.model.model_type == "llama4_vision_model":
        patches = config.image_size // config.patch_size
        kind = importlib.import_module("transformers.models.llama4.modeling_llama4").Llama4VisionRotaryEmbedding
        held = kind(config).freqs_ci[:-1, 0].angle().numpy()  # without the class token; columns count first, from 1
        rows = np.stack([np.arange(patches**2) % patches + 1, np.arange(patches**2) // patches + 1], axis=-1)
    elif part.source.model.model_type == "dinov3_vit":
        module = importlib.import_module("transformers.models.dinov3_vit.modeling_dinov3_vit")
        cos, sin = module.DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 48, 80))
        held = torch.atan2(sin, cos)[:, : part.head_dim // 2].numpy()
        y, x = (2 * (np.arange(n) + 0.5) / n - 1 for n in (3, 5))
        rows = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1).reshape(-1, 2)
    else:
        rows = np.stack(np.meshgrid(np.arange(3), np.arange(5), indexing="ij"), axis=-1).reshape(-1, 2)
        (kind,) = [one for one in rotary_classes(config) if type(config).__name__ in str(inspect.signature(one))]
        held = turned(kind, config, rows)
    exact = np.angle(np.exp(1j * rfrope.rotation.phases(rows, frequencies)))
    np.testing.assert_allclose(np.angle(np.exp(1j * (held - exact))), 0.0, atol=2e-5)


BY_PLACE = [name for name, one in model_types().items() if one.get("axial", "unknown") not in ("unknown", "turns")]


@pytest.mark.parametrize("model_type", one_of(BY_PLACE, lambda name: model_types()[name]["axial"]))
def test_every_axis_turns_as_in_the_class(model_type):
    config = find_class(model_type)()
    kinds = [kind for kind in rotary_classes(config) if hasattr(kind, "compute_axial_rope_parameters")]
    if not kinds:
        pytest.skip("its class makes its own positions, or this transformers has another")
    rows = np.random.default_rng(0).integers(0, 9, (7, 3 if model_types()[model_type]["axial"] == "thirds" else 2))
    (part,) = rfrope.from_config({"model_type": model_type})
    tables = [one.reshape(len(rows), -1).numpy() for one in kinds[0](config)(torch.ones(1), torch.tensor(rows))]
    cos, sin = (one[:, ::2] if part.pairing == "interleaved" else one[:, : part.n_blocks] for one in tables)
    assert cos.shape == (7, part.n_blocks)
    np.testing.assert_allclose(cos + 1j * sin, np.exp(1j * rows @ part.vectors.T), atol=2e-6)


@pytest.mark.parametrize("model", ["Qwen2-VL 7B", "Qwen3-VL 8B"])
def test_sections_are_those_that_the_model_uses(model):
    part = rfrope.from_config(BY_MODEL[model].config)[0]
    config, _ = config_at(built(BY_MODEL[model].config), part.source.model.name)
    positions = np.array([[3, 1, 2], [7, 0, 5], [4, 4, 4]])  # time, height, width
    cos, _ = rotary_classes(config)[0](config)(torch.ones(1), torch.tensor(positions.T[:, None, :]))
    frequencies = rfrope.mrope(part.frequencies, part.sections, interleaved=part.interleaved)
    np.testing.assert_allclose(
        np.cos(rfrope.rotation.phases(positions, frequencies)), cos[0, :, :64].numpy(), atol=2e-6
    )


# -- every model type that the table of defaults knows -----------------------------------------------------------------


ODD_OUT = rows("models/parts.json", "odd")  # types, and why their class is not asked for its buffers
TABLE = {name: entry for name, entry in model_types().items() if has_defaults(entry)}
KNOWN = [name for name, defaults in TABLE.items() if defaults.get("axial") != "unknown"]


@pytest.mark.parametrize("model_type", [name for name in KNOWN if name not in ODD_OUT])
def test_what_a_config_leaves_out_is_what_the_class_has(model_type):
    config = find_class(model_type)()
    saved = json.loads(json.dumps(config.to_dict(), default=str))
    for told in ({"model_type": model_type}, saved):
        assert compared_with_its_class(told | TABLE[model_type].get("needs", {}), own_buffers(config), None)


def test_every_config_of_transformers_is_read_or_said_to_have_no_rope():
    """What each class saves by default: nothing that it writes may be taken for a mistake."""
    read = 0
    for model_type, kind in every_class().items():
        try:
            saved = json.loads(json.dumps(kind().to_dict(), default=str))
        except (AttributeError, ImportError, TypeError, ValueError, STRICT):
            continue  # a class that cannot be made without arguments, or needs another package
        try:
            rfrope.from_config(saved)
        except ValueError as error:
            message = str(error)
            # Qwen3-Omni's text class has an odd head_dim by default, which no model has
            # ESMFold's structure module has one that its config alone does not determine
            known = "describes no RoPE" in message or "qwen3_omni" in model_type or "spatial_rope" in message
            assert known, f"{model_type}: {message}"
        else:
            read += 1
    assert read > 300


# -- values that are not a class's defaults ----------------------------------------------------------------------------


SIZES = [(88, 4), (92, 4), (97, 4), (60, 6), (192, 3), (416, 2)]  # widths of a head: 22, 23, 24 and a rest, 10, 64, 208
KEYS_OF_WIDTH = re.compile("theta|head|dim$|hidden_size|rotary|embd|d_model|width|channels")
OTHERS = ("head_dim", "kv_channels", "attention_head_dim", "rotary_dim", "qk_rope_head_dim", "global_head_dim")
OTHERS = (*OTHERS, "swa_head_dim", "n_head", "num_heads", "n_heads", "n_embd", "d_model", "embed_dim", "rotary_pct")
OTHERS = (*OTHERS, "rope_theta", "rotary_emb_base", "global_rope_theta")
# in words: what no block can be made of, and what the class reads otherwise than a person would
REFUSED = rows("models/parts.json", "refused")


def variations(kind: type, needs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Values that a config may have: each size of its class changed alone, and heads, widths and parts together."""
    saved, own = kind(**needs).to_dict(), getattr(kind, "attribute_map", {})
    width = own.get("hidden_size", "hidden_size" if "hidden_size" in saved else "embed_dim")
    heads = own.get("num_attention_heads", "num_attention_heads")
    found: list[dict[str, Any]] = []
    for key, value in saved.items():
        if KEYS_OF_WIDTH.search(key) and type(value) in (int, float):
            whole = (2 * value or 1, max(1, value // 2), value + 6, value + 7)
            found += [{key: changed} for changed in (whole if type(value) is int else (0.5 * value, 0.7 * value))]
    for width_of, heads_of in SIZES:
        sizes = {width: width_of, heads: heads_of}
        found += [sizes, {"hidden_size": width_of, "num_attention_heads": heads_of}]
        for more in (
            *({"head_dim": 48}, {"num_key_value_heads": max(1, heads_of // 2)}, {"partial_rotary_factor": 0.3}),
            {"rope_theta": 333.0, "partial_rotary_factor": 0.75},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0, "partial_rotary_factor": 0.6}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0}},
        ):
            found.append(sizes | more)
    found += [{key: value} for key in OTHERS for value in ((0.3, 0.5) if key == "rotary_pct" else (24, 40, 6))]
    found += [{"partial_rotary_factor": 0.5}, {"rope_parameters": {"rope_type": "default"}}]
    found += [{"qk_rope_head_dim": 24, "qk_nope_head_dim": 20} | more for more in ({}, {"head_dim": 24})]
    return found


def compared_with_its_class(told: Mapping[str, Any], own: dict[str, np.ndarray], turned: int | None) -> bool:
    """Whether what is read of a config is what its class holds; not where that does not fit the class's own heads."""
    if turned is not None and any(2 * len(held) != turned for held in own.values()):
        return False  # its attention takes frequencies for `turned` features, and stops
    try:
        parts = {one.source.model.name: one for one in rfrope.from_config(told)}
    except ValueError as error:
        if not re.search("|".join(REFUSED), str(error)):
            raise
        return False
    for layer, expected in own.items():
        got, held = parts[layer].frequencies, parts[layer].source
        if held.rope_parameters["rope_type"] == "axial":
            is_turns = TABLE[held.model.model_type]["axial"] == "turns"
            got = got if got.ndim == 1 else got.max(axis=1)[got[:, 0] > 0]
            got = got[: len(expected)] / (2 * np.pi if is_turns else 1.0)
        assert got.shape == expected.shape, told
        np.testing.assert_allclose(np.sort(got), np.sort(expected), rtol=FLOAT32, atol=0.0, err_msg=str(told))
    return True


ODD_BASE = ("olmo3",)  # a base beside the dict is for its layers with full attention alone; here for both
OFTEN = ("moonshine", "deepseek_v2", "jetmoe", "zamba2", "gpt_neox", "dots3_note_text", "qwen2_vl_vision", "mistral4")


@pytest.mark.parametrize("model_type", sparse([n for n in KNOWN if n not in ODD_OUT], OFTEN.__contains__, 3))
def test_other_heads_widths_and_parts_are_read_as_the_class_does(model_type):
    needs, read = TABLE[model_type].get("needs", {}), 0
    for values in variations(find_class(model_type), needs):
        if model_type in ODD_BASE and "rope_theta" in values:
            continue
        told = {"model_type": model_type, **needs, **values}
        try:
            config = find_class(model_type).from_dict(copy.deepcopy(told))
            own = own_buffers(config)
        except (STRICT, ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError, RuntimeError):
            continue  # the class takes no such values
        saved = json.loads(json.dumps(config.to_dict(), default=str)) | needs
        is_latent = "qk_rope_head_dim" in TABLE[model_type] and "swa" not in TABLE[model_type]
        turned = saved["qk_rope_head_dim"] if is_latent else None
        read += sum(compared_with_its_class(one, own, turned) for one in (told, saved))
    assert read > 60


# -- how far layers see ------------------------------------------------------------------------------------------------


SEEN, TOKENS = 8, 40  # the window, and the text
SIZES_SEEN = SMALL | {"use_sliding_window": True, "max_window_layers": 3}
SHORT = ("mistral", "gpt_oss", "modernbert", "qwen2", "cohere2")


def seen(config: Any) -> dict[str, int | None]:
    """How far each kind of layers sees, by the weights of attention in a small model, the token itself counted."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        weights = model(torch.randint(2, 50, (1, TOKENS)), output_attentions=True).attentions
    kinds = list(getattr(config, "layer_types", None) or [])
    kinds = kinds if len(kinds) == len(weights) else [""] * len(weights)
    found: dict[str, int] = {}
    for kind, one in zip(kinds, weights, strict=True):
        query, key = np.nonzero(one[0].sum(0)[:, -TOKENS:].numpy() > 1e-9)
        found[kind] = max(found.get(kind, 0), int((query - key).max()) + 1)
    return {kind: None if far >= TOKENS - 1 else far for kind, far in found.items()}  # some hide the last token


@pytest.mark.parametrize(
    "model_type", sparse(rows("models/layer_patterns.json", "windowed"), lambda name: name in SHORT)
)
def test_layers_see_as_far_as_their_model_does(model_type):
    kind, about = find_class(model_type), TABLE[model_type].get("window", {})
    own, key = kind().to_dict(), about.get("key", "sliding_window")
    config = kind(
        **{name: value for name, value in SIZES_SEEN.items() if name in own or name == "head_dim"}, **{key: SEEN}
    )
    measured = {name: far for name, far in seen(config).items() if name not in about.get("still", ())}
    parts = [one for one in rfrope.from_config(config) if "config" not in one.source.model.name]
    windows = {name: window for one in parts for name, window in one.source.model.windows.items()}
    windows = {name: None if window is None or window >= TOKENS else window for name, window in windows.items()}
    measured = {name: far for name, far in measured.items() if name != "linear_attention"} or measured
    assert measured == {name: windows["" if "" in windows else name] for name in measured}


# -- drawn parameters --------------------------------------------------------------------------------------------------


def compare(
    told: dict[str, Any], head_dim: int, context: int, seq_len: int | None = None, tolerance: float = 1e-14
) -> None:
    config = transformers.LlamaConfig(
        head_dim=head_dim, max_position_embeddings=context, rope_parameters=copy.deepcopy(told)
    )
    expected, factor = FUNCTIONS[told["rope_type"]](config, seq_len=seq_len)
    got = rfrope.models.from_rope_parameters(told, head_dim=head_dim, max_position_embeddings=context, seq_len=seq_len)
    assert got.frequencies.shape == tuple(expected.shape)
    np.testing.assert_allclose(got.frequencies, expected.numpy(), rtol=tolerance, atol=0.0)
    assert got.attention_factor == factor


FACTORS = st.floats(1.0, 64.0) | st.integers(1, 64)
COMMON = {
    "rope_theta": st.floats(2.0, 1e9),
    "partial_rotary_factor": st.sampled_from([1.0, 0.9, 0.75, 0.5, 0.4, 0.334, 0.25]),
}
ORIGINAL = {"original_max_position_embeddings": st.integers(64, 2**17)}
REQUIRED: dict[str, dict[str, Any]] = {
    "linear": {"factor": FACTORS},
    "proportional": {},
    "dynamic": {"factor": FACTORS},
    "yarn": {"factor": FACTORS | st.none(), **ORIGINAL},
    "longrope": {"factor": FACTORS | st.none(), **ORIGINAL},
    "llama3": {
        "factor": FACTORS,
        "low_freq_factor": st.floats(0.25, 2.0),
        "high_freq_factor": st.floats(2.0, 16.0) | st.integers(2, 16),
        **ORIGINAL,
    },
}
OPTIONAL: dict[str, dict[str, Any]] = {
    "proportional": {"factor": FACTORS},
    "yarn": {
        "beta_fast": st.floats(8.0, 64.0) | st.integers(8, 64),
        "beta_slow": st.floats(0.25, 8.0),
        "truncate": st.booleans(),
        "attention_factor": st.none() | st.floats(0.5, 2.0),
        "mscale": st.floats(0.0, 2.0),
        "mscale_all_dim": st.floats(0.0, 2.0),
    },
    "longrope": {"attention_factor": st.floats(0.5, 2.0)},
}


@pytest.mark.parametrize("scheme", REQUIRED)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    data=st.data(),
    head_dim=st.integers(2, 128).map(lambda n: 2 * n),
    context=st.integers(64, 2**20),
    seq_len=st.none() | st.integers(1, 2**21),
)
def test_drawn_parameters(scheme, data, head_dim, context, seq_len):
    required = {"rope_type": st.just(scheme), **COMMON, **REQUIRED[scheme]}
    told = data.draw(st.fixed_dictionaries(required, optional=OPTIONAL.get(scheme, {})))
    width = int(head_dim * told["partial_rotary_factor"])
    assume(scheme != "dynamic" or width > 2)
    assume(scheme != "yarn" or width % 2 == 0)  # transformers cannot
    if "factor" in told and told["factor"] is None:
        assume(context >= told["original_max_position_embeddings"])  # an error here
    if scheme == "longrope":
        lengths = {"min_size": -(-width // 2), "max_size": -(-width // 2)}
        for key in ("short_factor", "long_factor"):
            told[key] = data.draw(st.lists(st.floats(0.5, 64.0), **lengths))
    compare(told, head_dim, context, seq_len, narrow(told) if scheme == "llama3" else 1e-14)


def narrow(told: dict[str, Any]) -> float:
    """Tolerance for llama3: the ramp multiplies the rounding of the turns, ever more the narrower it is.

    A turn is known to some 1e-15 of itself. On the ramp there are at most ``high`` of them; their place on it, divided
    by its width, has that error times ``high / (high - low)``, and an error in the place moves a frequency by up to
    ``factor`` times as much relatively.
    """
    low, high = told["low_freq_factor"], told["high_freq_factor"]
    return max(1e-14, 1e-15 * told["factor"] * high / (high - low)) if high > low else 1e-14


def test_llama3_with_a_narrow_ramp():
    told = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 8192}
    turns = 8192 * 1e4 ** (-40 / 64) / (2 * np.pi)  # turns of one frequency, which lies on the ramp
    for width in (1e-3, 1e-9):
        told |= {"low_freq_factor": turns - width / 2, "high_freq_factor": turns + width / 2}
        compare(told, 128, 8192, tolerance=narrow(told))


@pytest.mark.parametrize(
    ("scheme", "more"),
    [("yarn", {}), ("longrope", lists(32)), ("llama3", {"low_freq_factor": 1.0, "high_freq_factor": 4.0})],
)
def test_a_missing_original_context_is_the_context(scheme, more):
    compare({"rope_type": scheme, "rope_theta": 10_000.0, "factor": 4.0, **more}, 64, 4096)


def test_the_dict_of_the_layer_says_whether_yarn_truncates():
    """Where layers differ, transformers 5 looks for ``truncate`` beside the layers' dicts; here it belongs to each."""
    told = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "truncate": False}
    config = {"model_type": "olmo3", "hidden_size": 4096, "num_attention_heads": 32, "rope_scaling": told}
    full, _ = rfrope.from_config(config | {"rope_theta": 500_000.0, "max_position_embeddings": 32768})
    alone = rfrope.models.from_rope_parameters(told, head_dim=128, rope_theta=500_000.0)
    assert np.array_equal(full.frequencies, alone.frequencies)


# -- configs of transformers as objects, and back ----------------------------------------------------------------------


@pytest.mark.parametrize("model", [one.model for one in PUBLISHED])
def test_a_config_object_tells_the_same_as_its_file(model):
    config = BY_MODEL[model].config
    from_file = {one.source.model.name: one for one in rfrope.from_config(config)}
    from_object = {one.source.model.name: one for one in rfrope.from_config(built(config))}
    for name, one in from_file.items():
        other = from_object.get(name) or from_object[f"text_config.{name}".rstrip(".")]
        np.testing.assert_array_equal(one.frequencies, other.frequencies)
        assert one.attention_factor == other.attention_factor
        assert one.sections == other.sections
        assert one.context == other.context
