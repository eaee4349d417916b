"""What is refused, in which words: every row of every table in tests/refusals, one for each room of the package.

A row is (call, error, words): the call raises this very error, and its message has the words, or each of several.
Calls that need a library begin with ``library(name)``, which skips the row where it is not installed.
"""

import pytest
from refused import ROOMS, rows


def every_row():
    for room in ROOMS:
        for place, (call, error, words) in enumerate(rows(room)):
            words = (words,) if isinstance(words, str) else words
            yield pytest.param(call, error, words, id=f"{room}-{place}-{words[0][:40]}")


@pytest.mark.parametrize(("call", "error", "words"), [*every_row()])
def test_a_call_is_refused_in_these_words(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert [one for one in words if one not in str(caught.value)] == []
