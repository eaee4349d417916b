"""``rfrope compare``: its text, its JSON, and its exit codes."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import textwrap

import pytest

from rfrope import models

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "command_line.rst"
SCALING = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 1.0}
CONFIG = {"model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128}
CONFIG |= {"max_position_embeddings": 131072, "rope_theta": 1000000.0, "rope_scaling": SCALING}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tmp_path


def test_text(run, folder):
    assert run("compare", "config.json") == (0, f"{models.compare(CONFIG)}\n", "")
    code, out, _ = run("compare", ".", "--engine", "vllm", "--engine", "Trans_Formers", "--seq-len", "64", "--sources")
    assert code == 0
    for said in (
        "a text of 64 positions",
        "They agree.",
        "  vllm/transformers_utils/config.py (patch_rope_parameters)",
    ):
        assert said in out
    assert "SGLang" not in out


def test_json(run, folder):
    code, out, _ = run("compare", "config.json", "--json")
    assert (code, json.loads(out)) == (0, models.compare(CONFIG).to_dict())


def test_page(run, folder):
    (folder / "config.json").write_text(json.dumps(CONFIG | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}))
    code, out, _ = run("compare", "config.json", "--html", "page.html")
    assert (code, out.splitlines()[-1]) == (0, "Written: page.html")
    text = (folder / "page.html").read_text("utf-8")
    for said in (
        "Score of equal content: qwen3, a text of 262144 positions",
        "llama.cpp, TensorRT-LLM",
        "rope_scaling",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["config.json", "--engine", "vlm"], "--engine: 'vlm' is unknown; did you mean 'vLLM'? Expected one of 'trans"),
        (["config.json", "--seq-len", "0"], "argument --seq-len: 0 is below 1"),
        (["missing.json"], "there is no such file"),
        ([], "SOURCE"),
    ],
)
def test_bad_input(run, folder, arguments, said):
    code, out, err = run("compare", *arguments)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
def test_the_output_on_the_documentation_page(run, folder):
    (shown,) = re.findall(r"^    \$ rfrope (compare .*)\n((?:    .*\n|\n)+)", PAGE.read_text("utf-8"), re.MULTILINE)
    _, out, _ = run(*shlex.split(shown[0]))
    assert out.rstrip("\n") == textwrap.dedent(shown[1]).rstrip("\n")
