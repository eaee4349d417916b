"""``rfrope diff``: its text, its JSON, and its exit codes."""

from __future__ import annotations

import json
import pathlib

from rfrope import models


def test_the_same(says, folder):
    assert says("diff", "qwen.json", "qwen.json") == "The RoPE is the same.\n"
    assert says("diff", "qwen.json", "right_rope.npz", "--json")["same"] is True


def test_what_changed(says, folder, config):
    held = json.loads(pathlib.Path("qwen.json").read_text())
    config("plain.json", held | {"rope_scaling": None})
    found = models.diff("qwen.json", "plain.json")
    assert "rope_type yarn -> default" in str(found)
    assert says("diff", "qwen.json", "plain.json", code=1) == f"{found}\n"
    assert says("diff", "qwen.json", "plain.json", "--json", code=1) == json.loads(json.dumps(found.to_dict()))
    config("other.json", held | {"rope_theta": 1.1e6})
    found = models.diff("qwen.json", "other.json", seq_len=4096, tolerance=0.2)
    assert says("diff", "qwen.json", "other.json", "--seq-len", 4096, "--tolerance", 0.2, code=1) == f"{found}\n"
    assert found.differs_from != models.diff("qwen.json", "other.json").differs_from
