"""``rfrope audit``: its text, its JSON, and its exit codes."""

import pytest


@pytest.mark.parametrize(
    ("held", "meant"), [("right.npy", "qwen.json"), ("right.npz", "."), ("right.npz", "right_rope.npz")]
)
def test_right_frequencies(says, folder, held, meant):
    (folder / "config.json").write_bytes((folder / "qwen.json").read_bytes())
    assert says("audit", held, meant).startswith("PASSED\n")


def test_wrong_frequencies(says, folder):
    out = says("audit", "wrong.npz", "qwen.json", code=1)
    assert out.startswith("FAILED\n")
    assert "the scheme 'yarn' was left out" in out
    found = says("audit", "wrong.npz", "qwen.json", "--json", "--context", "100", code=1)
    assert (found["passed"], found["context"], found["findings"][0]["kind"]) == (False, 100, "frequencies")
