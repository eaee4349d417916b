"""``rfrope inspect``: what it reads, and what it prints."""

import json

import numpy as np
import pytest
from campaign import campaign
from conftest import rows
from published import BY_MODEL

import rfrope
from rfrope import analysis

pytestmark = pytest.mark.usefixtures("quick_fits", "here")
BASE = ["--base", "1e4", "--head-dim", "32", "--context", "512"]
LLAMA = BY_MODEL["Llama 3.1 8B"].config
SMALL = {"model_type": "llama", "head_dim": 32, "max_position_embeddings": 512, "rope_theta": 1e4}
GEMMA = {"model_type": "gemma3_text", "head_dim": 32, "max_position_embeddings": 1024, "rope_theta": 1e6}
GEMMA |= {"rope_local_base_freq": 1e4, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention"]}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sets(run, *arguments) -> list[dict]:
    return json.loads(run("inspect", *arguments, "--json")[1])["sets"]


def test_a_base(run):
    wanted = analysis.summarise(rfrope.geometric(16), 512, name="base 10000")
    assert run("inspect", *BASE) == (0, f"{wanted.report().led}\n", "")
    (held,) = sets(run, *BASE)
    assert held.pop("scheme")["rope_parameters"]["rope_theta"] == 1e4
    assert held == json.loads(json.dumps(wanted.to_dict()))


def test_a_config_and_its_folder(run, says, config, here):
    path = str(here / config("config.json", LLAMA))
    out = says("inspect", path)
    (part,) = rfrope.from_config(path)
    assert out.startswith(str(analysis.summarise(part, name=path).report().led))
    assert "\nScheme: llama3.\n  The config is already stretched by llama3 with factor 8, from 8192 " in out
    assert "\nPairing: half, from the table of model types (llama).\n" in out
    assert run("inspect", here)[1] == out.replace(path, str(here))
    (held,) = sets(run, path)
    assert held["scheme"]["rope_parameters"]["rope_type"] == "llama3"


def test_the_attention_factor_is_told_apart_from_the_curve(run, config):
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
    path = config("config.json", SMALL | {"rope_parameters": yarn} | {"rope_theta": None})
    ((held,), (part,)) = sets(run, path), rfrope.from_config(path)
    assert held["attention_factor"] == part.attention_factor == pytest.approx(0.1 * np.log(4.0) + 1.0)
    assert run("inspect", path, path)[1].splitlines()[4].endswith(f" {part.attention_factor**2:.4g}")


def test_partial_rotary_is_read_as_the_whole_head(run, config):
    linear = {"rope_type": "linear", "factor": 4.0}
    path = config("config.json", SMALL | {"partial_rotary_factor": 0.25, "rope_scaling": linear})
    assert "4 frequencies for 8 of the 32 features of a head" in run("inspect", path)[1]
    (part,) = rfrope.from_config(path)
    wanted = analysis.summarise(part.frequencies, 512, head_dim=32)
    (held,) = sets(run, path)
    assert held["axes"] == json.loads(json.dumps(wanted.to_dict()["axes"]))
    row = run("inspect", path, path)[1].partition("score x\n")[2].splitlines()[1]
    assert f" {12 + wanted.axes[0].n_dead} " in row  # out of the 16 blocks of the head
    latent = {"model_type": "deepseek_v3", "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "rope_theta": 1e4}
    path = config("latent.json", latent | {"max_position_embeddings": 512})
    assert "4 frequencies for 8 of the 32 features of a head" in run("inspect", path)[1]
    assert "base 10000, the last 8 of 32 features, pairs interleaved" in run("check", path)[1]


def test_schemes_that_depend_on_the_length_are_read_for_the_context(run, config):
    factors = {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16, "original_max_position_embeddings": 128}
    path = config("config.json", SMALL | {"rope_scaling": {"rope_type": "longrope", "factor": 4.0} | factors})
    longest = 2 * np.pi * 1e4 ** (15 / 16)
    for more, stretch, told in (
        ([], 4.0, "Scheme: longrope, read for a text of 512 positions."),
        (["--context", 64], 1.0, "read for a text of 64 positions."),
        (["--context", 64, "--seq-len", 129], 4.0, "read for a text of 129 positions."),
    ):
        (held,) = sets(run, path, *more)
        assert held["axes"][0]["longest"] == pytest.approx(stretch * longest)
        assert told in run("inspect", path, *more)[1]


@campaign
@pytest.mark.parametrize(("told", "expected"), rows("cli/inspect.json", "kinds_of_layers"))
def test_each_kind_of_layers_is_read_over_what_it_sees(run, config, told, expected):
    path = config("config.json", told | {"max_position_embeddings": 1024})
    held = {one["name"].removeprefix(path).lstrip(": "): one for one in sets(run, path)}
    assert {name: one["context"] for name, one in held.items()} == expected
    assert {one["scheme"]["seq_len"] for one in held.values()} == {1024}
    assert {one["context"] for one in sets(run, path, "--context", 4096)} == {4096}


def test_a_config_that_is_stretched_already_says_how_far(run, config):
    scheme = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 1e4}
    path = config("config.json", SMALL | {"rope_scaling": scheme})
    told = "\n  The config is already stretched by yarn with factor 4, from 512 positions to 2048"
    assert f"{told}; --context 2048 reads it there.\n" in run("inspect", path)[1]
    assert f"{told}.\n" in run("inspect", path, "--context", 2048)[1]
    expected = {"scheme": "yarn", "factor": 4.0, "original_context": 512, "reach": 2048}
    assert sets(run, path)[0]["scheme"]["stretched"] == expected
    assert "stretched" not in run("inspect", config("plain.json", SMALL))[1]


def test_a_model_with_several_parts(run, config):
    path = config("config.json", GEMMA)
    held = {one["name"]: one for one in sets(run, path)}
    for part in rfrope.from_config(path):
        told = held[f"{path}: {part.source.model.name}"]
        assert told["axes"][0]["longest"] == pytest.approx(2 * np.pi / part.frequencies[-1])
    assert "Scheme: linear." in run("inspect", path)[1]


def test_sections_of_m_rope_are_told(run, config):
    path = config("config.json", SMALL | {"rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}})
    _, out, _ = run("inspect", path)
    assert "Axes: the blocks are shared as [4, 6, 6] among the axes of the positions, one after the other." in out
    assert run("inspect", path, path)[1].count("Axes: the blocks are shared") == 2


@campaign
def test_a_vision_part_tells_no_context(run, config):
    vision = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "model_type": "qwen2_5_vl"}
    scaling = {"type": "mrope", "mrope_section": [16, 24, 24]}
    text = {"model_type": "qwen2_5_vl", "hidden_size": 3584, "num_attention_heads": 28, "max_position_embeddings": 2048}
    path = config("config.json", text | {"rope_theta": 1e6, "rope_scaling": scaling, "vision_config": vision})
    code, out, err = run("inspect", path)
    assert code == 0
    assert "64 frequencies" in out
    assert f"{path}: vision_config is left out: it gives no context. Add --context N to read it." in err
    _, eye = sets(run, path, "--context", 64)
    assert eye["name"] == f"{path}: vision_config"
    assert [axis["n_turning"] for axis in eye["axes"]] == [20, 20]
    assert eye["axes"][0]["longest"] == pytest.approx(2 * np.pi * 1e4 ** (19 / 20))


# -- files of frequencies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_file_of_frequencies(run, suffix):
    if suffix == "safetensors":
        pytest.importorskip("safetensors", reason="safetensors is not installed")
    path = f"part.{suffix}"
    rfrope.save(path, rfrope.Rope(rfrope.geometric(8), head_dim=32, attention_factor=1.25, context=512))
    out = run("inspect", path)[1]
    assert "8 frequencies for 16 of the 32 features of a head, over a context of 512 positions." in out
    assert "cos and sin are multiplied by 1.25, " in out
    assert "over a context of 99 positions" in run("inspect", path, "--context", 99)[1]


def test_a_file_of_polar_frequencies(run):
    omega = rfrope.sample("cauchy(scale=8)", 6, rng=0, heads=2)
    rfrope.save("polar.npz", rfrope.Rope(omega, polar=True, context=64))
    rfrope.save("plain.npz", rfrope.Rope(omega[0], context=64))
    held = sets(run, "polar.npz", "plain.npz")
    assert [(one["n_blocks"], one["head_dim"], one["polar"]) for one in held] == [(6, 6, True)] * 2 + [(6, 12, False)]
    assert held[0]["axes"][0]["curve"] == held[2]["axes"][0]["curve"]
    longest = [one["axes"][0]["longest"] for one in held[:2]]
    assert longest == pytest.approx(2 * np.pi / np.abs(omega).min(axis=(1, 2)))
    out = run("inspect", "polar.npz", "plain.npz")[1]
    assert "With polar frequencies this holds for any two tokens" in out
    rows = [line.split() for line in out.splitlines() if line.startswith(("polar.npz, head 0  ", "plain.npz  "))]
    assert rows[0][-6:-2] == rows[1][-6:-2]  # context, lags and the lowest score
    assert "Of polar" not in run("inspect", "plain.npz", "plain.npz")[1]
    rfrope.save("one.npz", rfrope.Rope(omega[0], polar=True, context=64))
    assert "6 frequencies for 6 magnitudes of a head, over a context of 64 positions." in run("inspect", "one.npz")[1]


def test_each_axis_over_its_own_context(run):
    omega = rfrope.sample("gaussian(scale=8, ndim=2)", 8, rng=0)
    rfrope.save("plane.npz", rfrope.Rope(omega, context=(24, 14)))
    out = run("inspect", "plane.npz")[1]
    assert "over a context of 24 x 14 positions" in out
    assert "Lags along axis 1" in out
    (held,) = sets(run, "plane.npz")
    assert (held["context"], [axis["context"] for axis in held["axes"]]) == ([24, 14], [24, 14])
    wanted = analysis.summarise(omega, (24, 14)).to_dict()["axes"]
    assert held["axes"] == json.loads(json.dumps(wanted))
    assert sets(run, "plane.npz", "--context", "14,14") == sets(run, "plane.npz", "--context", 14)
    table = run("inspect", "plane.npz", "plane.npz")[1].splitlines()
    assert [row.split()[3] for row in table[4:6]] == ["24", "14"]


# -- several, and figures ----------------------------------------------------------------------------------------------


@campaign
def test_several_are_put_side_by_side(run, says, config):
    words = ["--base", "1e5", "--head-dim", 64, "--context", 4096]
    words += [config("llama.json", LLAMA), config("small.json", SMALL)]
    out = says("inspect", *words)
    found, made = ([*part.splitlines()] for part in out.split("\n\n")[1:4:2])  # below the verdict
    assert found[0].split()[:3] == ["frequencies", "context", "<"]
    assert made[0].split()[:3] == ["frequencies", "D", "wavelengths"]
    for table in (found, made):
        assert [row.split("  ")[0] for row in table[2:5]] == ["base 100000", "llama.json", "small.json"]
    for row, other, one in zip(found[2:5], made[2:5], sets(run, *words), strict=True):
        axis = one["axes"][0]
        shown, kernel = (rfrope.kernels.parse(text) for text in (other.split("  ")[-1], axis["fit"]["kernel"]))
        np.testing.assert_allclose(shown(np.arange(99.0)), kernel(np.arange(99.0)), atol=1e-3)
        negative = axis["first_negative_lag"] or "never"
        for value in (one["context"], axis["half_lag"], f"{axis['lowest']:.3f}", negative, axis["n_dead"]):
            assert f" {value} " in row
        assert f" {one['n_blocks']} " in other
    assert "Scheme: llama3." in out
