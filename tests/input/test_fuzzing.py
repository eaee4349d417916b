"""Texts, files, configs and command lines that nobody would write: read, or refused with a documented error.

The campaign takes 10 000 of them, the same each time; ``RFROPE_FUZZ=100`` a hundred times as many, others each time.
`tools.fuzz` runs them in parts, and reads from the file ``RFROPE_FUZZED_TO`` how many there were.
"""

import collections
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import struct
import traceback
import zipfile

import gguf_files
import numpy as np
import pytest
from bad_input import FOREIGN
from campaign import campaign
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import rewritten, told

import rfrope
from rfrope import engines, kernels, scaling
from rfrope._core.files import read_arrays
from rfrope.scaling import registry

pytestmark = [campaign, pytest.mark.filterwarnings("ignore")]  # what a strange value means is not the question here
TIMES = float(os.environ.get("RFROPE_FUZZ", "1"))
DOCUMENTED = (ValueError, TypeError, OSError)
OMEGA = np.linspace(0.1, 0.7, 4)
TAKEN = collections.Counter()  # inputs, by what they were given to


def fuzzed(number):
    """Attack with so many inputs, and count them."""
    chosen = settings(
        max_examples=max(1, int(TIMES * number)),
        derandomize=TIMES <= 1,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

    def counted(attack):
        inner = attack.hypothesis.inner_test

        @functools.wraps(inner)
        def once(*arguments, **options):
            TAKEN[inner.__qualname__.partition(".")[0]] += 1
            return inner(*arguments, **options)

        attack.hypothesis.inner_test = once
        return chosen(attack)

    return counted


@pytest.fixture(scope="module", autouse=True)
def counted():
    """Write down how many inputs there were, where that was asked for."""
    yield
    if path := os.environ.get("RFROPE_FUZZED_TO"):
        pathlib.Path(path).write_text(json.dumps(TAKEN), "utf-8")


def attempted(call, *arguments, documented=DOCUMENTED, **options):
    """Result of a call, or None where it was refused as it should be."""
    try:
        return call(*arguments, **options)
    except documented as error:
        refused = error
    last = traceback.extract_tb(refused.__traceback__)[-1].filename
    assert isinstance(refused, OSError) or not any(part in last for part in FOREIGN), f"{last}: {refused!r}"
    assert str(refused)
    return None


# -- text --------------------------------------------------------------------------------------------------------------

NAMES = [record.name for record in kernels.records()]
WORDS = [*NAMES, "mixture", "axes", "rescale", "warp", "scale", "nu", "alpha", "ndim", "import", "lambda", "None", "x"]
NUMBERS = ["0", "1", "-1", "1.5", "1e400", "-0.0", "1e-320", "nan", "inf", "1j", "10**9", "0x7f", "1_0", "'a'", "True"]
SIGNS = [*"()[]{},=*.+-:;'\"\\#\n\0 @", "**", "(scale=", ", nu=", "([0.5, 0.5], [", "Φ", "é", "٣"]
TOKENS = st.lists(st.sampled_from([*WORDS, *NUMBERS, *SIGNS]), max_size=14).map("".join)


@st.composite
def damaged_texts(draw):
    """A text that is read, with a few characters changed."""
    examples = ["mixture([0.5, 0.5], [gaussian(), cauchy(scale=2)])", "axes(gaussian(scale=3), cauchy)"]
    examples += ["(gaussian * matern(nu=1.5)).rescale(2.0)", "gaussian(ndim=2).warp([[1, 0], [0.5, 2]])"]
    text = list(draw(st.sampled_from([*(record.example for record in kernels.records()), *examples])))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(text)))
        text[place : place + draw(st.integers(0, 3))] = draw(st.sampled_from([*SIGNS, *NUMBERS, *WORDS, ""]))
    return "".join(text)


def read_and_used(text):
    """A text that is read must give a kernel that computes, and be read again from what the kernel says of itself."""
    kernel = kernels.parse(text)
    assert kernels.parse(repr(kernel)) == kernel
    phi = kernel.phi(np.zeros(kernel.ndim) if kernel.ndim > 1 else 0.0)
    assert phi == pytest.approx(1.0)
    omega = rfrope.sample(kernel, 2, rng=0)
    assert np.all(np.isfinite(omega))


@fuzzed(2500)
@given(st.one_of(damaged_texts(), TOKENS, st.text(max_size=40)))
def test_texts(text):
    attempted(read_and_used, text)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Bytes of a good file of each kind, and a folder."""
    folder = tmp_path_factory.mktemp("fuzzing")
    rope = rfrope.Rope(OMEGA, context=64, source={"kernel": "gaussian(scale=8.0)", "note": "Φ"})
    good = {}
    for suffix in ("npz", "safetensors"):
        if suffix == "npz" or importlib.util.find_spec("safetensors"):
            rfrope.save(folder / f"good.{suffix}", rope)
            good[suffix] = (folder / f"good.{suffix}").read_bytes()
    return folder, good


@st.composite
def damages(draw):
    """What to do to bytes: changes as ``(place, removed, added)``, places from 0 to 1."""
    one = st.tuples(st.floats(0, 1), st.sampled_from([0, 0, 1, 1, 2, 8, 64]), st.binary(max_size=9))
    return draw(st.lists(one, min_size=1, max_size=4)), draw(st.floats(0, 1)) if draw(st.booleans()) else 1.0


def damaged(content, changes, kept):
    for share, removed, added in changes:
        place = int(share * len(content))
        content = content[:place] + added + content[place + removed :]
    return content[: int(kept * len(content))]


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_damaged_files(files, suffix):
    folder, good = files
    if suffix not in good:
        pytest.skip(f"{suffix} is not installed")

    @fuzzed(1000)
    @given(damages())
    def run(damage):
        path = folder / f"bad.{suffix}"
        path.write_bytes(damaged(good[suffix], *damage))
        loaded = attempted(rfrope.load, path)
        if loaded is not None:  # what was damaged is not read
            assert np.array_equal(loaded.frequencies, OMEGA)
            assert loaded.context == 64
            assert loaded.source.to_dict() == {"kernel": "gaussian(scale=8.0)", "note": "Φ"}

    run()


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 2**33),
        st.floats(),
        st.sampled_from(["half", "a", "", "float64", "radians per unit of position", 10**400, -1e308]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "rope"]), inner)),
    max_leaves=6,
)
SAID = ["format", "rfrope", "units", "shape", "dtype", "rope", "source", "digest", "provenance"]
SAID += ["pairing", "head_dim", "attention_factor", "sections", "interleaved", "context"]


def test_files_that_say_strange_things_of_themselves(files):
    """With the digest of what they say."""
    folder, good = files
    path, fields = folder / "strange.npz", told(folder / "good.npz")["rope"]

    @fuzzed(700)
    @given(st.dictionaries(st.sampled_from(SAID), JSON, min_size=1, max_size=3), st.booleans())
    def run(changes, inside):
        path.write_bytes(good["npz"])
        rewritten(path, **({"rope": fields | changes} if inside else changes))
        loaded = attempted(rfrope.load, path)
        assert loaded is None or np.array_equal(loaded.frequencies, OMEGA)

    run()


@st.composite
def members(draw):
    """Bytes of an .npy that lies about itself."""
    shape = draw(st.one_of(st.tuples(st.integers(-1, 2**40)), st.tuples(st.integers(0, 3), st.integers(0, 2**62))))
    kind = draw(
        st.sampled_from(["<f8", ">f8", "<f2", "O", "|S5", "<U3", "<M8[D]", "|V9", "<c16", "[('a', '<f8')]", "|b1"])
    )
    text = repr({"descr": kind, "fortran_order": draw(st.booleans()), "shape": shape}).encode()
    text = damaged(text, *draw(damages())) if draw(st.booleans()) else text
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + draw(st.binary(max_size=40))


def test_archives_of_strange_members(files):
    folder, _ = files
    path = folder / "members.npz"

    @fuzzed(700)
    @given(
        st.dictionaries(st.sampled_from(["frequencies.npy", "metadata.npy", "x"]), members(), max_size=3),
        st.integers(0, 8),
    )
    def run(content, method):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if method == 8 else zipfile.ZIP_STORED) as archive:
            for name, inside in content.items():
                archive.writestr(name, inside)
        assert attempted(rfrope.load, path) is None
        attempted(read_arrays, str(path), compressed=True)

    run()


def test_gguf_files(files):
    """Copies of a damaged GGUF with divisors: refused, or made; no half of a copy is left."""
    pytest.importorskip("gguf", reason="gguf is not installed")
    folder, _ = files
    good = gguf_files.content("llama", {"rope.freq_base": 1e4})
    given_path, made = folder / "given.gguf", folder / "made.gguf"
    rope = rfrope.Rope(rfrope.geometric(4), context=64)

    @fuzzed(500)
    @given(damages())
    def run(damage):
        given_path.write_bytes(damaged(good, *damage))
        attempted(engines.write, made, rope, "llama.cpp", gguf=given_path, overwrite=True)
        assert not list(folder.glob(".rfrope-*"))

    run()


# -- configs -----------------------------------------------------------------------------------------------------------

KEYS = ["model_type", "hidden_size", "num_attention_heads", "head_dim", "rope_theta", "rope_scaling", "rotary_dim"]
KEYS += ["rope_parameters", "max_position_embeddings", "partial_rotary_factor", "layer_types", "text_config"]
KEYS += ["num_hidden_layers"]
TYPES = ["llama", "qwen2_vl", "phi3", "gemma3", "deepseek_v3", "gptj", "nobody", "gpt_neox", "llama4", "mistral"]
SCHEMES = [name for scheme in scaling.records() for name in (scheme.name, *scheme.aliases)]
INNER = ["rope_type", "type", *registry.KEYS]
LEAVES = st.one_of(
    JSON,
    st.integers(1, 4096),
    st.floats(0.1, 1e6),
    st.sampled_from([*TYPES, *SCHEMES, 64, 128, 1e4]),
    st.lists(st.floats(0.5, 4), max_size=8),
)
INSIDE = st.dictionaries(st.sampled_from(INNER), LEAVES, max_size=6)
USUAL = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "rope_theta": 1e4}
USUAL["max_position_embeddings"] = 64


@fuzzed(2000)
@given(
    st.dictionaries(st.sampled_from(KEYS), st.one_of(LEAVES, INSIDE), max_size=6),
    st.sampled_from([None, 1, 100, 10**6]),
)
def test_configs(changes, seq_len):
    for rope in attempted(rfrope.from_config, USUAL | changes, seq_len=seq_len) or ():
        assert np.all(np.isfinite(rope.frequencies))


# -- the command line --------------------------------------------------------------------------------------------------

OPTIONS = ["--head-dim", "--context", "--seed", "--design", "--json", "--heads", "-o"]
OPTIONS += ["--alpha", "--samples", "--qk", "--help"]
VALUES = ["gaussian", "matern(nu=1.5)", "8", "0", "-1", "nan", "", "x", "1e400", "2", "ß", "--"]
VALUES += ["good.npz", "config.json", "."]
PLACES = ["good.safetensors", "nothing.json", "bad.npz", "given.gguf", "1e9999999"]


@pytest.mark.parametrize("command", ["design", "inspect", "plan", "compare", "audit", "export"])
def test_command_lines(files, command, run, monkeypatch):
    folder, _ = files
    monkeypatch.chdir(folder)
    (folder / "config.json").write_text(json.dumps(USUAL))

    @fuzzed(120)
    @given(st.lists(st.sampled_from([*OPTIONS, *VALUES, *PLACES]), max_size=5))
    def attack(arguments):
        if any(
            word in (".", "8", "2", "good.npz") and before == "-o" for before, word in itertools.pairwise(arguments)
        ):
            return  # it would be written over
        code, _, said = run(command, *arguments)
        assert code in (0, 1, 2)
        assert "Traceback" not in said
        assert code != 2 or said

    attack()


def test_configs_on_the_command_line(tmp_path, run):
    path = tmp_path / "config.json"

    @fuzzed(100)
    @given(st.one_of(st.binary(max_size=30), JSON.map(lambda value: json.dumps(value, default=str).encode())))
    def attack(content):
        path.write_bytes(content)
        for command in ("inspect", "compare"):
            code, _, said = run(command, path)
            assert code == 2
            assert said.startswith(f"rfrope {command}: error: ")

    attack()
