"""Arrays cut into parts that take a moment each."""

import numpy as np
import pytest

from rfrope._core import capacity


@pytest.mark.parametrize(
    "shape", [(), (0,), (7,), (1000,), (3, 200), (200, 3), (2, 90, 4), (9, 9, 9), (1, 1, 500), (0, 5)]
)
def test_parts_are_all_of_an_array_once_and_none_takes_longer_than_a_moment(monkeypatch, shape):
    monkeypatch.setattr(capacity, "MOMENT", 50)
    x = np.zeros(shape, int)
    sizes = [part.size for part in capacity.parts(x) if np.add(part, 1, out=part) is not None]
    assert np.all(x == 1)
    assert max(sizes) <= max(50, x.size // max([*shape, 1]))
    assert len(sizes) <= max(1, 3 * x.size // 50)


@pytest.mark.parametrize(("count", "each"), [(0, 1), (1, 1), (50, 1), (51, 1), (7, 20), (7, 1000), (5, 0)])
def test_spans_follow_each_other(monkeypatch, count, each):
    monkeypatch.setattr(capacity, "MOMENT", 50)
    found = list(capacity.spans(count, each))
    assert [index for span in found for index in range(span.start, span.stop)] == list(range(count))
    assert all((span.stop - span.start) * each <= max(50, each) for span in found)
