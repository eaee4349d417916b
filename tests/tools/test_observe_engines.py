"""Files of observed engines: they name enough families, `compare` answers from them, and a run gives the same again."""

import datetime
import json

import pytest

from rfrope import engines, models
from rfrope.engines import observed
from tools import observe_engines

LEAST = {"transformers 4": 45, "MLX-LM": 40, "vLLM": 50, "SGLang": 40, "llama.cpp": 30, "mlx-vlm": 55, "exllamav3": 35}
SAMPLE = ("llama", "qwen3", "gemma3_text", "deepseek_v3", "glm4", "phi3", "olmo2", "cohere2", "gpt_oss", "ernie4_5")


@pytest.mark.parametrize("name", LEAST)
def test_a_file_knows_enough_families_and_compare_answers_from_it(name):
    held = observed.find_files()[name]
    assert len(held["families"]) >= LEAST[name]
    assert {"engine", "version", "date", "families", "failed", "rules"} <= {*held}
    known = {one.name: one.reading for one in engines.records() if one.reading}[name]
    assert known.version == held["version"]
    assert {one.removeprefix("part.") for one in held["families"]} <= {*known.model_types}
    answers = {}
    for family, config in observe_engines.FAMILIES.items():
        made = observe_engines.make_config(config, "flat", {"rope_type": "default"})
        try:
            found = models.compare(made, [name]).ropes
        except ValueError:  # it has no such keys, or none at all
            continue
        answers[family] = {rope.engines[0].status for rope in found if "vision" not in rope.name}
    assert sum("known" in one or "refused" in one for one in answers.values()) >= LEAST[name] - 5


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "engine", [one for one in observe_engines.DRIVERS if (observe_engines.FOLDER / f"{one}.json").exists()]
)
def test_a_sample_is_observed_again(engine):
    """Two of ten families, others each day, in an environment with the file's version; `.ci/engines` makes some."""
    stored = json.loads((observe_engines.FOLDER / f"{engine}.json").read_text("utf-8"))
    kind = observe_engines.DRIVERS[engine]
    try:
        if (version := kind.find_version()) != stored["version"]:
            pytest.skip(f"{kind.name} {version} is installed, not {stored['version']}")
        driver = kind()
    except (ImportError, FileNotFoundError) as error:
        pytest.skip(f"{kind.name} is not installed, or not with what it asks for: {error}")
    old = observe_engines.expand(stored)
    day = [*observe_engines.DRIVERS].index(engine) + datetime.date.today().toordinal()
    sample = [name for name in SAMPLE[day % 5 :: 5] if name in old]
    assert observe_engines.make_file(driver, sample)["families"] == {name: old[name] for name in sample}
