"""A current folder with configs and files of frequencies, for the tests of commands."""

import json
import pathlib

import numpy as np
import pytest
from conftest import rows

import rfrope

CONFIGS = rows("cli/configs.json", "configs")


@pytest.fixture
def config():
    """``config(name, content)`` writes a config into the current folder, and returns its name."""

    def write(name, content):
        pathlib.Path(name).write_text(json.dumps(content), encoding="utf-8")
        return name

    return write


@pytest.fixture
def says(run):
    """``says(arguments)``: what a command says that succeeds without a word on stderr; by ``--json`` what it holds."""

    def call(*arguments, code=0):
        found, out, err = run(*arguments)
        assert (found, err) == (code, "")
        return json.loads(out) if "--json" in arguments else out

    return call


@pytest.fixture
def folder(tmp_path, monkeypatch, config):
    """The current folder, with one config and file of each kind."""
    monkeypatch.chdir(tmp_path)
    for name, content in CONFIGS.items():
        config(name, content)
    rfrope.save("rope.npz", rfrope.Rope(rfrope.sample("gaussian(scale=16)", 8, rng=0), context=256))
    rfrope.save("no_context.npz", rfrope.geometric(8))
    rfrope.save("plane.npz", np.ones((4, 2)))
    rfrope.save("polar.npz", rfrope.Rope(rfrope.geometric(6), polar=True, context=64))
    (right,) = rfrope.from_config(CONFIGS["qwen.json"])
    np.save("right.npy", right.frequencies.astype(np.float32))
    np.savez("right.npz", **{"rotary_emb.inv_freq": right.frequencies.astype(np.float32), "weights": np.ones(3)})
    rfrope.save("right_rope.npz", right)
    np.savez("wrong.npz", inv_freq=rfrope.geometric(64, base=1e6).astype(np.float32))
    np.savez("none.npz", weights=np.ones(3))
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "broken.json").write_text("{")
    return tmp_path


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A folder with a tiny model, a long text, six short ones, and a file that is no text."""
    pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
    import saved_models

    path = saved_models.save(tmp_path_factory.mktemp("model"))
    (path / "text.txt").write_text(saved_models.text(400), encoding="utf-8")
    for number in range(6):
        (path / f"{number}.txt").write_text(saved_models.text(64, number), encoding="utf-8")
    (path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    return path
