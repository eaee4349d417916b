"""Scores of equal content, and the first distance at which two Ropes differ, by the formula."""

import numpy as np
import pytest
from conftest import rows

import rfrope
from rfrope.models.rewriting import SHARE, choose_lengths, first_difference, score


def test_scores_count_blocks_that_stand_still():
    rope = rfrope.Rope([1.0, 0.5], head_dim=10, attention_factor=2.0)
    assert score(rope, 5) == 4.0 * 2.0 + 3.0
    assert score(rope, 5, 0.25) == 4.0 * 0.5 + 3.0


@pytest.mark.parametrize("far", [5, 4095, 4096, 9000])
def test_the_first_distance_is_found_in_every_chunk(far):
    omega = np.arccos(1.0 - SHARE) / (far - 0.5)  # the cosine leaves 1 by the share first at `far`
    one, other = rfrope.Rope([0.0]), rfrope.Rope([omega])
    assert first_difference(one, other, (1.0, 1.0), 10_000) == far
    assert first_difference(one, other, (1.0, 1.0), far) is None


@pytest.mark.parametrize(("scaling", "lengths"), rows("models/scoring.json", "lengths"))
def test_lengths_on_both_sides_of_a_change(scaling, lengths):
    config = {"model_type": "llama", "head_dim": 8, "max_position_embeddings": 64, "rope_scaling": scaling}
    assert choose_lengths(*rfrope.from_config(config)) == tuple(lengths)
    assert choose_lengths(rfrope.Rope([1.0])) == ()
