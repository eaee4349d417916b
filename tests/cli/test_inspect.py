"""``rfrope inspect``: what it reads, what it prints, and what it refuses."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import textwrap

import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import analysis, plotting

pytestmark = pytest.mark.usefixtures("quick_fits")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "command_line.rst"
BASE = ["--base", "1e4", "--head-dim", "32", "--context", "512"]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
SMALL = {"model_type": "llama", "head_dim": 32, "max_position_embeddings": 512, "rope_theta": 1e4}
GEMMA = {
    "model_type": "gemma3_text",
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "layer_types": ["sliding_attention", "full_attention"],
}


@pytest.fixture
def config(tmp_path):
    """``config(dict, name)`` writes a config.json into a folder of that name and returns the file's path."""

    def write(content, name="model"):
        folder = tmp_path / name
        folder.mkdir()
        path = folder / "config.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    return write


def sets(out: str) -> list[dict]:
    return json.loads(out)["sets"]


def test_a_base(run):
    code, out, err = run("inspect", *BASE)
    assert (code, err) == (0, "")
    assert out.strip() == str(analysis.summarise(rfrope.geometric(16), 512, name="base 10000"))


def test_a_config_and_its_folder(run, config):
    path = config(LLAMA)
    code, out, err = run("inspect", path)
    assert (code, err) == (0, "")
    (part,) = rfrope.from_config(path)
    assert out.startswith(str(analysis.summarise(part, name=str(path))))
    assert "Scheme: llama3 slows 35 of 64 blocks, at most 8 times." in out
    assert run("inspect", path.parent)[1] == out.replace(str(path), str(path.parent))


def test_the_scheme_is_told_against_the_ladder_of_its_base(run, config):
    path = config(LLAMA)
    (held,) = sets(run("inspect", path, "--json")[1])
    (part,) = rfrope.from_config(path)
    lags = np.arange(1, 131_072)
    before, after = (analysis.mean_kernel(lags, w) for w in (rfrope.geometric(64, base=5e5), part.frequencies))
    change = np.abs(after - before)
    assert held["scheme"]["effect"]["largest_change"] == pytest.approx(change.max(), abs=1e-9)
    assert held["scheme"]["effect"]["at_lag"] == lags[np.argmax(change)]
    assert held["scheme"]["rope_parameters"]["rope_type"] == "llama3"
    told = f"It moves the scores above by up to {change.max():.3f}, at distance {lags[np.argmax(change)]}."
    assert told in run("inspect", path)[1]


def test_the_attention_factor_is_told_apart_from_the_curve(run, config):
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
    path = config(SMALL | {"rope_parameters": yarn} | {"rope_theta": None})
    (held,) = sets(run("inspect", path, "--json")[1])
    (part,) = rfrope.from_config(path)
    assert held["attention_factor"] == part.attention_factor == pytest.approx(0.1 * np.log(4.0) + 1.0)
    lags = np.arange(1, 512)
    change = np.abs(analysis.mean_kernel(lags, part.frequencies) - analysis.mean_kernel(lags, rfrope.geometric(16)))
    assert held["scheme"]["effect"]["largest_change"] == pytest.approx(change.max(), abs=1e-9)
    table = run("inspect", path, path)[1].splitlines()
    assert table[2].endswith(f" {part.attention_factor**2:.4g}")


def test_partial_rotary_is_read_as_the_whole_head(run, config):
    path = config(SMALL | {"partial_rotary_factor": 0.25, "rope_scaling": {"rope_type": "linear", "factor": 4.0}})
    _, out, _ = run("inspect", path)
    assert "4 frequencies for 8 of the 32 features of a head" in out
    (part,) = rfrope.from_config(path)
    wanted = analysis.summarise(part.frequencies, 512, head_dim=32)
    (held,) = sets(run("inspect", path, "--json")[1])
    assert held["axes"] == json.loads(json.dumps(wanted.to_dict()["axes"]))
    lags = np.arange(1, 512)
    curves = [
        0.75 + 0.25 * analysis.mean_kernel(lags, omega) for omega in (rfrope.geometric(4), rfrope.geometric(4) / 4.0)
    ]
    assert held["scheme"]["effect"]["largest_change"] == pytest.approx(np.max(np.abs(curves[1] - curves[0])), abs=1e-9)
    row = run("inspect", path, path)[1].splitlines()[2]
    assert f" {12 + wanted.axes[0].n_dead} " in row  # out of the 16 blocks of the head


def test_latent_attention_is_read_as_the_whole_head(run, config):
    latent = {"model_type": "deepseek_v3", "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "rope_theta": 1e4}
    _, out, _ = run("inspect", config(latent | {"max_position_embeddings": 512}))
    assert "4 frequencies for 8 of the 32 features of a head" in out


def test_schemes_that_depend_on_the_length_are_read_for_the_context(run, config):
    factors = {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16, "original_max_position_embeddings": 128}
    path = config(SMALL | {"rope_scaling": {"rope_type": "longrope", "factor": 4.0} | factors})
    longest = 2 * np.pi * 1e4 ** (15 / 16)
    for more, stretch, told in (
        ([], 4.0, "read for a text of 512 positions, slows 16 of 16 blocks, at most 4 times"),
        (["--context", 64], 1.0, "read for a text of 64 positions, changes no block."),
        (["--seq-len", 100], 1.0, "read for a text of 100 positions, changes no block."),
        (["--context", 64, "--seq-len", 129], 4.0, "read for a text of 129 positions, slows 16"),
    ):
        (held,) = sets(run("inspect", path, "--json", *more)[1])
        assert held["axes"][0]["longest"] == pytest.approx(stretch * longest)
        assert told in run("inspect", path, *more)[1]


def test_layers_with_a_window_are_read_over_it(run, config):
    held = {
        one["name"].split()[-1]: one
        for one in sets(run("inspect", config(GEMMA | {"sliding_window": 256}), "--json")[1])
    }
    assert {name: one["context"] for name, one in held.items()} == {"sliding_attention": 256, "full_attention": 1024}
    shorter = sets(run("inspect", config(GEMMA | {"sliding_window": 4096}, "other"), "--json")[1])
    assert {one["context"] for one in shorter} == {1024}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 256}, {"": 256}),
        ({"model_type": "mistral", "sliding_window": 2048}, {"": 1024}),
        ({"model_type": "gpt_oss", "sliding_window": 32}, {"sliding_attention": 32, "full_attention": 1024}),
        ({"model_type": "gemma2", "sliding_window": 2048}, {"": 1024}),
        ({"model_type": "modernbert", "local_attention": 32}, {"sliding_attention": 17, "full_attention": 1024}),
    ],
)
def test_each_kind_of_layers_is_read_over_what_it_sees(run, config, told, expected):
    path = config(told | {"max_position_embeddings": 1024})
    held = {one["name"].removeprefix(str(path)).lstrip(": "): one for one in sets(run("inspect", path, "--json")[1])}
    assert {name: one["context"] for name, one in held.items()} == expected
    assert {one["scheme"]["seq_len"] for one in held.values()} == {1024}
    longer = sets(run("inspect", path, "--context", 4096, "--json")[1])
    assert {one["context"] for one in longer} == {4096}


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_a_config_that_is_stretched_already_says_how_far(run, config, key):
    scheme = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 1e4}
    path = config({"model_type": "llama", "head_dim": 32, "max_position_embeddings": 512, key: scheme})
    told = "\n  The config is stretched already, by yarn with factor 4, from 512 positions to 2048"
    assert f"{told}; --context 2048 reads it there.\n" in run("inspect", path)[1]
    assert f"{told}.\n" in run("inspect", path, "--context", 2048)[1]
    (held,) = sets(run("inspect", path, "--json")[1])
    expected = {"scheme": "yarn", "factor": 4.0, "original_context": 512, "reach": 2048}
    assert held["scheme"]["stretched"] == expected
    plain = config({"model_type": "llama", "head_dim": 32, "max_position_embeddings": 512, "rope_theta": 1e4}, "plain")
    assert "stretched" not in run("inspect", plain)[1]


def test_a_model_with_several_parts(run, config):
    path = config(GEMMA)
    _, out, _ = run("inspect", path)
    assert f"{path}: sliding_attention" in out
    assert f"{path}: full_attention" in out
    held = {one["name"]: one for one in sets(run("inspect", path, "--json")[1])}
    parts = {part.source.model.name: part for part in rfrope.from_config(path)}
    for name, part in parts.items():
        told = held[f"{path}: {name}"]
        assert told["axes"][0]["longest"] == pytest.approx(2 * np.pi / part.frequencies[-1])
        assert told["context"] == 1024
    assert held[f"{path}: sliding_attention"]["scheme"]["effect"] is None
    assert held[f"{path}: full_attention"]["scheme"]["effect"]["largest_change"] > 0.1


def test_sections_of_m_rope_are_told(run, config):
    scaling = {"type": "mrope", "mrope_section": [4, 6, 6]}
    path = config(SMALL | {"rope_scaling": scaling})
    _, out, _ = run("inspect", path)
    assert "Axes: the blocks are shared as [4, 6, 6] among the axes of the positions, one after the other." in out
    for axis in analysis.summarise(rfrope.mrope(rfrope.geometric(16), [4, 6, 6]), 512).axes:
        told = f"axis {axis.axis}: {axis.n_turning} blocks turn, {axis.n_dead} of them complete no turn"
        assert told in out
        assert f"the score, averaged over contents, is never below {axis.lowest:.3f}." in out
    assert run("inspect", path, path)[1].count("Axes: the blocks are shared") == 2


@pytest.mark.parametrize(
    ("changes", "slowed"),
    [
        ({"rope_type": "linear", "factor": 4.0}, "linear slows 16 of 16 blocks, at most 4 times"),
        ({"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5}, "linear slows 8 of 8 blocks"),
        ({"rope_type": "proportional", "partial_rotary_factor": 0.25}, "proportional stops 12 of 16 blocks"),
        ({"rope_type": "proportional", "factor": 2.0}, "proportional slows 16 of 16 blocks, at most 2 times"),
        ({"rope_type": "linear", "factor": 1.0}, "linear changes no block"),
    ],
)
def test_what_schemes_change(run, config, changes, slowed):
    held = SMALL | {"rope_theta": None, "rope_parameters": {"rope_theta": 1e4} | changes}
    code, out, _ = run("inspect", config(held))
    assert code == 0
    assert f"Scheme: {slowed}" in out


@campaign
def test_a_vision_part_tells_no_context(run, config):
    vision = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "model_type": "qwen2_5_vl"}
    scaling = {"type": "mrope", "mrope_section": [16, 24, 24]}
    text = {"model_type": "qwen2_5_vl", "hidden_size": 3584, "num_attention_heads": 28, "max_position_embeddings": 2048}
    path = config(text | {"rope_theta": 1e6, "rope_scaling": scaling, "vision_config": vision})
    code, out, err = run("inspect", path)
    assert code == 0
    assert "64 frequencies" in out
    assert f"{path}: vision_config is left out, because it gives no context: --context N reads it." in err
    code, out, err = run("inspect", path, "--context", 64, "--json")
    assert (code, err) == (0, "")
    _, eye = sets(out)
    assert eye["name"] == f"{path}: vision_config"
    assert [axis["n_turning"] for axis in eye["axes"]] == [20, 20]
    assert eye["axes"][0]["longest"] == pytest.approx(2 * np.pi * 1e4 ** (19 / 20))


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_file_of_frequencies(run, tmp_path, suffix):
    if suffix == "safetensors":
        pytest.importorskip("safetensors", reason="safetensors is not installed")
    path = tmp_path / f"set.{suffix}"
    assert run("design", "gaussian(scale=8)", "--head-dim", 32, "--context", 128, "-o", path)[0] == 0
    code, out, _ = run("inspect", path)
    assert code == 0
    assert out.strip() == str(analysis.summarise(rfrope.load(path), 128, name=str(path)))
    assert "over a context of 99 positions" in run("inspect", path, "--context", 99)[1]


def test_a_saved_rope_is_read_with_its_width_and_its_factor(run, tmp_path):
    rope = rfrope.Rope(rfrope.geometric(8), head_dim=32, attention_factor=1.25, context=512)
    rfrope.save(tmp_path / "part.npz", rope)
    out = run("inspect", tmp_path / "part.npz")[1]
    assert "8 frequencies for 16 of the 32 features of a head, over a context of 512 positions." in out
    assert "cos and sin are multiplied by 1.25, " in out


def test_every_head_of_a_file(run, tmp_path):
    path = tmp_path / "heads.npz"
    assert run("design", "cauchy", "--head-dim", 8, "--heads", 3, "--context", 64, "-o", path)[0] == 0
    held = sets(run("inspect", path, "--json")[1])
    assert [one["name"] for one in held] == [f"{path}, head {head}" for head in range(3)]
    omega = rfrope.load(path).frequencies
    for head, one in enumerate(held):
        assert one["axes"][0]["longest"] == pytest.approx(2 * np.pi / np.abs(omega[head]).min())


def test_frequencies_in_two_axes(run, tmp_path):
    path = tmp_path / "axial.npz"
    rfrope.save(path, rfrope.axial(rfrope.geometric(4, base=100.0), rfrope.geometric(4, base=100.0)))
    _, out, _ = run("inspect", path, "--context", 16)
    assert "Lags along axis 0" in out
    assert "Lags along axis 1" in out
    table = run("inspect", path, path, "--context", 16)[1]
    assert table.count(", axis 1") == 4


def test_several_are_put_side_by_side(run, config):
    paths = [config(LLAMA, "llama"), config(SMALL, "small")]
    code, out, err = run("inspect", "--base", "1e5", "--head-dim", 64, "--context", 4096, *paths)
    assert (code, err) == (0, "")
    found, made = ([*part.splitlines()] for part in out.split("\n\n")[0:3:2])
    assert found[0].split()[:3] == ["frequencies", "context", "<"]
    assert made[0].split()[:3] == ["frequencies", "D", "wavelengths"]
    for rows in (found, made):
        assert [row.split("  ")[0] for row in rows[2:5]] == ["base 100000", *map(str, paths)]
    held = sets(run("inspect", "--base", "1e5", "--head-dim", 64, "--context", 4096, *paths, "--json")[1])
    for row, other, one in zip(found[2:5], made[2:5], held, strict=True):
        axis = one["axes"][0]
        name, shown = axis["fit"]["kernel"].partition("(")[0], other.split("  ")[-1]
        assert shown.startswith(name)
        np.testing.assert_allclose(
            rfrope.kernels.parse(shown)(np.arange(99.0)),
            rfrope.kernels.parse(axis["fit"]["kernel"])(np.arange(99.0)),
            atol=1e-3,
        )
        for value in (one["context"], axis["half_lag"], f"{axis['lowest']:.3f}"):
            assert f" {value} " in row
        assert f" {axis['first_negative_lag'] or 'never'} " in row
        assert f" {axis['n_dead']} " in row
        assert f" {one['n_blocks']} " in other
    assert "Scheme: llama3 slows 35 of 64 blocks" in out


def test_labels_that_are_given_twice_are_numbered(run, tmp_path):
    _, out, _ = run("inspect", *BASE, "--base", "1e4", "--json")
    assert [one["name"] for one in sets(out)] == ["base 10000 (1)", "base 10000 (2)"]


def test_json_holds_the_summary(run):
    (held,) = sets(run("inspect", *BASE, "--json")[1])
    wanted = analysis.summarise(rfrope.geometric(16), 512, name="base 10000").to_dict()
    assert held == json.loads(json.dumps({"scheme": None} | wanted))


def test_a_figure_shows_what_the_text_says(run, tmp_path, config, monkeypatch):
    """A partly rotated head counts as a whole, each part over its own context."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    drawn = {}
    for name in ("mean_kernels", "wavelengths"):
        real = getattr(plotting, name)
        monkeypatch.setattr(
            plotting,
            name,
            lambda *held, name=name, real=real, **more: drawn.update({name: (held, more)}) or real(*held, **more),
        )
    path, figure = (
        config(GEMMA | {"sliding_window": 256, "partial_rotary_factor": 0.5}, "_a$b$"),
        tmp_path / "figure.svg",
    )
    code, out, _ = run("inspect", path, "--plot", figure, "--json")
    assert code == 0
    (held, lags), told = drawn["mean_kernels"][0], {one["name"]: one for one in sets(out)}
    contexts = {name: one["context"] for name, one in told.items()}
    assert {name: last + 1 for name, last in lags.items()} == contexts == drawn["wavelengths"][1]["context"]
    for name, one in told.items():
        curve = analysis.mean_kernel(np.arange(one["context"]), held[name])
        assert curve[1:].min() == pytest.approx(one["axes"][0]["lowest"], abs=1e-9)
    assert "<!-- score of equal content -->" in figure.read_text("utf-8")
    assert run("inspect", *BASE, "--plot", figure)[0] == 2
    assert f"Written: {figure}" in run("inspect", *BASE, "--plot", figure, "--force")[1]


BAD = [
    (
        ["meta-llama/Llama-3.1-8B"],
        "meta-llama/Llama-3.1-8B: there is no such file or folder here, and nothing is downloaded; expected the "
        "path of a config.json, or of the folder that it lies in (for Llama-3.1-8B: the config.json of its repository)",
    ),
    ([], "no frequencies to inspect; expected a config.json, a file of frequencies, or --base with --head-dim"),
    (["--base", "1e4", "--head-dim", "8"], "--base 10000: expected --head-dim and --context with it"),
    (["--base", "0", "--head-dim", "8", "--context", "8"], "0 is not a base; expected a positive number"),
    (["--base", "nan", "--head-dim", "8", "--context", "8"], "nan is not a base"),
    (["--base", "ten", "--head-dim", "8", "--context", "8"], "ten is not a base"),
    (["--base", "1e4", "--head-dim", "7", "--context", "8"], "7 is odd"),
    (["--head-dim", "8"], "--head-dim 8: expected it with --base"),
    (["no-such-file.json"], "no-such-file.json"),
    ([*BASE, "--plot", "figure.txt"], "--plot figure.txt: expected a name that ends in .png, .svg, .pdf"),
    ([*BASE, "--seq-len", "0"], "0 is below 1"),
    ([*BASE, "--seq-len", "9"], "--seq-len 9: expected it with a SOURCE"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD, ids=[" ".join(a) or "empty" for a, _ in BAD])
def test_bad_arguments(run, arguments, told):
    code, out, err = run("inspect", *arguments)
    assert (code, out) == (2, "")
    assert told in err


def test_each_axis_over_its_own_context(run, tmp_path):
    path = tmp_path / "plane.npz"
    design = ["design", "gaussian(scale=8, ndim=2)", "--head-dim", 16, "--context", "24,14", "-o", path]
    assert run(*design)[0] == 0
    omega = rfrope.load(path).frequencies
    code, out, err = run("inspect", path)
    assert (code, err) == (0, "")
    assert "over a context of 24 x 14 positions" in out
    (held,) = sets(run("inspect", path, "--json")[1])
    assert (held["context"], [axis["context"] for axis in held["axes"]]) == ([24, 14], [24, 14])
    for axis, length in zip(held["axes"], (24, 14), strict=True):
        curve = analysis.mean_kernel(np.arange(length), omega[:, axis["axis"]])
        assert axis["curve"][-1] == [length - 1, pytest.approx(curve[-1])]
        assert axis["lowest"] == pytest.approx(curve[1:].min())
    (alike,) = sets(run("inspect", path, "--context", "14,14", "--json")[1])
    assert alike["context"] == 14
    assert alike["axes"] == sets(run("inspect", path, "--context", 14, "--json")[1])[0]["axes"]
    table = run("inspect", path, path)[1].splitlines()
    assert [row.split()[4] for row in table[2:4]] == ["24", "14"]
    for refused, told in (("14,14,14", "has 2 axes; expected one number, or one for each axis"), ("1", "1 is below 2")):
        code, _, err = run("inspect", path, "--context", refused)
        assert code == 2
        assert told in err
    assert "expected one number" in run("inspect", *BASE[:-1], "9,9")[2]


def test_files_without_a_context(run, tmp_path, config):
    rfrope.save(tmp_path / "set.npz", [1.0, 0.1])
    for number, context in enumerate((["a", 3], [], True)):  # version 0.1 could write any of these
        about = {"format": 1, "rfrope": "0.1.0", "units": "radians per unit of position", "shape": [2]}
        about |= {"dtype": "float64", "provenance": {"context": context}}
        np.savez(tmp_path / f"{number}.npz", frequencies=[1.0, 0.1], metadata=json.dumps(about))
        assert f"{number}.npz holds no context" in run("inspect", tmp_path / f"{number}.npz")[2]
    for path in (tmp_path / "set.npz", config({"model_type": "llama", "head_dim": 8} | {"rope_theta": 10.0})):
        code, out, err = run("inspect", path)
        if path.suffix == ".npz":
            assert (code, out) == (2, "")
            assert f"{path} holds no context; expected --context" in err
        assert run("inspect", path, "--context", 16)[0] == 0


def test_a_config_that_is_none(run, tmp_path, config):
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    for path, told in ((broken, str(broken)), (config({"model_type": "bert", "hidden_size": 8}), "RoPE")):
        code, out, err = run("inspect", path)
        assert (code, out) == (2, "")
        assert told in err


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
def test_the_outputs_on_the_documentation_page(run, config, tmp_path, monkeypatch, kept_fits):
    monkeypatch.chdir(tmp_path)
    config(LLAMA, "llama-3.1-8b")
    shown = re.findall(
        r"^    \$ rfrope (inspect .*)\n((?:(?:    .*)?\n)+?)(?=^\S)", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert len(shown) >= 2
    for command, output in shown:
        code, out, _ = run(*shlex.split(command))
        assert code == 0
        assert out.strip() == textwrap.dedent(output).strip()
