"""``rfrope diff``: its text, its JSON, and its exit codes."""

from __future__ import annotations

import json

from rfrope import models


def test_the_same(run, folder):
    assert run("diff", "qwen.json", "qwen.json") == (0, "The RoPE is the same.\n", "")
    code, out, err = run("diff", "qwen.json", "right_rope.npz", "--json")
    assert (code, json.loads(out)["same"], err) == (0, True, "")


def test_what_changed(run, folder, config):
    held = json.loads((folder / "qwen.json").read_text())
    held.pop("rope_scaling")
    config("new.json", held)
    found = models.diff("qwen.json", "new.json")
    assert run("diff", "qwen.json", "new.json") == (1, f"{found}\n", "")
    assert "rope_type yarn -> default" in str(found)
    code, out, _ = run("diff", "qwen.json", "new.json", "--json")
    assert (code, json.loads(out)) == (1, json.loads(json.dumps(found.to_dict())))


def test_options(run, folder, config):
    config("new.json", json.loads((folder / "qwen.json").read_text()) | {"rope_theta": 1.1e6})
    options = ("--seq-len", "4096", "--tolerance", "0.2")
    found = models.diff("qwen.json", "new.json", seq_len=4096, tolerance=0.2)
    code, out, _ = run("diff", "qwen.json", "new.json", *options)
    assert (code, out) == (1, f"{found}\n")
    assert found.differs_from != models.diff("qwen.json", "new.json").differs_from
