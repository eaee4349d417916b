"""What a config's scheme reaches, where that is not its own context; and where that is said."""

import json

import pytest
from published import PUBLISHED, lists

import rfrope
from rfrope import analysis, models
from rfrope.scaling.registry import describe_reach

QWEN2 = {"model_type": "qwen2", "head_dim": 64, "hidden_size": 256, "num_attention_heads": 4, "rope_theta": 1e6}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 2.0}
LONGROPE = {"rope_type": "longrope", **lists(32)}
SHORT = "yarn does not reach max_position_embeddings: 2 x 32768 = 65536 < 131072; expected a factor of 4."
MISSING = "original_max_position_embeddings is missing: 131072 is assumed, so this reaches 524288 and changes the "
UNNAMED = " names no original context: the model was trained with it, for 131072 positions, or it reaches 4 x 131072 ="


def config(scheme, original=None, context=131072):
    key = {} if original is None else {"original_max_position_embeddings": original}
    return QWEN2 | {"max_position_embeddings": context, "rope_scaling": scheme | key}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (config(YARN, 32768), SHORT),
        (config({"rope_type": "yarn", "factor": 1.0}, 32768), "1 x 32768 = 32768 < 131072; expected a factor of 4."),
        (config(YARN | {"factor": 4.0}), MISSING),
        (config(YARN | {"factor": 4.0}, 131072), "yarn reaches 4 x 131072 = 524288 positions, where max_position_"),
        (config(YARN | {"factor": 4.0}, 32768, 40960), "yarn reaches 4 x 32768 = 131072 positions, where max_posi"),
        (config({"rope_type": "linear", "factor": 4.0}), f"linear{UNNAMED}"),
        (config({"rope_type": "ntk", "factor": 4.0}), f"ntk{UNNAMED}"),
        (config(LONGROPE | {"factor": 2.0}, 4096), "longrope has the attention factor of 2 x 4096 = 8192 positions, "),
        (config(LONGROPE | {"factor": 4.0}), MISSING),
        (config(YARN | {"factor": 4.0}, 32768), None),
        (config({"rope_type": "yarn"}, 32768), None),
        (config(YARN | {"factor": 3.05}, 32768, 100_000), None),  # a ratio, rounded
        (config(LONGROPE, 4096), None),
        (config(LONGROPE | {"factor": 2.0, "attention_factor": 1.2}, 4096), None),
        (config(LONGROPE | {"factor": 1.0, "long_factor": LONGROPE["short_factor"]}, 4096), None),
        (config({"rope_type": "llama3", "factor": 8.0} | BANDS, 8192), None),
        (config({"rope_type": "dynamic", "factor": 4.0}), None),
        (config({"rope_type": "default"}), None),
    ],
)
@pytest.mark.usefixtures("quick_fits")
def test_what_a_scheme_reaches_is_said_first(given, said, run, tmp_path):
    (rope,) = rfrope.from_config(given)
    found = describe_reach(rope)
    assert said in found if said else found == ""
    compared = models.compare(given).ropes[0]
    plan = analysis.plan(rope, 2**20)
    assert compared.caution == plan.caution == found
    path = tmp_path / "config.json"
    path.write_text(json.dumps(given))
    inspected = run("inspect", str(path), "--context", 1024)[1].partition("\n\n")[2]  # after the verdict
    assert all(one.startswith(found) for one in (str(compared), plan.preface, inspected, compared.verdict[0]))
    told = json.loads(run("inspect", str(path), "--json", "--context", 1024)[1])
    assert told["sets"][0]["scheme"]["caution"] == found


def test_no_published_config_is_called_wrong():
    ropes = [rope for one in PUBLISHED for rope in rfrope.from_config(one.config)]
    said = [describe_reach(rope) for rope in ropes]
    assert not [one for one in said if "does not reach" in one or "is missing" in one or "has the attention" in one]
    assert len(list(filter(None, said))) == 3  # Qwen's recipe for long texts, and two that were trained with linear


@pytest.mark.campaign
def test_a_plan_does_not_say_that_a_context_is_reached_that_is_not():
    (rope,) = rfrope.from_config(config(YARN, 32768))
    plan = analysis.plan(rope, 131072)
    assert plan.preface.startswith(f"{SHORT}\nThe plan starts from the frequencies before yarn. If ")
    assert (plan.stretched.reach, "unchanged" in plan.preface) == (65536, False)
    assert "It reaches the requested 65536 positions unchanged." in analysis.plan(rope, 65536).preface
