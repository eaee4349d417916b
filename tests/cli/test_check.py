"""``rfrope check``: its text, its JSON, and its exit codes."""

import pytest
from conftest import rows

from rfrope import models


@pytest.mark.parametrize(("words", "code", "verdict"), rows("cli/check.json", "verdicts"))
def test_verdicts(says, folder, words, code, verdict):
    assert says(*words.split(), code=code).startswith(verdict)
    assert says(*words.split(), "--json", code=code)["verdict"].startswith(verdict)


def test_all_of_it_is_the_result(says, folder):
    assert " ".join(says("check", "qwen.json").split()) == " ".join(str(models.check("qwen.json")).split())
