"""``rfrope audit``: its text, its JSON, and its exit codes."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    ("held", "meant"), [("right.npy", "qwen.json"), ("right.npz", "."), ("right.npz", "right_rope.npz")]
)
def test_right_frequencies(run, folder, held, meant):
    (folder / "config.json").write_bytes((folder / "qwen.json").read_bytes())
    code, out, err = run("audit", held, meant)
    assert (code, err) == (0, "")
    assert out.startswith("PASSED\n")


def test_wrong_frequencies(run, folder):
    code, out, _ = run("audit", "wrong.npz", "qwen.json")
    assert code == 1
    assert out.startswith("FAILED\n")
    assert "the scheme 'yarn' was left out" in out
    code, out, _ = run("audit", "wrong.npz", "qwen.json", "--json", "--context", "100")
    found = json.loads(out)
    assert (code, found["passed"], found["context"]) == (1, False, 100)
    assert found["findings"][0]["kind"] == "frequencies"
