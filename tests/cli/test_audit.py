"""``rfrope audit``: its text, its JSON, and its exit codes."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import textwrap

import numpy as np
import pytest

import rfrope

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "command_line.rst"
SCALING = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 1.0}
CONFIG = {"model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128}
CONFIG |= {"max_position_embeddings": 131072, "rope_theta": 1000000.0, "rope_scaling": SCALING}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a config, and the buffers of right and wrong models."""
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


@pytest.mark.parametrize("held", ["right.npy", "right.npz"])
@pytest.mark.parametrize("meant", ["config.json", ".", "rope.npz"])
def test_right_frequencies(run, folder, held, meant):
    code, out, err = run("audit", held, meant)
    assert (code, err) == (0, "")
    assert out.startswith("PASSED\n")


def test_wrong_frequencies(run, folder):
    code, out, _ = run("audit", "wrong.npz", "config.json")
    assert code == 1
    assert out.startswith("FAILED\n")
    assert "the scheme 'yarn' was left out" in out
    code, out, _ = run("audit", "wrong.npz", "config.json", "--json", "--context", "100")
    found = json.loads(out)
    assert (code, found["passed"], found["context"]) == (1, False, 100)
    assert found["findings"][0]["kind"] == "frequencies"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["config.json", "config.json"], "FILE config.json: expected a name that ends in .npy or .npz"),
        (["missing.npz", "config.json"], "FILE missing.npz: No such file or directory"),
        (["damaged.npz", "config.json"], "FILE damaged.npz: damaged, or not a file of arrays"),
        (["objects.npy", "config.json"], "FILE objects.npy: damaged, or not a file of arrays"),
        (["none.npz", "config.json"], "holds no frequencies or tables of a RoPE"),
        (["right.npy", "none.npz"], "expected what rfrope.save writes"),
        (["right.npy", "missing"], "missing"),
    ],
)
def test_bad_input(run, folder, arguments, said):
    code, out, err = run("audit", *arguments)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
def test_the_output_on_the_documentation_page(run, folder):
    (shown,) = re.findall(r"^    \$ rfrope (audit .*)\n((?:    .*\n|\n)+)", PAGE.read_text("utf-8"), re.MULTILINE)
    _, out, _ = run(*shlex.split(shown[0]))
    assert out.rstrip("\n") == textwrap.dedent(shown[1]).rstrip("\n")
