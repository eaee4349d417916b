"""The search for a spectrum: how far it goes, how thorough it is, and what its noise amounts to."""

from __future__ import annotations

import numpy as np
import pytest

from rfrope.bochner import inversion, reading, tabulated


def test_a_thorough_search_in_the_plane_may_use_more_panels(monkeypatch):
    """Abel's transform is dear: a quick search uses few."""
    looked = []
    monkeypatch.setattr(inversion, "resolve_octaves", lambda law, noise, search: looked.append(search) or 1 / 0)
    plane = tabulated.MEASURES[2]
    given = reading.read_lags(lambda t: np.exp(-np.abs(t)), plane, 1.0)
    for thorough in (False, True):
        with pytest.raises(ZeroDivisionError):
            inversion.transform(given, plane, thorough=thorough)
    assert [search.budget for search in looked] == [plane.panels, inversion._THOROUGH]


def test_octaves_end_where_they_are_said_to(monkeypatch):
    """A law that is nowhere faint is followed over so many octaves, and no more."""
    monkeypatch.setattr(inversion, "_REACH", 7)
    search = inversion.Search(tabulated.MEASURES[1], 2.0, 1.0, 10**5)
    found = inversion.resolve_octaves(lambda w: 1.0 / (1.0 + w), lambda w: np.full_like(w, 1e-30), search)
    assert (found.edges[0], found.edges[-1]) == (0.0, 2.0 * 2.0**7)


def test_what_noise_amounts_to_in_the_plane(monkeypatch):
    """Four times that along a line: Abel's transform adds up what is missing there."""
    seen, continue_tail = [], inversion.continue_tail
    monkeypatch.setattr(inversion, "continue_tail", lambda *a: seen.append(continue_tail(*a)) or seen[-1])
    for ndim, factor in ((1, 1.0), (2, 4.0), (3, 1.0)):
        measure = tabulated.MEASURES[ndim]
        read = reading.read_lags(lambda x: np.exp(-0.5 * x * x), measure, 1.0)
        assert inversion.transform(read, measure).noise == factor * seen[-1].noise
