"""JAX at home: a cache that grows in a scan, arrays on several devices, second derivatives, exact advice."""

import copy
import dataclasses
import pathlib
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from campaign import HANGS, campaign
from conftest import library

import rfrope
from rfrope._core.angles import PrecisionWarning

RNG = np.random.default_rng(0)
LINE = rfrope.geometric(4)


def decoded(jax, q, k, start, rope):
    """Scores of each query against a cache of fixed length that one rotated key enters at each step of a scan."""
    jnp, length = jax.numpy, k.shape[0]

    def step(cache, new):
        position, query, key = new
        cache = jax.lax.dynamic_update_slice(cache, rope.rotate(key, position)[None], (position - start, 0))
        return cache, jnp.where(jnp.arange(length) <= position - start, cache @ rope.rotate(query, position), 0.0)

    return jax.lax.scan(step, jnp.zeros_like(k), (start + jnp.arange(length), q, k))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_cache_grows_in_a_scan_at_far_positions_without_float64(narrow, pairing):
    q, k = RNG.standard_normal((2, 6, 8)).astype(np.float32)
    start, rope = 2**24 + 1, rfrope.Rope(LINE, pairing=pairing)
    cache, scores = narrow.jit(lambda q, k: decoded(narrow, q, k, start, rope))(q, k)
    at = start + np.arange(6)
    np.testing.assert_allclose(cache, rope.rotate(k.astype(float), at), atol=2e-6)
    wanted = np.tril(rope.scores(q.astype(float), k.astype(float), at, at))
    np.testing.assert_allclose(scores, wanted, atol=1e-5)


def test_second_derivatives_and_vmap_go_through_the_stated_slope(jax):
    from jax.test_util import check_grads

    x, at = jax.numpy.asarray(RNG.standard_normal((3, 8))), np.array([1, 2, 3])
    how = {"order": 2, "modes": ("rev",), "eps": 1e-4, "rtol": 1e-6, "atol": 1e-6}
    check_grads(jax.jit(lambda w, u: rfrope.rotate(x, at, w, shift=u)), (LINE, LINE / 2), **how)
    check_grads(jax.jit(lambda p: rfrope.rotate(x, p, LINE)), (at + 0.5,), **how)
    sets = np.stack([LINE, LINE / 3])
    turned = jax.jit(jax.vmap(jax.jacfwd(lambda w: rfrope.rotate(x, at, w))))(sets)
    one = jax.jit(jax.jacrev(lambda w: rfrope.rotate(x, at, w)))(sets[1])
    np.testing.assert_allclose(turned[1], one, atol=1e-13)


@pytest.mark.parametrize("name", ["positions", "frequencies"])
def test_advice_loses_nothing(narrow, name):
    """``jax.numpy.asarray`` would round float64 to float32; what is NumPy's is moved exactly."""
    torch = library("torch").module
    x = RNG.standard_normal((2, 8)).astype(np.float32)
    given = {"positions": np.array([2**24 + 1, 131071]), "frequencies": LINE}
    held = {**given, name: torch.as_tensor(given[name])}
    with pytest.raises(TypeError, match=rf"pass {name}\.detach\(\)\.cpu\(\)\.numpy\(\)$"):
        rfrope.rotate(narrow.numpy.asarray(x), **held)
    held[name] = held[name].detach().cpu().numpy()
    found = rfrope.rotate(narrow.numpy.asarray(x), **held)
    np.testing.assert_allclose(found, rfrope.rotate(x.astype(float), **given), atol=2e-6)


@pytest.mark.parametrize("kind", [np.asarray, list])
def test_whole_floats_of_the_host_count_as_integers_without_float64(narrow, kind):
    x, at = RNG.standard_normal((2, 8)).astype(np.float32), [2.0**24 + 1, -(2.0**31) + 1]
    found = rfrope.rotate(narrow.numpy.asarray(x), kind(at), LINE)
    np.testing.assert_allclose(found, rfrope.rotate(x.astype(float), at, LINE), atol=2e-6)
    for large in (2.0**31, 2.0**40 + 1, -(2.0**33)):
        with pytest.raises(ValueError, match=r"positions is .*integers of 32 bits.*jax_enable_x64"):
            rfrope.rotate(narrow.numpy.asarray(x), kind([large, 1.0]), LINE)
    with pytest.warns(PrecisionWarning, match="positions has dtype float32, which skips whole numbers above 16777216"):
        assert np.isfinite(rfrope.rotate(narrow.numpy.asarray(x), kind([-(2.0**31), 0.5]), LINE)).all()
    lowest = rfrope.rotate(narrow.numpy.asarray(x), kind([-(2.0**31), 1.0]), LINE)
    np.testing.assert_allclose(lowest, rfrope.rotate(x.astype(float), [-(2.0**31), 1.0], LINE), atol=2e-6)


@pytest.mark.parametrize("far", [2.0**63, -(2.0**63), 2.0**64, 2.0**90, -(2.0**63) - 2048.0])
def test_whole_floats_that_no_integer_holds_do_not_wrap(narrow, far):
    """As int64 they would come out with the other sign, or as 0: they are turned as floats."""
    x = RNG.standard_normal((2, 8)).astype(np.float32)
    small = LINE / abs(far)
    with pytest.warns(PrecisionWarning, match="positions has dtype float32"):
        found = rfrope.rotate(narrow.numpy.asarray(x), [far, 1.0], small)
    np.testing.assert_allclose(found, rfrope.rotate(x.astype(float), [far, 1.0], small), atol=2e-6)


WORDS = [2**24 + 1, 131071, -(2**31), 2**31 - 1]


@pytest.mark.parametrize("kind", ["int64", "int32", "uint32", "uint64", "int16", "of JAX"])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_compiled_positions_are_exact_in_every_type_of_integers(narrow, kind, pairing):
    """``jax.jit`` makes integers of NumPy those of 32 bits, which loses nothing of these."""
    rope, x = rfrope.Rope(LINE, pairing=pairing), RNG.standard_normal((4, 10)).astype(np.float32)
    at = {"int16": [0, 7, -32768, 32767], "uint32": np.abs(WORDS), "uint64": np.abs(WORDS)}.get(kind, WORDS)
    given = narrow.numpy.asarray(at, dtype="int32") if kind == "of JAX" else np.asarray(at, dtype=kind)
    for rotate in (narrow.jit(rope.rotate), *((narrow.jit(narrow.vmap(rope.rotate)),) if kind == "int64" else ())):
        found = rotate(narrow.numpy.asarray(x), given)
        np.testing.assert_allclose(found, rope.rotate(x.astype(float), np.asarray(at)), atol=2e-6)


def test_positions_beyond_32_bits_are_refused_before_they_are_compiled_or_cut_by_jax(narrow):
    """What ``jax.jit`` is given it cuts to 32 bits before any function sees it: docs/howto/jax.rst says so."""
    rope, x = rfrope.Rope(LINE), RNG.standard_normal((2, 8)).astype(np.float32)
    far = np.array([2**33 + 5, 1])
    with pytest.raises(ValueError, match=r"integers of 32 bits.*jax_enable_x64', True\) gives it 64"):
        rope.rotate(narrow.numpy.asarray(x), far)
    constant = narrow.jit(lambda x: rope.rotate(x, far))  # positions that are no argument are seen
    with pytest.raises(ValueError, match=r"integers of 32 bits.*jax_enable_x64', True\) gives it 64"):
        constant(narrow.numpy.asarray(x))
    cut = narrow.jit(rope.rotate)(narrow.numpy.asarray(x), far)
    np.testing.assert_allclose(cut, rope.rotate(x.astype(float), [5, 1]), atol=2e-6)
    one = narrow.jit(rope.rotate)(narrow.numpy.asarray(x[0]), 2**24 + 1)
    np.testing.assert_allclose(one, rope.rotate(x[0].astype(float), 2**24 + 1), atol=2e-6)
    with pytest.raises(OverflowError):  # JAX's own, of numbers of Python
        narrow.jit(rope.rotate)(narrow.numpy.asarray(x[0]), 2**33 + 5)
    with pytest.raises(
        TypeError, match=r"positions is a list or tuple whose numbers.*pass numpy\.asarray\(positions\)"
    ):
        narrow.jit(rope.rotate)(narrow.numpy.asarray(x), [5, 1])


def test_the_three_lines_of_the_page_run(narrow):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "howto" / "jax.rst").read_text("utf-8")
    lines = re.search(r"(?:^    .*\n){2}^    q, k = rotate.*\n", page, re.MULTILINE)[0]
    q, k = RNG.standard_normal((2, 2, 5, 64)).astype(np.float32)
    names = {"rfrope": rfrope, "jax": narrow, "q": q, "k": k, "positions": np.arange(5)}
    exec(textwrap.dedent(lines), names)
    np.testing.assert_allclose(names["k"], names["rope"].rotate(k, np.arange(5)), atol=1e-5)


SHARDED = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, numpy as np, rfrope
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("batch", "heads", "tokens"))
place = NamedSharding(mesh, PartitionSpec("batch", "heads", "tokens", None))
host = np.random.default_rng(0).standard_normal((2, 4, 8, 12)).astype(np.float32)
x = jax.device_put(host, place)
at = jax.device_put(np.arange(8), NamedSharding(mesh, PartitionSpec("tokens")))
w = rfrope.geometric(5)
for pairing in ("half", "interleaved"):
    def turn(x, p):
        return rfrope.rotate(x, p, w, pairing=pairing)

    def slope(x, p):
        return jax.grad(lambda v: (turn(v, p) ** 3).sum())(x)

    for function in (turn, slope):
        compiled = jax.jit(function).lower(x, at).compile()
        text = compiled.as_text()
        moved = [word for word in ("all-gather", "all-to-all", "all-reduce", "collective-permute") if word in text]
        result = compiled(x, at)
        print(len(jax.devices()), result.sharding.is_equivalent_to(place, 4), moved)
    print(float(np.max(np.abs(np.asarray(jax.jit(turn)(x, at)) - turn(host, np.arange(8))))) < 2e-6)
"""


@campaign
def test_shards_on_eight_devices_stay_where_they_are():
    library("jax")
    done = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True, timeout=HANGS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["8 True []", "8 True []", "True"] * 2


# -- a Rope as a pytree ------------------------------------------------------------------------------------------------


def learned(jax, **fields):
    return rfrope.Rope(jax.numpy.asarray(LINE), attention_factor=1.5, source={"seed": [1, {"a": 2.0}]}, **fields)


def test_a_rope_is_a_pytree_of_its_frequencies(jax):
    rope, x, at = learned(jax, context=8), jax.numpy.asarray(RNG.standard_normal((3, 8))), jax.numpy.arange(3)
    (path, leaf), *others = jax.tree_util.tree_flatten_with_path({"rotary": rope})[0]
    assert (jax.tree_util.keystr(path), others) == ("['rotary'].frequencies", [])
    assert leaf is rope.frequencies
    turn = jax.jit(lambda rope, x: rope.rotate(x, at))
    np.testing.assert_allclose(turn(rope, x), rope.rotate(x, at), rtol=1e-6, atol=1e-6)
    slope = jax.grad(lambda rope: jax.numpy.sum(rope.rotate(x, at) ** 3))(rope)
    wanted = jax.grad(lambda w: jax.numpy.sum(rfrope.rotate(x, at, w, scale=1.5) ** 3))(rope.frequencies)
    np.testing.assert_allclose(slope.frequencies, wanted, rtol=1e-6, atol=1e-6)
    moved = jax.tree.map(lambda value, change: value - 0.1 * change, rope, slope)
    assert isinstance(moved, rfrope.Rope)
    assert (moved.attention_factor, moved.context, moved.source) == (1.5, 8, rope.source)
    two = jax.tree.map(lambda value: jax.numpy.stack([value, 2.0 * value]), rope)
    for found, one in zip(jax.vmap(turn, in_axes=(0, None))(two, x), (1.0, 2.0), strict=True):
        exact = jax.tree.map(lambda value: value * one, rope).rotate(x, at)  # noqa: B023
        np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)
    assert "frequencies ()" in repr(jax.tree.map(lambda value: None, rope))


def test_what_else_a_rope_holds_is_compiled_in(jax):
    seen, x = [], jax.numpy.ones((3, 8))

    def turned(rope):
        seen.append(rope)
        return rope.rotate(x, jax.numpy.arange(3))

    turn, rope = jax.jit(turned), learned(jax)
    for one, times in (
        (rope, 1),
        (learned(jax), 1),
        (jax.tree.map(lambda value: 2.0 * value, rope), 1),
        (dataclasses.replace(rope, pairing="interleaved"), 2),
        (dataclasses.replace(rope, source={"seed": 2}), 3),
        (dataclasses.replace(rope, head_dim=8), 4),  # as wide as before, but now given
    ):
        np.testing.assert_allclose(turn(one), one.rotate(x, jax.numpy.arange(3)), rtol=1e-6, atol=1e-6)
        assert len(seen) == times


@pytest.mark.parametrize(
    ("source", "other"),
    [
        ({"loss": float("nan")}, {"loss": 0.5}),
        ({"lags": np.arange(3.0), "losses": [np.float32("nan"), (1, 2)]}, {"lags": np.arange(3), "losses": [1.0]}),
        ({"lags": np.arange(3.0)}, {"lags": np.arange(4.0)}),
        ({"step": 1}, {"step": True}),
    ],
    ids=["NaN", "arrays", "shapes", "kinds"],
)
def test_what_a_source_holds_is_compared_by_value(jax, source, other):
    """Equal sources compile once, and others again; arrays in them have no truth value."""
    seen, at = [], jax.numpy.arange(3)
    turn = jax.jit(lambda rope: (seen.append(rope), rope.rotate(jax.numpy.ones((3, 8)), at))[1])
    for held, times in ((source, 1), (copy.deepcopy(source), 1), (other, 2), (copy.deepcopy(other), 2)):
        turn(rfrope.Rope(jax.numpy.asarray(LINE), source=held))
        assert len(seen) == times


def test_frequencies_of_numpy_come_and_go_as_a_leaf(jax):
    rope, own = rfrope.Rope(LINE), LINE.copy()
    back = jax.tree.map(np.asarray, jax.tree.map(jax.numpy.asarray, rope))
    np.testing.assert_allclose(back.frequencies, LINE, rtol=1e-6)
    made = jax.tree.map(lambda _: own, rope)
    assert own.flags.writeable
    assert not made.frequencies.flags.writeable
    at = np.arange(3)
    np.testing.assert_array_equal(made.rotate(np.ones((3, 8)), at), rope.rotate(np.ones((3, 8)), at))


def test_ropes_that_were_made_before_jax_are_known_after():
    library("jax")
    code = (
        "import sys, rfrope\nrope = rfrope.Rope([1.0, 0.5])\nassert 'jax' not in sys.modules\n"
        "import jax\nassert jax.tree.leaves(rope) == [rope]\nrfrope.Rope([1.0])\nprint(jax.tree.leaves(rope)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS, check=False)
    assert (done.returncode, done.stdout) == (0, "[1.  0.5]\n"), done.stderr


def test_a_parameter_of_flax_gets_its_own_message(jax):
    kind = pytest.importorskip("flax.nnx", reason="flax is not installed").Param
    x, held = jax.numpy.ones((3, 8)), kind(jax.numpy.asarray(LINE))
    for call, name in (
        (lambda: rfrope.rotate(x, np.arange(3), held), "frequencies"),
        (lambda: rfrope.Rope(held), "frequencies"),
        (lambda: rfrope.rotate(kind(x), np.arange(3), LINE), "x"),
        (lambda: rfrope.scores(x, kind(x), np.arange(3), np.arange(3), LINE), "k"),
    ):
        with pytest.raises(TypeError, match=rf"{name} is a Param of flax; expected the array .*: {name}\[\.\.\.\]$"):
            call()


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_a_rotation_is_lowered_for_devices_that_are_not_here(narrow, platform, pairing):
    """By XLA's own operations, none of which is in float64 or calls back to the host."""
    from jax import export

    rope, abstract = rfrope.Rope(rfrope.geometric(64), pairing=pairing), narrow.ShapeDtypeStruct
    x, positions = abstract((1, 32, 4096, 128), "bfloat16"), abstract((4096,), "int32")
    program = export.export(narrow.jit(rope.rotate), platforms=[platform])(x, positions)
    assert program.platforms == (platform,)
    assert [(one.shape, one.dtype.name) for one in program.out_avals] == [(x.shape, "bfloat16")]
    operations = set(re.findall(r"stablehlo\.(\w+)", program.mlir_module()))
    assert {"cosine", "sine", "multiply"} <= operations
    assert not operations & {"custom_call", "infeed", "outfeed", "gather"}
    assert "f64" not in program.mlir_module()


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_compiled_rotation_is_one_loop_that_moves_features_once(narrow, pairing):
    """As bytes that XLA counts: those of features that come and go, and a little for positions and constants."""
    rope, abstract = rfrope.Rope(rfrope.geometric(64), pairing=pairing), narrow.ShapeDtypeStruct
    x, positions = abstract((1, 8, 256, 128), "bfloat16"), abstract((256,), "int32")
    compiled = narrow.jit(rope.rotate).lower(x, positions).compile()
    (entry,) = re.findall(r"^ENTRY .*?^}", compiled.as_text(), re.MULTILINE | re.DOTALL)
    assert len(re.findall(r" fusion\(| call\(", entry)) == 1
    analysis = compiled.cost_analysis()
    moved = (analysis[0] if isinstance(analysis, list) else analysis)["bytes accessed"]
    assert moved <= 1.01 * 2 * 2 * 8 * 256 * 128


def test_the_transport_is_cut_without_float64_as_it_is_with_it(narrow):
    from rfrope import kernels
    from rfrope.kernels.gradients import fix_points

    far = np.asarray([[0.3], [1e-300], [1 - 1e-16]])

    def found(scale):
        return fix_points(kernels.kernel("exponential"), far)({"scale": scale}, narrow.numpy)[:, 0]

    scale = narrow.numpy.float32(2.0)
    values, slopes = found(scale), narrow.jacrev(found)(scale)
    wanted = kernels.kernel("exponential", scale=2.0).transport(far[:, 0])
    assert np.all(np.isfinite(values))
    assert np.all(np.isfinite(slopes))
    np.testing.assert_allclose(values[0], wanted[0], rtol=1e-6)
    assert np.abs(np.asarray(values)).max() == 2.0**120
    assert np.all(np.asarray(slopes)[np.abs(np.asarray(values)) == 2.0**120] == 0.0)
