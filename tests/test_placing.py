"""Positions of packed sequences, of text with pictures and video, and of images of another resolution."""

from __future__ import annotations

import functools
import types

import numpy as np
import pytest
from packages import installed

import rfrope
from rfrope.rotation import grid_positions, mrope_positions, packed_positions

# -- packed sequences --------------------------------------------------------------------------------------------------


def test_each_sequence_counts_from_its_own_start(xp):
    lengths = [3, 0, 1, 7]
    ends = np.cumsum([0, *lengths])
    got = packed_positions(xp(ends, "int32"))
    assert xp.owns(got)
    assert xp.host(got).tolist() == [i for n in lengths for i in range(n)]
    got = packed_positions(xp(ends, "int32"), starts=xp(np.array([5, 1, 2, 0]), "int32"))
    assert xp.host(got).tolist() == [s + i for s, n in zip([5, 1, 2, 0], lengths, strict=True) for i in range(n)]
    assert packed_positions([0]).shape == (0,)
    assert packed_positions([0, 2, 3], starts=10).tolist() == [10, 11, 10]


@pytest.mark.parametrize("starts", [[[7, 0]], [[7], [0]], [7], [7, 0, 1], [[3]]], ids=str)
def test_starts_are_one_number_or_one_a_sequence(starts):
    """Another shape would broadcast to a table of positions."""
    with pytest.raises(ValueError, match=r"starts has shape .*; expected one number, or 2, one a sequence"):
        packed_positions([0, 1, 3], starts=starts)


def test_packed_scores_are_those_of_each_sequence_alone():
    rope = rfrope.Rope(rfrope.geometric(4))
    x = np.random.default_rng(0).standard_normal((10, 8))
    packed = rope.rotate(x, packed_positions([0, 4, 10]))
    assert np.array_equal(packed[4:], rope.rotate(x[4:], np.arange(6)))
    assert not np.allclose(packed[4:], rope.rotate(x, np.arange(10))[4:])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: packed_positions([1, 2]), ValueError, "cu_seqlens is .*expected .B . 1,.: 0, then the running sum"),
        (lambda: packed_positions([0, 3, 2]), ValueError, r"\[0, 3, 2\]; expected .* running sum"),
        (lambda: packed_positions([[0, 3]]), ValueError, r"\[\[0, 3\]\]; expected .* running sum"),
        (lambda: packed_positions([]), ValueError, r"\[\]; expected .* running sum"),
        (lambda: packed_positions([0.0, 3.0]), TypeError, "cu_seqlens has dtype float64; expected whole numbers"),
        (lambda: packed_positions([0, 3], starts=[1, 2]), ValueError, r"starts has shape \(2,\); expected one number, or 1"),
        (lambda: packed_positions([0, 3], starts=0.5), TypeError, "starts has dtype float64"),
        (lambda: mrope_positions([2, (1, 4)]), ValueError, r"segments\[1\] is \(1, 4\); expected \(t, h, w\)"),
        (lambda: mrope_positions([(1, 4, 5)]), ValueError, "expected a height and width that merge = 2 divides"),
        (lambda: mrope_positions([(1, 4, 4, 0.0)]), ValueError, r"segments\[0\]\[3\] is 0.0; expected a positive"),
        (lambda: mrope_positions([2.5]), TypeError, r"segments\[0\] is 2.5; expected a whole number"),
        (
            lambda: mrope_positions([2], after_video="time"),
            ValueError,
            "after_video is 'time'; expected one of 'largest', 'sides'",
        ),
        (lambda: mrope_positions([-1]), ValueError, r"segments\[0\] is -1"),
        (lambda: grid_positions((2, 2), resized="pixel"), ValueError, "resized is 'pixel'; expected one of 'extrapolate'"),
        (lambda: grid_positions(()), ValueError, "shape is empty"),
        (lambda: grid_positions((2, 2), resized="interpolate"), ValueError, "trained is None with resized='interpolate'"),
        (lambda: grid_positions((2, 2), trained=(2, 2)), ValueError, "expected none, since nothing is interpolated"),
        (lambda: grid_positions((2, 2), resized="interpolate", trained=(2,)), ValueError, "expected 2 numbers"),
        (lambda: grid_positions((2, 0)), ValueError, r"shape\[1\] is 0; expected a whole number from 1"),
    ],
)  # fmt: skip
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


# -- M-RoPE, against transformers' own functions -----------------------------------------------------------------------

TOKENS_PER_SECOND = 25.0


def rope_index(name, segments, merge=2, seconds=None):
    """What a class of transformers gives, (L, 3); segments as `mrope_positions` takes them, pictures have t = 1."""
    torch = installed("torch")
    family = installed(f"transformers.models.{name}.modeling_{name}")
    owner = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel", "qwen3_vl": "Qwen3VLModel"}[name]
    method = getattr(family, owner)
    vision = types.SimpleNamespace(spatial_merge_size=merge, tokens_per_second=TOKENS_PER_SECOND)
    model = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    model.get_vision_position_ids = types.MethodType(method.get_vision_position_ids, model)
    kinds, grids = [], {1: [], 2: []}
    for segment in segments:
        if isinstance(segment, int):
            kinds += [0] * segment
            continue
        t, h, w = segment[:3]
        kind = 1 if t == 1 else 2
        kinds += [kind] * (t * (h // merge) * (w // merge))
        grids[kind].append([t, h, w])
    told = {"second_per_grid_ts": torch.tensor(seconds, dtype=torch.float32)} if seconds else {}
    told |= {f"{key}_grid_thw": torch.tensor(grids[kind]) for kind, key in ((1, "image"), (2, "video")) if grids[kind]}
    tokens = torch.tensor([kinds])
    positions, delta = method.get_rope_index(model, torch.zeros_like(tokens), tokens, **told)
    return positions[:, 0].T.numpy(), int(delta[0, 0])


@functools.cache
def rule():
    """How the installed transformers goes on after a video."""
    version = tuple(map(int, installed("transformers").__version__.split(".")[:2]))
    return "sides" if version >= (5, 3) else "largest"


TEXTS = (
    [7],
    [3, (1, 4, 6), 5],
    [(1, 8, 4), 1],
    [2, (1, 4, 4), 1, (1, 6, 12), 4, (1, 2, 2), 3],
    [5, (4, 6, 4), 6, (1, 4, 8), 2],
)


@pytest.mark.parametrize("segments", TEXTS, ids=str)
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_text_pictures_and_video(name, segments):
    seconds = [1.0 / TOKENS_PER_SECOND] * 4 if name == "qwen2_5_vl" else None
    wanted, delta = rope_index(name, segments, seconds=seconds)
    got = mrope_positions(segments, after_video=rule())
    assert np.array_equal(got, wanted)
    assert np.max(got) + 1 - len(got) == delta
    assert np.array_equal(mrope_positions(segments, start=9, after_video=rule()), got + 9)


@pytest.mark.parametrize("fps", [1.0, 2.0, 24.0, 29.97, 23.976, 7.5])
def test_frames_of_qwen_2_5_vl_are_seconds_apart(fps):
    """Times are rounded down from float32, by which a product that is whole in float64 may miss it."""
    seconds = float(np.float32(2.0 / fps))
    wanted, _ = rope_index("qwen2_5_vl", [5, (40, 4, 4), 6, (1, 4, 8), 2], seconds=[seconds])
    interval = float(np.float32(TOKENS_PER_SECOND) * np.float32(seconds))
    got = mrope_positions([5, (40, 4, 4, interval), 6, (1, 4, 8), 2], after_video=rule())
    assert np.array_equal(got, wanted)


STORED = {
    "Qwen2-VL, by its class in transformers 4.57.6 and by SGLang 0.5.23": (
        [2, (4, 4, 4), 3],
        [0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 6, 7, 8],
        [0, 1, 2, 2, 3, 3, 2, 2, 3, 3, 2, 2, 3, 3, 2, 2, 3, 3, 6, 7, 8],
        [0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 6, 7, 8],
    ),
    "Qwen2-VL, a picture and two videos, by the same": (
        [1, (1, 4, 4), 1, (5, 2, 4), 2, (3, 4, 2), 1],
        [0, 1, 1, 1, 1, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 10, 11, 11, 12, 12, 13, 13, 14],
        [0, 1, 1, 2, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 9, 10, 11, 12, 11, 12, 11, 12, 14],
        [0, 1, 2, 1, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5, 4, 5, 9, 10, 11, 11, 11, 11, 11, 11, 14],
    ),
    "Qwen2-VL, wider than long, by the same": (
        [2, (2, 4, 8), 2],
        [0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 6, 7],
        [0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 2, 2, 2, 2, 3, 3, 3, 3, 6, 7],
        [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7],
    ),
    "Qwen2.5-VL, 25 positions a second, frames half a second apart, by SGLang 0.5.23": (
        [2, (3, 4, 4, 12.5), 2],
        [0, 1, 2, 2, 2, 2, 14, 14, 14, 14, 27, 27, 27, 27, 28, 29],
        [0, 1, 2, 2, 3, 3, 2, 2, 3, 3, 2, 2, 3, 3, 28, 29],
        [0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 28, 29],
    ),
    "Qwen2.5-VL, 0.08 seconds and then 1, by SGLang 0.5.23": (
        [1, (2, 2, 4, 2.0), 1, (3, 4, 4, 25.0), 2],
        [0, 1, 1, 3, 3, 4, 5, 5, 5, 5, 30, 30, 30, 30, 55, 55, 55, 55, 56, 57],
        [0, 1, 1, 1, 1, 4, 5, 5, 6, 6, 5, 5, 6, 6, 5, 5, 6, 6, 56, 57],
        [0, 1, 2, 1, 2, 4, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 56, 57],
    ),
}


@pytest.mark.parametrize("name", STORED)
def test_after_a_video_as_earlier_versions_and_engines_count(name):
    segments, *axes = STORED[name]
    assert np.array_equal(mrope_positions(segments).T, axes)
    assert np.array_equal(mrope_positions(segments, after_video="largest").T, axes)
    positions = mrope_positions(segments, after_video="sides").T
    assert np.array_equal(positions, axes) == ("wider than long" in name)


def test_after_a_video_as_transformers_5_counts():
    """Stored outputs of its 5.23: the text after a video lies before later frames."""
    first = [0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 4, 5, 6]
    assert mrope_positions([2, (4, 4, 4), 3], after_video="sides")[:, 0].tolist() == first
    timed = [0, 1, 2, 2, 2, 2, 14, 14, 14, 14, 27, 27, 27, 27, 4, 5]
    assert mrope_positions([2, (3, 4, 4, 12.5), 2], after_video="sides")[:, 0].tolist() == timed


def test_qwen3_vl_has_a_text_before_every_frame():
    torch = installed("torch")
    segments = [3, (1, 4, 4), 6, (1, 4, 6), 4, (1, 4, 6), 4, (1, 4, 6), 2]
    for after_video in ("largest", "sides"):  # frames are pictures there, each with a text before it
        got = mrope_positions(segments, after_video=after_video)
        assert np.array_equal(got, rope_index("qwen3_vl", segments)[0])
    kinds = [0, 0, *([2] * 6 + [0] * 4) * 3]
    family = installed("transformers.models.qwen3_vl.modeling_qwen3_vl")
    vision = types.SimpleNamespace(spatial_merge_size=2)
    model = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    model.get_vision_position_ids = types.MethodType(family.Qwen3VLModel.get_vision_position_ids, model)
    tokens = torch.tensor([kinds])
    wanted, _ = family.Qwen3VLModel.get_rope_index(model, tokens, tokens, video_grid_thw=torch.tensor([[3, 4, 6]]))
    assert np.array_equal(mrope_positions([2, (1, 4, 6), 4, (1, 4, 6), 4, (1, 4, 6), 4]), wanted[:, 0].T.numpy())


def test_they_rotate_with_sections(xp):
    (rope,) = rfrope.from_config({"model_type": "qwen2_vl_text", "head_dim": 128, "max_position_embeddings": 32768,
                                  "rope_parameters": {"rope_type": "default", "rope_theta": 1e6,
                                                      "mrope_section": [16, 24, 24]}})  # fmt: skip
    positions = mrope_positions([2, (1, 4, 4), 3])
    x = np.random.default_rng(0).standard_normal((9, 128))
    got = rope.rotate(xp(x), xp(positions))
    text = rope.rotate(x, np.repeat(np.arange(9)[:, None], 3, axis=1))
    np.testing.assert_allclose(xp.host(got)[:2], text[:2], atol=1e-14)
    assert not np.allclose(xp.host(got)[3:], text[3:])


# -- another resolution ------------------------------------------------------------------------------------------------


def test_patches_stay_at_their_places_in_the_picture():
    old = grid_positions((4, 6))
    new = grid_positions((8, 12), resized="interpolate", trained=(4, 6))
    assert old.dtype == np.int64
    assert old.tolist() == [[r, c] for r in range(4) for c in range(6)]
    assert np.array_equal(new.reshape(8, 12, 2)[::2, ::2].reshape(-1, 2), old)
    centres = grid_positions((8, 12), resized="interpolate centres", trained=(4, 6)).reshape(4, 2, 6, 2, 2)
    np.testing.assert_allclose(centres.mean(axis=(1, 3)).reshape(-1, 2), old, atol=1e-14)
    same = grid_positions((4, 6), resized="interpolate centres", trained=(4, 6))
    np.testing.assert_allclose(same, old, atol=1e-14)
    assert grid_positions((2, 3, 4)).shape == (24, 3)


def test_centres_are_those_of_dinov3():
    torch = installed("torch")
    theirs = installed("transformers.models.dinov3_vit.modeling_dinov3_vit").get_patches_center_coordinates
    wanted = theirs(5, 9, torch.float64, None).numpy()
    np.testing.assert_allclose(grid_positions((5, 9), resized="centres"), wanted, atol=1e-15)


def test_edges_are_those_of_rotary_embedding_torch():
    torch = installed("torch")
    library = installed("rotary_embedding_torch")
    rotary = library.RotaryEmbedding(8, freqs_for="pixel", max_freq=10, cache_if_possible=False)
    wanted = rotary.get_axial_freqs(5, 7).detach().double().numpy()[..., ::2].reshape(35, 8)
    line = rfrope.frequencies.pixel(4)
    rope = rfrope.axial(line, line)
    phases = rfrope.rotation.phases(grid_positions((5, 7), resized="edges"), rope.frequencies)
    assert torch.is_tensor(rotary.freqs)
    np.testing.assert_allclose(phases, wanted, atol=2e-5)


def test_libraries_and_dtypes(xp):
    got = grid_positions((3, 2), resized="centres", xp=xp.module, dtype=xp.dtype("float32"))
    assert xp.owns(got)
    assert got.dtype == xp.dtype("float32")
    np.testing.assert_allclose(xp.host(got), grid_positions((3, 2), resized="centres"), atol=1e-7)
    assert xp.owns(mrope_positions([2, (1, 4, 4)], xp=xp.module))


def test_no_segments_have_no_positions():
    found = mrope_positions([])
    assert (found.shape, found.dtype) == ((0, 3), np.int64)
    assert packed_positions([0]).shape == (0,)
