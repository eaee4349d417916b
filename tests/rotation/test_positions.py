"""Positions of pictures and video, and their sinusoidal embedding with its shifts."""

import functools
import json
import types

import mpmath
import numpy as np
import pytest
from conftest import TESTS, rows, tuples
from packages import installed

import rfrope
from rfrope import geometric, sinusoidal
from rfrope.rotation import grid_positions, mrope_positions, shift_matrix

# -- M-RoPE, against transformers' own functions -----------------------------------------------------------------------

TOKENS_PER_SECOND = 25.0


def test_times_of_a_video_are_rounded_down_from_float32():
    """As in Qwen2.5-VL's code, where 90 x 0.7 is 63."""
    assert mrope_positions([(91, 2, 2, 0.7)])[-1, 0] == 63 != int(90 * 0.7)


def rope_index(name, segments, merge=2, seconds=None):
    """What a class of transformers gives, (L, 3); segments as `mrope_positions` takes them, pictures have t = 1."""
    torch = installed("torch")
    family = installed(f"transformers.models.{name}.modeling_{name}")
    method = getattr(family, {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel"}[name])
    vision = types.SimpleNamespace(spatial_merge_size=merge, tokens_per_second=TOKENS_PER_SECOND)
    model = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    model.get_vision_position_ids = types.MethodType(method.get_vision_position_ids, model)
    kinds, grids = [], {0: [], 1: [], 2: []}
    for segment in segments:
        t, h, w = segment[:3] if isinstance(segment, tuple) else (segment, merge, merge)
        kind = 0 if isinstance(segment, int) else 1 if t == 1 else 2
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


FILE = "rotation/positions.json"


@pytest.mark.parametrize("name", json.loads((TESTS / FILE).read_text("utf-8")))
def test_after_a_video_as_earlier_versions_and_engines_count(name):
    segments, *axes = rows(FILE, name)
    assert np.array_equal(mrope_positions(segments).T, axes)
    assert np.array_equal(mrope_positions(segments, after_video="largest").T, axes)
    positions = mrope_positions(segments, after_video="sides").T
    assert np.array_equal(positions, axes) == ("wider than long" in name)


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
    found = mrope_positions([])
    assert (found.shape, found.dtype) == ((0, 3), np.int64)


# -- the sinusoidal embedding ------------------------------------------------------------------------------------------


PAIRINGS = ("interleaved", "half")
RNG = np.random.default_rng(8)

# positions, frequencies and the shape of the phases
SHAPES = tuples("rotation/shapes.json", "sinusoidal")


def stacked(u, pairing):
    """Sine and cosine of each block."""
    both = np.stack([np.sin(u), np.cos(u)], axis=-1 if pairing == "interleaved" else -2)
    return both.reshape(*u.shape[:-1], 2 * u.shape[-1])


def block_diagonal(u, pairing):
    """(8) of Stratos in each block."""
    n = u.shape[-1]
    places = np.arange(2 * n).reshape((n, 2) if pairing == "interleaved" else (2, n))
    found = np.zeros((*u.shape[:-1], 2 * n, 2 * n))
    for i, place in enumerate(places if pairing == "interleaved" else places.T):
        block = np.array([[np.cos(u[..., i]), np.sin(u[..., i])], [-np.sin(u[..., i]), np.cos(u[..., i])]])
        found[..., place[:, None], place] = np.moveaxis(block, (0, 1), (-2, -1))
    return found


PLAIN = {sinusoidal: stacked, shift_matrix: block_diagonal}
each = pytest.mark.parametrize("function", PLAIN)


@each
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(("p_shape", "w_shape", "u_shape"), SHAPES.values(), ids=SHAPES)
def test_sines_and_cosines_of_each_block_are_at_its_place(xp, function, pairing, p_shape, w_shape, u_shape):
    p, w = RNG.uniform(-9, 9, p_shape), RNG.standard_normal(w_shape)
    u = p[..., None] * w if w.ndim == 1 else p @ np.swapaxes(w, -1, -2)
    assert u.shape == u_shape
    got, expected = function(xp(p), xp(w), pairing=pairing), PLAIN[function](u, pairing)
    assert xp.owns(got)
    assert got.dtype == xp.dtype("float64")
    assert tuple(got.shape) == expected.shape
    np.testing.assert_allclose(xp.host(got), expected, rtol=0, atol=1e-13)


@each
@pytest.mark.parametrize("position", [131071, 2**24 + 1, 2**53 - 1, -(2**53 - 1)])
def test_far_positions_are_exact(xp, function, position):
    w = np.array([1.0, 0.3, 1e-4])
    with mpmath.workdps(60):
        turns = [position * mpmath.mpf(v) / (2 * mpmath.pi) for v in w.tolist()]
        exact = [float(2 * mpmath.pi * (turn - mpmath.nint(turn))) for turn in turns]
    for pairing in PAIRINGS:
        got = xp.host(function(xp(np.array(position)), xp(w), pairing=pairing))
        np.testing.assert_allclose(got, PLAIN[function](np.array(exact), pairing), rtol=0, atol=1e-15)


@each
def test_dtype_rounds_once(xp, function):
    p, w = xp(np.array([3, 131071])), xp(geometric(4))
    wide = xp.host(function(p, w))
    for dtype in ("float32", xp.dtype("float32")):
        narrow = function(p, w, dtype=dtype)
        assert narrow.dtype == xp.dtype("float32")
        np.testing.assert_array_equal(xp.host(narrow), wide.astype(np.float32))


def test_a_shift_is_a_rotation_with_its_pairs_reversed(cases):
    """The numbers that Stratos prints: (sin, cos) of a block turned by -u is (x_2, x_1) of a pair turned by +u."""
    with np.load(cases / "10_upstream_literals/seed004_karl_stratos_numeric.npz", allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    for x, t, name in (("q", "t1", "q_t1"), ("k", "t2", "k_t2")):
        pair = arrays[x].astype(np.float64)[[1, 0]]
        turned = (shift_matrix(float(arrays[t][0]), [1.0]) @ pair)[[1, 0]]
        np.testing.assert_allclose(turned, arrays[name], rtol=0, atol=1e-12)
        np.testing.assert_allclose(turned, arrays[f"{name}_printed"], rtol=0, atol=1e-4)
