"""``rfrope plan``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import textwrap

import numpy as np
import pytest

import rfrope
from rfrope import analysis

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "command_line.rst"
CONFIG = {"model_type": "llama", "head_dim": 16, "rope_theta": 1e4, "max_position_embeddings": 256}
LAYERS = {
    "model_type": "gemma3_text",
    "head_dim": 16,
    "max_position_embeddings": 256,
    "sliding_window": 64,
    "rope_theta": 1e5,
    "rope_local_base_freq": 1e4,
}
PAGES_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with a config, and the current one."""
    monkeypatch.chdir(tmp_path)
    write("config.json", CONFIG)
    return tmp_path


def write(name, content):
    pathlib.Path(name).write_text(json.dumps(content), encoding="utf-8")


def config_in(out):
    """The config at the end of the text, and the name of its method."""
    text, _, config = out.rpartition("Config for ")
    name, _, config = config.partition(" (transformers):\n")
    return text, name, json.loads(config)


def test_text_and_config(run):
    code, out, err = run("plan", "config.json", "--context", 1024)
    plan = analysis.plan(rfrope.from_config(CONFIG)[0], 1024)
    text, name, config = config_in(out)
    assert (code, err, text) == (0, "", f"{plan}\n\n")
    assert name == plan.methods[0].name == "yarn"
    assert config == {"rope_parameters": plan.methods[0].rope_parameters, "max_position_embeddings": 1024}


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_a_config_that_is_stretched_already(run, key):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    scheme = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    write("config.json", CONFIG | {key: scheme})
    code, out, err = run("plan", "config.json", "--context", 1024, "--html", "plan.html", "--plot", "plan.svg")
    assert (code, err) == (0, "")
    assert pathlib.Path("plan.svg").read_bytes().startswith(b"<?xml")
    first = "The config is stretched already, by yarn with factor 4, from 256 positions to 1024.\nIt reaches the 1024 "
    assert out.startswith(first)
    assert "\nFrom 256 trained positions to 1024, 4 times as many. " in out
    config = config_in(out.rpartition("Written: ")[0].rpartition("Written: ")[0])[2]
    assert config["rope_parameters"] == scheme | {"rope_theta": 1e4}
    page = pathlib.Path("plan.html").read_text("utf-8")
    assert "stretched already, by yarn with factor 4" in page
    code, out, _ = run("plan", "config.json", "--context", 2048, "--trained", 1024)
    first, second, *_ = out.split("\n")
    assert first == "The frequencies were scaled before, by yarn, and are taken as those of training."
    assert second.startswith("From 1024 trained positions to 2048, 2 times as many. ")


def test_long_lists_of_divisors_are_in_short(run):
    write("config.json", CONFIG | {"head_dim": 24})
    arguments = ["plan", "config.json", "--context", 1024, "--method", "optimised"]
    code, out, _ = run(*arguments)
    factors = json.loads(run(*arguments, "--json")[1])["plans"][0]["config"]["rope_parameters"]["long_factor"]
    assert code == 0
    assert out.count(f"[12 numbers, 1 to {max(factors):.6g}]") == 2
    assert not re.search(r"\d\.\d{8}", out)
    assert (
        "Config for optimised (transformers); all numbers with --json, or in a config by -o and `rfrope export`:" in out
    )


@pytest.mark.parametrize("name", ["as it is", "linear", "ntk", "yarn", "llama3", "optimised"])
def test_the_config_of_each_method_gives_its_rope(run, name):
    code, out, _ = run("plan", "config.json", "--context", 1024, "--method", name, "-o", "rope.npz")
    assert code == 0
    config, _, written = out.rpartition("Written: ")
    _, told, config = config_in(config)
    assert (told, written) == (name, "rope.npz\n")
    (read,), saved = rfrope.from_config({"model_type": "llama", "head_dim": 16} | config), rfrope.load("rope.npz")
    np.testing.assert_allclose(read.frequencies, saved.frequencies, rtol=2e-7)
    assert read.attention_factor == pytest.approx(saved.attention_factor)
    assert read.context == saved.context == 1024


def test_json(run):
    code, out, _ = run("plan", "config.json", "--context", 1024, "--json", "--method", "yarn")
    told = json.loads(out)
    plan = analysis.plan(rfrope.from_config(CONFIG)[0], 1024)
    config = {"rope_parameters": plan.method("yarn").rope_parameters, "max_position_embeddings": 1024}
    assert code == 0
    written = {"output": None, "plot": None, "html": None}
    assert told == {"plans": [{"name": "", **plan.to_dict(), "config": config}]} | written


def test_a_model_whose_scheme_depends_on_the_length_is_read_at_its_own(run):
    scheme = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    write("config.json", CONFIG | {"rope_scaling": scheme, "original_max_position_embeddings": 128})
    code, out, _ = run("plan", "config.json", "--context", 1024, "--trained", 256, "--json")
    (plan,) = json.loads(out)["plans"]
    as_it_is = next(method for method in plan["methods"] if method["name"] == "as it is")
    assert code == 0
    np.testing.assert_allclose(as_it_is["frequencies"], rfrope.geometric(8) / 2.0)


def test_layers_with_a_window_are_left_out(run):
    write("config.json", LAYERS)
    code, out, err = run("plan", "config.json", "--context", 1024)
    assert code == 0
    assert out.startswith("full_attention\nFrom 256 trained positions to 1024, ")
    assert err == "sliding_attention is left out: it sees 64 positions, however long the text is.\n"
    code, _, err = run("plan", "config.json", "--context", 1024, "--part", "sliding_attention")
    assert code == 2
    assert "has nothing to plan: sliding_attention sees 64 positions, however long the text is\n" in err
    for window, planned in (
        (4096, 2),
        (256, 2),
        (255, 1),
    ):  # 256 positions were trained: that window hides none of them
        write("config.json", LAYERS | {"sliding_window": window})
        code, out, _ = run("plan", "config.json", "--context", 1024)
        assert (code, out.count("Config for ")) == (0, planned)
    write("config.json", LAYERS | {"sliding_window": 4096})
    code, _, err = run("plan", "config.json", "--context", 1024, "--method", "yarn")
    assert code == 2
    assert (
        "--method: config.json has several RoPEs; expected one of 'full_attention', 'sliding_attention' as --part"
        in err
    )


def test_what_no_config_says(run):
    write("config.json", CONFIG | {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}})
    code, out, _ = run("plan", "config.json", "--context", 1024, "--method", "optimised")
    assert code == 0
    reason = "it turns by 3 position axes; for text alone, replace(rope, sections=None) has one"
    assert out.endswith(f"\nNo config says optimised: rope cannot be exported to transformers: {reason}.\n")
    code, out, _ = run("plan", "config.json", "--context", 1024, "--method", "yarn")
    assert config_in(out)[2]["rope_parameters"]["mrope_section"] == [4, 2, 2]


def test_a_file_of_frequencies(run):
    rfrope.save("rope.npz", rfrope.geometric(8))
    code, out, _ = run("plan", "rope.npz", "--context", 1024, "--trained", 256)
    assert (code, out.split("\n")[0][:41]) == (0, "From 256 trained positions to 1024, 4 tim")
    code, _, err = run("plan", "rope.npz", "--context", 1024)
    assert code == 2
    assert "trained_context is missing" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config.json", "--context", "256"], "context is 256; expected more than the 256 trained positions"),
        (["config.json", "--context", "1024", "--method", "su"], "--method: name is 'su'; expected one of 'yarn'"),
        (
            ["config.json", "--context", "1024", "--part", "text"],
            "--part text: config.json has one RoPE; expected none",
        ),
        (["layers.json", "--context", "1024", "--part", "text"], "--part text: expected one of 'full_attention', 's"),
        (["config.json", "--context", "1024", "-o", "rope.json"], "-o rope.json: path is 'rope.json'; expected a name"),
        (["config.json", "--context", "1024", "-o", "old.npz"], "old.npz exists; expected a new name, or --force"),
        (["config.json", "--context", "1024", "--plot", "x.gif"], "--plot x.gif: expected a name that ends in"),
        (["old.npz", "--context", "1024", "--part", "text"], "--part text: old.npz has one RoPE; expected none"),
        (["bare.json", "--context", "1024"], "bare.json has nothing to plan: it gives no context; expected --trained"),
        (["vision.json", "--context", "1024"], "nothing to plan: it turns by the two axes of a picture"),
    ],
)
def test_bad_input(run, arguments, message):
    rfrope.save("old.npz", rfrope.geometric(8))
    write("layers.json", LAYERS)
    write("bare.json", {"model_type": "mine", "head_dim": 16, "rope_theta": 1e4})
    write("vision.json", {"model_type": "pixtral", "hidden_size": 64, "num_attention_heads": 4})
    before = sorted(os.listdir())
    code, out, err = run("plan", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(os.listdir()) == before


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
def test_the_output_on_the_documentation_page(run):
    write("config.json", PAGES_CONFIG)
    ((command, block),) = re.findall(
        r"^    \$ rfrope (plan .*)\n((?:    .*\n|\n)+)", PAGE.read_text("utf-8"), re.MULTILINE
    )
    code, out, _ = run(*shlex.split(command))
    assert code == 0
    assert out.rstrip("\n") == textwrap.dedent(block).rstrip("\n")
