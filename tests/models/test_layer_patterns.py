"""Kinds of layers, and which of them turn: against the config classes of transformers, and against its models, run."""

import copy
import importlib
import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from campaign import sparse
from config_classes import made, made_small, torch, transformers
from conftest import rows
from packages import WARNINGS

import rfrope
from rfrope.data.model_types import model_types
from rfrope.models.layer_patterns import NO_ATTENTION, assign_ropes, count_layers, list_kinds

pytestmark = WARNINGS
TABLE = model_types()
FILE = "models/layer_patterns.json"  # run, windowed: types whose small models run on tokens alone
PATTERNED = [name for name, entry in TABLE.items() if "layers" in entry]


def kinds(told: dict[str, Any]) -> tuple[str, ...]:
    (part,) = rfrope.models.configs.read_parts(told)[:1]
    return tuple(kind for kind, _ in part.layers)


# -- what attention multiplies its softmax scale by --------------------------------------------------------------------


def test_softmax_factors_are_of_the_classes_that_have_them():
    files = Path(transformers.__file__).parent.glob("models/*/modeling_*.py")
    made = {file.parent.name for file in files if "self.scaling = yarn_apply_mscale(" in file.read_text("utf-8")}
    listed = {name.removesuffix("_text") for name, entry in TABLE.items() if entry.get("softmax") == "mscale_all_dim"}
    folders = {file.parent.name for file in Path(transformers.__file__).parent.glob("models/*/modeling_*.py")}
    assert listed & folders == made  # not those with remote code, of newer versions, or with another's class


# -- configs as DeepSeek publishes them --------------------------------------------------------------------------------

SHIPPED = {"model_type": "deepseek_v4", "num_hidden_layers": 4, "head_dim": 512, "qk_rope_head_dim": 64}
SHIPPED |= {"rope_theta": 20000.0, "compress_rope_theta": 150000.0, "compress_ratios": [0, 0, 4, 128, 0]}
SHIPPED_SCALING = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32}


@pytest.mark.parametrize("scaling", [None, SHIPPED_SCALING, SHIPPED_SCALING | {"attention_factor": 1.5}])
def test_one_scheme_is_for_compressed_keys_alone(scaling):
    values = {key: value for key, value in SHIPPED.items() if key != "model_type"}
    config = made("deepseek_v4", **values, rope_scaling=copy.deepcopy(scaling))
    told = rfrope.models.list_layers(SHIPPED | {"rope_scaling": scaling})
    own = rfrope.models.list_layers(json.loads(json.dumps(config.to_dict(), default=str)))
    assert told.ropes_by_layer == own.ropes_by_layer == ("main", "main", "compress", "compress")
    for name, rope in told.ropes.items():
        assert list(rope.frequencies) == list(own.ropes[name].frequencies)
        assert rope.attention_factor == own.ropes[name].attention_factor
    assert told.ropes["compress"].attention_factor == (scaling or {}).get("attention_factor", 1.0)


# -- the kind of each layer, as config classes have it -----------------------------------------------------------------


def expected_kinds(config: Any) -> tuple[str, ...] | None:
    listed = getattr(config, "layer_types", None)
    return tuple(listed) if isinstance(listed, list | tuple) else None


NAMED_OTHERWISE = {"recurrent": "linear_attention", "attention": "sliding_attention"}  # by recurrent_gemma's lists


@pytest.mark.parametrize("count", [None, 4, 7, 26])
@pytest.mark.parametrize("model_type", PATTERNED)
def test_kinds_are_those_of_the_config_class(model_type, count):
    if "names" in TABLE[model_type]["layers"] and count is not None and model_type == "zamba2":
        pytest.skip("its class has one list, of 54 layers")
    config = made(model_type, **({} if count is None else {"num_hidden_layers": count}))
    expected, needs = expected_kinds(config), TABLE[model_type].get("needs", {})
    saved = json.loads(json.dumps(config.to_dict(), default=str)) | needs
    if TABLE[model_type]["layers"].get("explicit"):
        assert kinds(saved) == ()
        return
    told = {"model_type": model_type, "num_hidden_layers": config.num_hidden_layers, **needs}
    assert len(kinds(told)) == config.num_hidden_layers
    for one in (saved, told):
        found = tuple(NAMED_OTHERWISE.get(kind, kind) for kind in kinds(one))
        if expected is None:
            assert set(found) <= {"", "full_attention", "cross_attention"}
        else:
            assert found == expected


@pytest.mark.parametrize(("model_type", "values"), rows(FILE, "patterns"))
def test_other_patterns_are_those_of_the_config_class(model_type, values):
    expected = expected_kinds(made(model_type, num_hidden_layers=12, **values))
    assert kinds({"model_type": model_type, "num_hidden_layers": 12, **values}) == expected


# -- layers that turn, in models that run ------------------------------------------------------------------------------

_TURNS = re.compile(r"_?apply_\w*(rot|rope)\w*|\w*rotary\w*")


def _tables(arguments: list[Any]) -> Any:
    """Table of cos, or of complex numbers, among arguments of a function that turns."""
    tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
    pair = len(tensors) == 3 and tensors[1].shape == tensors[2].shape
    found = tensors[2] if len(tensors) > 3 else tensors[-2] if pair else tensors[-1]
    return torch.view_as_real(found) if found.is_complex() else found


def measured(model: Any) -> dict[int, tuple[float, ...]]:
    """For each layer with attention a mark of the tables that it turns by; empty where it does not turn."""
    found: dict[int, set[float]] = {}
    running: list[int] = []
    with ExitStack() as undo:
        for module in model.modules():
            index = getattr(module, "layer_idx", None)
            if isinstance(index, int) and re.search("Att", type(module).__name__):
                found.setdefault(index, set())
                hooks = [
                    module.register_forward_pre_hook(lambda *_, index=index: running.append(index)),
                    module.register_forward_hook(lambda *_: (running.pop(), None)[1]),
                ]
                for hook in hooks:
                    undo.callback(hook.remove)
        for code in {importlib.import_module(type(one).__module__) for one in model.modules()}:
            for name, function in [*vars(code).items()]:
                if not _TURNS.fullmatch(name) or isinstance(function, type) or "modeling" not in code.__name__:
                    continue
                if getattr(function, "__module__", "") == code.__name__:

                    def turn(*given: Any, own: Any = function, **named: Any) -> Any:
                        if running:
                            marks = _tables([*given, *named.values()]).double().abs().sum()
                            found[running[-1]].add(round(float(marks), 4))
                        return own(*given, **named)

                    undo.callback(setattr, code, name, function)
                    setattr(code, name, turn)
        with torch.no_grad():
            model(torch.randint(2, 50, (1, 20)))
    return {index: tuple(sorted(marks)) for index, marks in found.items()}


def run(config: Any) -> dict[int, tuple[float, ...]]:
    torch.manual_seed(0)
    return measured(transformers.AutoModel.from_config(config, attn_implementation="eager").eval())


def check_layers(config: Any, found: dict[int, tuple[float, ...]]) -> None:
    layers = rfrope.models.list_layers(config).kinds_by_layer()
    assert len(layers) == config.num_hidden_layers
    turning = {i for i, one in enumerate(layers) if one.rope is not None}
    assert turning == {i for i, marks in found.items() if marks}
    assert {i for i, one in enumerate(layers) if one.has_keys} <= set(found)
    # layers of one Rope turn by one table, and no others
    ropes = {i: layers[i].rope.frequencies.tobytes() for i in turning}
    assert len({(ropes[i], found[i]) for i in turning}) == len(set(ropes.values())) == len({found[i] for i in turning})


SHORT = ("gemma3_text", "llama4_text", "smollm3", "modernbert", "gpt_oss", "muse_glimmer_text")


@pytest.mark.parametrize("model_type", sparse(rows(FILE, "run"), lambda name: name in SHORT))
def test_layers_turn_as_those_of_the_model_do(model_type):
    config = made_small(model_type, num_hidden_layers=13)
    check_layers(config, run(config))


@pytest.mark.parametrize(
    "variant", sparse(rows(FILE, "variants"), lambda one: one[0] in ("llama4_text", "granite_swa"))
)
def test_lists_of_a_config_say_which_layers_turn(variant):
    model_type, values = variant
    config = made_small(model_type, num_hidden_layers=8, **values)
    check_layers(config, run(config))


# -- what is not known -------------------------------------------------------------------------------------------------


def test_numbers_of_layers_have_several_names():
    assert [count_layers({name: 3}) for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers")] == [3] * 4
    assert count_layers({}) is None


def test_of_a_type_that_is_not_known_only_what_the_config_says():
    listed = {"layer_types": ["a", "b", "conv"], "num_hidden_layers": 3}
    assert list_kinds(listed, None) == ("a", "b", "conv")
    assert list_kinds({"num_hidden_layers": 3}, None) is None
    assert assign_ropes(listed, None, ("a", "b", "conv"), ["a", "b"], (), has_window=False) == ("a", "b", None)
    assert assign_ropes(listed, None, ("a", "b", "conv"), ["a"], (), has_window=False) is None
    assert assign_ropes(listed, None, ("a", "b", "conv"), [""], (), has_window=False) is None


def test_no_kind_without_attention_turns():
    for name, entry in TABLE.items():
        about = entry.get("layers", {})
        assert {about.get("kind"), about.get("other")} & set(NO_ATTENTION) <= {"linear_attention", "conv"}, name
