"""``rfrope compare``: its text, its JSON and its page."""

from __future__ import annotations

import json
import pathlib

from campaign import campaign

from rfrope import models


def test_text_and_json(run, folder):
    found = models.compare("qwen.json")
    assert run("compare", "qwen.json") == (0, f"{found}\n", "")
    code, out, _ = run("compare", "qwen.json", "--json")
    assert (code, json.loads(out)) == (0, found.to_dict() | {"html": None})
    options = ("--engine", "vllm", "--engine", "Trans_Formers", "--context", "64", "--sources")
    code, out, _ = run("compare", "qwen.json", *options)
    assert code == 0
    for said in (
        "a text of 64 positions",
        "They agree.",
        "\n  vllm/transformers_utils/config.py (patch_rope_parameters)",
    ):
        assert said in out
    assert "SGLang" not in out


@campaign
def test_page(run, folder, config):
    config(
        "qwen.json",
        json.loads(pathlib.Path("qwen.json").read_text()) | {"rope_scaling": {"type": "dynamic", "factor": 2}},
    )
    code, out, _ = run("compare", "qwen.json", "--html", "page.html")
    assert (code, out.splitlines()[-1]) == (0, "Written: page.html")
    text = pathlib.Path("page.html").read_text("utf-8")
    for said in (
        "Score of equal content: qwen3, a text of 262144 positions",
        "llama.cpp, Megatron-Bridge",
        "rope_scaling",
    ):
        assert said in text
