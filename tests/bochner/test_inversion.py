"""The search for a spectrum: how far it goes."""

import numpy as np

from rfrope.bochner import inversion, reading


def test_octaves_end_where_they_are_said_to(monkeypatch):
    """A law that is nowhere faint is followed over so many octaves, and no more."""
    monkeypatch.setattr(inversion, "_REACH", 7)
    lags = reading.read_lags(lambda x: np.exp(-0.5 * x * x), 1.0)
    found = inversion.resolve_octaves(lambda w: 1.0 / (1.0 + w), lambda w: np.full_like(w, 1e-30), lags)
    assert (found.edges[0], found.edges[-1]) == (0.0, 2.0**7)
