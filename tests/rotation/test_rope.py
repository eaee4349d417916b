"""The record of a rotation: its fields, that it does what the functions on arrays do, and what is refused."""

import copy
import dataclasses
import functools
import inspect
import json
import pickle
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from campaign import campaign
from paired_calls import CALLS, Q
from public import FUNCTIONS

import rfrope
from rfrope import Rope, from_config
from rfrope.rotation import rope as module

LADDER = rfrope.geometric(8)
RNG = np.random.default_rng(11)
SETS = {
    "a ladder": Rope(LADDER),
    "neighbours": Rope(LADDER, pairing="interleaved"),
    "part of a head": Rope(LADDER, head_dim=20, attention_factor=1.25),
    "sections": Rope(LADDER, sections=(2, 3, 3)),
    "sections in turn": Rope(LADDER, sections=(4, 2, 2), interleaved=True, attention_factor=0.5),
    "vectors": Rope(RNG.normal(size=(8, 2)), pairing="interleaved"),
    "heads": Rope(RNG.normal(size=(3, 8, 2))),
}
each_set = pytest.mark.parametrize("rope", SETS.values(), ids=SETS)


def tokens(rope: Rope, n: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Features of 3 heads and n tokens, and positions."""
    axes = rope.vectors.shape[-1] if np.ndim(rope.vectors) > 1 else 0
    positions = RNG.integers(0, 4096, (n, axes) if axes else (n,))
    return RNG.normal(size=(3, n, rope.head_dim)), positions


def by_function(rope: Rope, x, positions, **options):
    return rfrope.rotate(x, positions, rope.vectors, pairing=rope.pairing, scale=rope.attention_factor, **options)


# -- fields ------------------------------------------------------------------------------------------------------------


def test_the_fields_of_a_bare_set_and_numbers_in_their_plain_form():
    rope = Rope([1.0, 0.5])
    assert rope.frequencies.dtype == np.float64
    fields = (rope.pairing, rope.head_dim, rope.attention_factor, rope.sections, rope.interleaved, rope.context)
    assert fields == ("half", 4, 1.0, None, False, None)
    assert rope.source == rfrope.rotation.Provenance()
    assert (rope.n_blocks, rope.rotary_dim) == (2, 4)
    assert rope.vectors is rope.frequencies
    with pytest.raises(dataclasses.FrozenInstanceError):
        rope.pairing = "interleaved"
    rope = Rope(np.arange(1, 3), head_dim=np.int32(8), attention_factor=np.float32(0.5), context=np.int64(9))
    assert rope.frequencies.dtype == np.float64
    assert [type(value) for value in (rope.head_dim, rope.attention_factor, rope.context)] == [int, float, int]
    assert Rope([1.0], sections=np.array([1])).sections == (1,)
    assert Rope([1.0], context=[4, np.int64(5)]).context == (4, 5)


def test_narrow_frequencies_stay_narrow(xp):
    rope = Rope(xp(LADDER, "float32"))
    assert rope.frequencies.dtype == xp.dtype("float32")
    assert xp.owns(rope.frequencies)


def test_it_unpacks_as_a_pair_and_is_an_array():
    frequencies, factor = Rope(LADDER, attention_factor=2.0)
    assert factor == 2.0
    for held in (frequencies, np.asarray(Rope(LADDER))):
        assert np.array_equal(held, LADDER)
    assert np.asarray(Rope(LADDER), dtype=np.float32).dtype == np.float32


def test_its_text():
    assert repr(Rope([1.0])) == "Rope(1 frequencies, pairing='half', head_dim=2)"
    shown = repr(Rope(LADDER, head_dim=32, attention_factor=1.5, sections=(4, 4), interleaved=True, context=64))
    fields = "pairing='half', head_dim=32, attention_factor=1.5, sections=(4, 4), interleaved=True, context=64"
    assert shown == f"Rope(8 frequencies, {fields})"
    made = Rope(np.ones((2, 4, 3)), source={"kernel": "matern(nu=1.5)"})
    assert repr(made) == "Rope(frequencies (2, 4, 3), pairing='half', head_dim=8, kernel='matern(nu=1.5)')"


@each_set
def test_copies_and_pickles_are_the_same(rope):
    x, positions = tokens(rope)
    wanted = rope.rotate(x, positions)
    for other in (copy.copy(rope), copy.deepcopy(rope), pickle.loads(pickle.dumps(rope))):
        assert np.array_equal(other.rotate(x, positions), wanted)
        assert repr(other) == repr(rope)
        assert other.source == rope.source


# -- what it does ------------------------------------------------------------------------------------------------------


@campaign
@each_set
def test_it_rotates_as_the_function_does_however_often(rope, xp):
    x, positions = tokens(rope)
    moved = dataclasses.replace(rope, frequencies=xp(np.asarray(rope.frequencies)))
    for inverse in (False, True):
        wanted = by_function(rope, x, positions, inverse=inverse)
        for _ in range(3):
            found = moved.rotate(xp(x), xp(positions), inverse=inverse)
            assert xp.owns(found)
            np.testing.assert_allclose(xp.host(found), wanted, rtol=0, atol=1e-14)


def test_threads_may_share_one():
    rope = Rope(LADDER, attention_factor=1.25)
    jobs = [(RNG.normal(size=(4, 1 + i % 3, 16)), RNG.integers(0, 9999, 1 + i % 3)) for i in range(60)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda job: rope.rotate(*job), jobs))
    for (x, positions), result in zip(jobs, found, strict=True):
        assert np.array_equal(result, by_function(rope, x, positions))


@each_set
def test_its_table_and_scores_are_those_of_the_functions(rope):
    x, positions = tokens(rope)
    other, later = tokens(rope, 7)
    table = rfrope.rotation_table(positions, rope.vectors, scale=rope.attention_factor)
    for found, wanted in zip(rope.table(positions), table, strict=True):
        assert np.array_equal(found, wanted)
    assert rope.table(positions, dtype="float32")[0].dtype == np.float32
    by_hand = rope.rotate(x, positions) @ np.swapaxes(rope.rotate(other, later), -1, -2)
    np.testing.assert_allclose(rope.scores(x, other, positions, later), by_hand, atol=1e-12)


# -- models without a pairing of ours ----------------------------------------------------------------------------------


def test_without_a_pairing_it_can_be_read_but_not_rotate():
    (rope,) = from_config({"model_type": "nanochat", "hidden_size": 64, "num_attention_heads": 4})
    assert rope.pairing is None
    assert "negative frequencies" in rope.source.model.note
    assert rfrope.analysis.wavelengths(rope).shape == (8,)
    x, positions = tokens(rope)
    for call in (lambda: rope.rotate(x, positions), lambda: rope.scores(x, x, positions, positions)):
        with pytest.raises(ValueError, match=r"rope.pairing is None: .*negative frequencies.*pairing='half'"):
            call()
    chosen = dataclasses.replace(rope, pairing="half", frequencies=-rope.frequencies)  # as the note says
    assert np.array_equal(chosen.rotate(x, positions), rfrope.rotate(x, positions, -rope.frequencies))


def test_where_the_pairing_of_a_model_comes_from():
    def told(**config):
        (rope,) = from_config({"rope_theta": 1e4, "head_dim": 8} | config)
        return rope.pairing, rope.source.model.pairing_from

    assert told(model_type="llama") == ("half", "known")
    assert told(model_type="cohere") == ("interleaved", "known")
    assert told(model_type="made up") == ("half", "assumed")
    assert told() == ("half", "assumed")
    assert told(model_type="internlm2") == ("half", "known")  # not of transformers
    latent = {"model_type": "deepseek_v3", "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    assert from_config(latent)[0].qk_head_dim == 16
    assert told(**latent) == ("interleaved", "known")
    assert told(**latent, rope_interleave=False) == ("half", "known")
    (given,) = from_config({"rope_theta": 1e4, "head_dim": 8, "model_type": "llama"}, pairing="interleaved")
    assert (given.pairing, given.source.model.pairing_from) == ("interleaved", "given")


# -- maps on frequencies keep what is not theirs -----------------------------------------------------------------------


ORIGINAL = {"original_max_position_embeddings": 2048}
SCHEMES = {
    "linear": lambda w: rfrope.scaling.linear(w, 4.0),
    "yarn": lambda w: rfrope.scaling.yarn(w, 4.0, **ORIGINAL),
    "llama3": lambda w: rfrope.scaling.llama3(w, 4.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL),
    "fields of an array, or of a Rope": lambda w: module.replace_fields(w, frequencies=2.0 * LADDER),
}


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_maps_keep_the_other_fields(scheme):
    rope = Rope(LADDER, pairing="interleaved", head_dim=32, sections=(4, 4), source={"model_type": "x"})
    made, bare = scheme(rope), scheme(LADDER)
    assert np.array_equal(made.frequencies, bare.frequencies)
    assert (made.pairing, made.head_dim, made.sections) == ("interleaved", 32, (4, 4))
    assert (bare.pairing, bare.head_dim, bare.sections) == ("half", 16, None)
    assert made.attention_factor == bare.attention_factor
    assert made.source.model.model_type == "x"
    assert rope.source.to_dict() == {"model_type": "x"}


# -- a Rope that turns otherwise than a call ---------------------------------------------------------------------------

OMEGA = np.array([1.0, 0.3, 0.1, 0.02])


@pytest.mark.parametrize("name", CALLS)
def test_a_given_head_dim_is_held(name):
    """Features of another width would be turned in part, or by the wrong part of a model, without a word."""
    call, free, given = CALLS[name], rfrope.Rope(OMEGA[:3]), rfrope.Rope(OMEGA[:3], head_dim=6)
    call(free)  # two of the eight features are not turned, as nobody said how wide a head is
    np.testing.assert_array_equal(call(rfrope.Rope(OMEGA[:3], head_dim=8)), call(free, **HEAD.get(name, {})))
    if name in HEAD:
        assert call(given).shape == (6, 3)
        return
    for one in kept(given):
        with pytest.raises(ValueError, match=r"^(x|q|k|w_q) has 8 features, but head_dim is 6; expected 6: for heads"):
            call(one)
    with pytest.raises(ValueError, match=r"head_dim is 6; expected 6, or the 4 that turn: .*give head_dim=8"):
        call(rfrope.Rope(OMEGA[:2], head_dim=6))
    call(rfrope.Rope(OMEGA, head_dim=16))  # the part that turns, as models hand it on


HEAD = {"heads.positional_weights": {"head_dim": 8}}


def kept(rope):
    """The same by other ways."""
    with tempfile.TemporaryDirectory() as folder:
        rfrope.save(path := f"{folder}/x.npz", rope)
        loaded = rfrope.load(path)
    yield rope
    yield dataclasses.replace(rope, context=8)
    yield pickle.loads(pickle.dumps(copy.deepcopy(rope)))
    yield rfrope.scaling.linear(rope, 2.0)
    yield loaded


def test_a_head_dim_that_nobody_gave_is_not_held_in_copies_either():
    for one in kept(rfrope.Rope(OMEGA[:3])):
        assert one.head_dim == 6
        one.rotate(Q, np.arange(6))
    assert json.dumps(one.head_dim) == repr(one.head_dim) == "6"
    again = dataclasses.replace(one, head_dim=6)
    with pytest.raises(ValueError, match="head_dim is 6; expected 6"):
        again.rotate(Q, np.arange(6))
    partly = rfrope.Rope(OMEGA[:2], head_dim=rfrope.Rope(OMEGA[:3]).head_dim)  # now somebody did
    with pytest.raises(ValueError, match="head_dim is 6; expected 6, or the 4 that turn"):
        partly.rotate(Q, np.arange(6))


@pytest.mark.parametrize("name", CALLS)
def test_a_rope_that_turns_otherwise_is_refused(name):
    call, neighbours = CALLS[name], rfrope.Rope(OMEGA, pairing="interleaved")
    refused = {
        "pairing is 'half', but the Rope's is 'interleaved'": (neighbours, {}),
        "pairing is 'interleaved', but the Rope's is 'half'": (rfrope.Rope(OMEGA, source={"pairing_from": "known"}),
                                                               {"pairing": "interleaved"}),
        "the Rope's is None: neither is right for it; pass rope.frequencies": (rfrope.Rope(OMEGA, pairing=None), {}),
        r"the Rope has the attention factor 2\.0": (rfrope.Rope(OMEGA, attention_factor=2.0), {}),
    }  # fmt: skip
    for message, (rope, options) in refused.items():
        with pytest.raises(ValueError, match=message):
            call(rope, **options)
    for rope in (rfrope.Rope(OMEGA), neighbours):
        np.testing.assert_array_equal(call(rope, pairing="interleaved"), call(OMEGA, pairing="interleaved"))
    np.testing.assert_array_equal(call(rfrope.Rope(OMEGA)), call(OMEGA))


def test_every_function_with_frequencies_and_a_pairing_is_called_above():
    taking = {one for one in FUNCTIONS.values() if {"frequencies", "pairing"} <= {*inspect.signature(one).parameters}}
    laid_out = {"sinusoidal", "rotation.shift_matrix", "rotation.rotate_polar"}  # these say so of the result
    assert taking == {FUNCTIONS[name] for name in CALLS.keys() | laid_out}


@pytest.mark.parametrize("scale", [1, 1.0, 3.0, np.array(2.0), np.full(4, 2.0)])
def test_an_attention_factor_is_not_replaced(scale):
    rope = rfrope.Rope(OMEGA, attention_factor=2.0)
    for call in (rfrope.rotation_table, functools.partial(rfrope.rotate, Q)):
        with pytest.raises(ValueError, match=r"the Rope has the attention factor 2\.0"):
            call(1, rope, scale=scale)
    np.testing.assert_array_equal(rfrope.rotate(Q, 1, rope, scale=2.0), rope.rotate(Q, 1))


def test_features_that_a_model_does_not_turn_are_refused():
    rope = rfrope.Rope(OMEGA, source={"turns_last": True})
    wide = np.ones((6, 12))
    calls = (rope.rotate, lambda x, at: rfrope.rotate(x, at, rope), lambda x, at: rfrope.scores(x, x, at, at, rope))
    for call in calls:
        with pytest.raises(ValueError, match=r"the last 8 features of a head.*expected x\[\.\.\., -8:\]"):
            call(wide, np.arange(6))
        assert call(wide[..., -8:], np.arange(6)).shape[0] == 6


def test_frequencies_of_numpy_are_read_only_and_nobody_elses():
    """What is prepared from them is kept, so writing would turn by old ones or new ones, as the dtype has it."""
    own = OMEGA.copy()
    sectioned = rfrope.Rope(own, sections=(1, 1, OMEGA.size - 2))
    made = rfrope.scaling.linear(rfrope.Rope(own), 2.0)
    ropes = [rfrope.Rope(own), rfrope.Rope(own.tolist()), rfrope.Rope(own.astype(np.float32)), made, sectioned]
    ropes += [pickle.loads(pickle.dumps(one)) for one in ropes] + [copy.deepcopy(one) for one in ropes]
    for rope in ropes:
        for held in (rope.frequencies, rope.vectors, np.asarray(rope)):
            assert not np.shares_memory(held, own)
            with pytest.raises(ValueError, match="read-only"):
                held[0] = 2.0
    assert own.flags.writeable, "the caller's own stays as it was"
    free = 2.0 * ropes[0].frequencies
    assert dataclasses.replace(ropes[0], frequencies=free).frequencies[0] == free[0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sections", [None, (1, 1, 2)])
@pytest.mark.parametrize("opened", ["frequencies", "vectors"])
def test_frequencies_that_somebody_opened_are_read_anew(dtype, sections, opened):
    """As PyTorch's compiler opens what it is given."""
    rope = rfrope.Rope(OMEGA.astype(dtype), sections=sections)
    at = np.arange(6) if sections is None else np.arange(18).reshape(6, 3)
    for _ in range(20):  # often enough to be prepared
        before = rope.rotate(Q, at)
    held = getattr(rope, opened)
    held.flags.writeable = True
    held *= 2.0
    after = rope.rotate(Q, at)
    np.testing.assert_array_equal(after, rfrope.rotate(Q, at, rope))
    np.testing.assert_array_equal(after, rfrope.Rope(np.array(rope), sections=sections).rotate(Q, at))
    assert np.any(after != before) or (opened, sections) == ("vectors", (1, 1, 2)), "they follow from the frequencies"
    assert not rope.frequencies.flags.writeable
    assert not rope.vectors.flags.writeable


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_tensor_of_frequencies_stays_the_callers_and_is_read_anew(dtype, torch):
    omega, x = torch.tensor(OMEGA), torch.asarray(Q).to(getattr(torch, dtype))
    rope = rfrope.Rope(omega)
    for _ in range(20):  # often enough to be prepared
        rope.rotate(x, torch.arange(6))
    omega *= 2.0
    assert rope.frequencies is omega
    assert torch.equal(rope.rotate(x, torch.arange(6)), rfrope.Rope(2.0 * OMEGA).rotate(x, torch.arange(6)))


def test_a_state_replaces_all_that_was_there():
    """What was prepared for the frequencies before, too."""
    x, at = np.random.default_rng(0).standard_normal((3, 4)), np.arange(3)
    used, other = Rope([1.0, 0.1]), Rope([0.3, 0.2], pairing="interleaved")
    for _ in range(40):  # often enough that a layout is prepared
        used.rotate(x, at)
    used.__setstate__(other.__getstate__())
    np.testing.assert_array_equal(used.rotate(x, at), other.rotate(x, at))
    assert used.pairing == other.pairing


# -- a Rope of polar contents: test_polar_ropes.py has what functions do with it ---------------------------------------

POLAR = Rope(rfrope.geometric(6), polar=True, attention_factor=0.5, context=32)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_polar_rope_stays_one_in_copies_and_files(suffix, tmp_path):
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    assert (POLAR.head_dim, POLAR.rotary_dim, POLAR.n_blocks) == (6, 6, 6)
    for place, rope in enumerate((POLAR, Rope(rfrope.geometric(6)))):
        rfrope.save(path := tmp_path / f"{place}.{suffix}", rope)
        for one in (rfrope.load(path), pickle.loads(pickle.dumps(rope)), dataclasses.replace(rope, pairing="half")):
            assert repr(one) == repr(rope)
            assert one.polar is (rope is POLAR)
    shown = "Rope(6 frequencies, pairing='half', head_dim=6, attention_factor=0.5, context=32, polar=True)"
    assert repr(POLAR) == shown
