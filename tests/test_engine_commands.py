"""``rfrope compare`` and ``rfrope audit``: what they print, and their exit codes."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import textwrap

import numpy as np
import pytest

import rfrope
from rfrope import models

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "command_line.rst"
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "attention_factor": 1.0,
    },
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a config, and what right and wrong models hold."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (rope,) = rfrope.from_config(CONFIG)
    right = np.asarray(rope.frequencies, dtype=np.float32)
    np.save("right.npy", right)
    np.savez("right.npz", **{"rotary_emb.inv_freq": right, "weights": np.ones(3)})
    np.savez("wrong.npz", inv_freq=rfrope.geometric(64, base=1e6).astype(np.float32))
    np.savez("none.npz", weights=np.ones(3))
    rfrope.save("rope.npz", rope)
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 and no more")
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    return tmp_path


def test_compare(run, folder):
    code, out, err = run("compare", "config.json")
    assert (code, err) == (0, "")
    assert out == f"{models.compare(CONFIG)}\n"
    assert "Nothing that was tried makes these agree: llama.cpp." in out
    code, out, _ = run("compare", ".", "--engine", "vllm", "--engine", "Trans_Formers", "--seq-len", "64", "--sources")
    assert code == 0
    assert "a text of 64 positions" in out
    assert "They agree." in out
    assert "  vllm/transformers_utils/config.py (patch_rope_parameters)" in out
    assert "SGLang" not in out


def test_compare_as_json(run, folder):
    code, out, _ = run("compare", "config.json", "--json")
    assert code == 0
    assert json.loads(out) == models.compare(CONFIG).to_dict()


@pytest.mark.parametrize("held", ["right.npy", "right.npz"])
@pytest.mark.parametrize("meant", ["config.json", ".", "rope.npz"])
def test_audit_of_what_is_right(run, folder, held, meant):
    code, out, err = run("audit", held, meant)
    assert (code, err) == (0, "")
    assert out.startswith("PASSED\n")


def test_audit_of_what_is_wrong(run, folder):
    code, out, _ = run("audit", "wrong.npz", "config.json")
    assert code == 1
    assert out.startswith("FAILED\n")
    assert "the scheme 'yarn' was left out" in out
    code, out, _ = run("audit", "wrong.npz", "config.json", "--json", "--context", "100")
    told = json.loads(out)
    assert (code, told["passed"], told["context"]) == (1, False, 100)
    assert told["findings"][0]["kind"] == "frequencies"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["compare", "config.json", "--engine", "vlm"],
            "argument --engine: 'vlm' is unknown; did you mean 'vLLM'? Expected one of 'transformers'",
        ),
        (["compare", "config.json", "--seq-len", "0"], "argument --seq-len: 0 is below 1"),
        (["compare", "missing.json"], "there is no such file"),
        (["compare"], "SOURCE"),
        (["audit", "config.json", "config.json"], "FILE config.json: expected a name that ends in .npy or .npz"),
        (["audit", "missing.npz", "config.json"], "FILE missing.npz: No such file or directory"),
        (["audit", "damaged.npz", "config.json"], "FILE damaged.npz: damaged, or not a file of arrays"),
        (["audit", "objects.npy", "config.json"], "FILE objects.npy: damaged, or not a file of arrays"),
        (["audit", "none.npz", "config.json"], "holds no frequencies or tables of a RoPE"),
        (["audit", "right.npy", "none.npz"], "expected what rfrope.save writes"),
        (["audit", "right.npy", "missing"], "missing"),
    ],
)
def test_bad_input(run, folder, arguments, said):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
def test_the_outputs_on_the_documentation_page(run, folder):
    shown = re.findall(
        r"^    \$ rfrope ((?:compare|audit) .*)\n((?:    .*\n|\n)+)", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert len(shown) == 2
    for command, block in shown:
        _, out, _ = run(*shlex.split(command))
        assert out.rstrip("\n") == textwrap.dedent(block).rstrip("\n")
