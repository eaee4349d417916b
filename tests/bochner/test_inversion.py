"""The search for a spectrum: how far it goes, and what its noise amounts to."""

import numpy as np
from lag_functions import gaussian

from rfrope.bochner import inversion, reading, tabulated


def test_octaves_end_where_they_are_said_to(monkeypatch):
    """A law that is nowhere faint is followed over so many octaves, and no more."""
    monkeypatch.setattr(inversion, "_REACH", 7)
    line = tabulated.MEASURES[1]
    lags = reading.read_lags(gaussian, line, 1.0, gaussian(np.arange(99.0)))
    found = inversion.resolve_octaves(lambda w: 1.0 / (1.0 + w), lambda w: np.full_like(w, 1e-30), line, lags)
    assert (found.edges[0], found.edges[-1]) == (0.0, 2.0**7)


def test_what_noise_amounts_to_in_the_plane(monkeypatch):
    """Four times that along a line: Abel's transform adds up what is missing there."""
    seen, continue_tail = [], inversion.continue_tail
    monkeypatch.setattr(inversion, "continue_tail", lambda *a: seen.append(continue_tail(*a)) or seen[-1])
    for ndim, factor in ((1, 1.0), (2, 4.0), (3, 1.0)):
        measure = tabulated.MEASURES[ndim]
        read = reading.read_lags(gaussian, measure, 1.0, gaussian(np.arange(99.0)))
        assert inversion.transform(read, measure).noise == factor * seen[-1].noise
