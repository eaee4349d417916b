"""What is refused, in which words: every row of every table in tests/refusals, one for each room of the package.

A row is (call, error, words): the call raises this very error, and its message has the words, or each of several.
Calls that need a library begin with ``library(name)``, which skips the row where it is not installed.
"""

import importlib.util
import pathlib

import pytest

TABLES = sorted((pathlib.Path(__file__).parent / "refusals").glob("*.py"))


def rows():
    for path in TABLES:
        spec = importlib.util.spec_from_file_location(f"refusals_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for place, (call, error, words) in enumerate(module.ROWS):
            words = (words,) if isinstance(words, str) else words
            yield pytest.param(call, error, words, id=f"{path.stem}-{place}-{words[0][:40]}")


@pytest.mark.parametrize(("call", "error", "words"), [*rows()])
def test_a_call_is_refused_in_these_words(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert [one for one in words if one not in str(caught.value)] == []
