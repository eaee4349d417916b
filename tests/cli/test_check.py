"""``rfrope check``: its text, its JSON, and its exit codes."""

import pytest

from rfrope import models


@pytest.mark.parametrize(
    ("words", "code", "verdict"),
    [
        ("check qwen.json", 0, "right in transformers: yarn, base 1e+06, 128 of 128 features, pairs half; "),
        ("check qwen.json right_rope.npz", 0, "right in transformers: yarn"),
        ("check qwen.json --engine sglang", 1, "wrong: SGLang 0.5.23: scores are 1.296 times as large"),
        ("check qwen.json config.json", 1, "wrong: the two sides differ: "),
        ("check bare.json", 2, "cannot tell: model_type 'mine' is not known"),
        ("check layers.json --context 512", 1, "wrong: 512 positions are asked for, and the RoPE reaches 256"),
    ],
)
def test_verdicts(says, folder, words, code, verdict):
    assert says(*words.split(), code=code).startswith(verdict)
    assert says(*words.split(), "--json", code=code)["verdict"].startswith(verdict)


def test_all_of_it_is_the_result(says, folder):
    assert " ".join(says("check", "qwen.json").split()) == " ".join(str(models.check("qwen.json")).split())
