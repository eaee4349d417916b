"""Files that are read are regular ones, and are read to a bound; nothing waits for what never comes."""

from __future__ import annotations

import os
import socket
import sys

import bad_input
import numpy as np
import pytest

import rfrope
from rfrope import exports, models
from rfrope._core import files
from rfrope.cli import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="FIFOs, /dev and limits of memory are Linux's")
ROPE = rfrope.Rope([1.0, 0.5], context=8)


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(path))


STRANGE = {
    "FIFO": os.mkfifo,
    "link to a FIFO": lambda path: (os.mkfifo(f"{path}.fifo"), os.symlink(f"{path}.fifo", path)),
    "endless device": lambda path: os.symlink("/dev/zero", path),
    "terminal": lambda path: os.symlink("/dev/tty", path),
    "folder": os.mkdir,
    "socket": unix_socket,
    "file longer than it says": lambda path: os.symlink("/proc/self/status", path),
    "nothing": lambda path: None,
}


def exported(engine, suffix):
    """A call of `exports.write` with the model to copy."""

    def call(path):
        if engine == "llama.cpp":
            pytest.importorskip("gguf")
        exports.write(path.parent / f"new{suffix}", ROPE, engine, model=path)

    return call


def on_the_command_line(*words):
    """A command with a path, whose error goes to stderr."""

    def call(path):
        code = main([word.format(path=path) for word in words])
        raise OSError(f"code {code}") if code else AssertionError("it was read")

    return call


READERS = {
    "load .npz": (".npz", rfrope.load),
    "load .safetensors": (".safetensors", rfrope.load),
    "from_config": (".json", rfrope.from_config),
    "compare": (".json", models.compare),
    "audit": (".json", lambda path: models.audit([1.0, 0.5], path)),
    "checkpoint": (".ckpt", lambda path: estimate(path)),
    "exports.write of a config": (".json", exported("vllm", ".json")),
    "exports.write of a GGUF": (".gguf", exported("llama.cpp", ".gguf")),
    "rfrope inspect CONFIG": (".json", on_the_command_line("inspect", "{path}")),
    "rfrope inspect ROPE": (".npz", on_the_command_line("inspect", "{path}")),
    "rfrope compare": (".json", on_the_command_line("compare", "{path}")),
    "rfrope plan": (".json", on_the_command_line("plan", "{path}", "--context", "64")),
    "rfrope export": (".npz", on_the_command_line("export", "{path}", "--to", "vllm")),
    "rfrope audit FILE.npy": (".npy", on_the_command_line("audit", "{path}", "{path}")),
    "rfrope audit FILE.npz": (".npz", on_the_command_line("audit", "{path}", "{path}")),
    "rfrope validate --qk": (".npz", on_the_command_line("validate", "gaussian", "--qk", "{path}")),
}


def estimate(path):
    found = rfrope.estimate_kernel(1.0, "gaussian", n_samples=8, rng=0, checkpoint=path)
    if not path.is_file():
        raise OSError("it was no file before, and is none now")
    return found


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused_at_once(reader, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket has at most 107 bytes
    suffix, call = READERS[reader]
    path = tmp_path / f"strange{suffix}"
    if kind == "socket":
        unix_socket(path.name)
    else:
        STRANGE[kind](path)
    if (reader, kind) == ("checkpoint", "nothing"):
        call(path)  # it makes one
        return
    with bad_input.watched(30), pytest.raises((OSError, ValueError)):
        call(path)


@pytest.mark.parametrize("kind", ["FIFO", "link to a FIFO", "endless device"])
def test_the_refusal_says_what_is_expected(kind, tmp_path):
    path = tmp_path / "strange.json"
    STRANGE[kind](path)
    with bad_input.watched(30), pytest.raises(OSError, match=f"^{path} is not a regular file; e"):
        rfrope.from_config(path)


def test_a_config_has_a_bound(tmp_path, peak):
    path = tmp_path / "config.json"
    with open(path, "wb") as file:
        file.write(b"{}")
        file.truncate(2**35)  # holes take no place on the disk
    peak(anew=True)
    for call in (rfrope.from_config, exported("vllm", ".json")):
        with pytest.raises(ValueError, match=f"^{path} has more than 16777216 bytes; expected at most so many"):
            call(path)
    assert peak() < 2**26
    path.write_bytes(b"{}" + b" " * (2**24 - 2))
    with pytest.raises(ValueError, match=f"^{path} describes no RoPE"):
        rfrope.from_config(path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_of_holes_is_asked_for_memory_before_it_is_read(suffix, tmp_path, peak):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / f"rope{suffix}"
    rfrope.save(path, ROPE)
    with open(path, "r+b") as file:
        file.truncate(2**42)
    peak(anew=True)
    with pytest.raises(ValueError, match=r"would take .* GB of memory"):
        rfrope.load(path)
    assert peak() < 2**26


def test_a_file_that_grows_is_read_to_the_length_that_it_had(tmp_path, monkeypatch):
    path = tmp_path / "grows.npy"
    np.save(path, np.ones(4))
    whole, real = path.read_bytes(), os.fstat
    assert files.content(str(path)) == whole

    def grown(descriptor):
        """What the file was; behind the look somebody writes on."""
        found = real(descriptor)
        with open(path, "ab") as file:
            file.write(b"more")
        return found

    opened = files.opened(str(path))
    monkeypatch.setattr(files, "opened", lambda _: opened)
    monkeypatch.setattr(os, "fstat", grown)
    with pytest.raises(ValueError, match=rf"has more than {len(whole)} bytes; .* does not grow"):
        files.content(str(path))


def test_the_file_that_was_looked_at_is_the_one_that_is_read(tmp_path, monkeypatch):
    """Nobody can put a FIFO in its place between the look and the reading: there is one descriptor."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 1}')
    real = os.fstat

    def swapped(descriptor):
        found = real(descriptor)
        if path.is_file():
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "fstat", swapped)
    with bad_input.watched(30):
        assert rfrope.from_config(path)[0].n_blocks == 4


def test_leftovers_that_became_something_else_are_left(tmp_path):
    """A FIFO under the name of a file that was being written does not stop the next writer."""
    left = tmp_path / ".rfrope-0123456789abcdef.tmp"
    os.mkfifo(left)
    os.utime(left, (0, 0))
    with bad_input.watched(30):
        rfrope.save(tmp_path / "rope.npz", ROPE)
    assert left.exists()


def test_json_inside_a_file_has_the_bound_too(tmp_path):
    """Lists in memory are far longer than in a text."""
    path = tmp_path / "rope.npz"
    with pytest.raises(ValueError, match=r"^source has \d+ characters as JSON; expected at most 16777216"):
        rfrope.save(path, ROPE, source={"note": "x" * 2**24})
    assert not path.exists()
    np.savez(path, frequencies=np.ones(2), metadata=np.asarray("[" + "[]," * 2**23 + "1]"))
    with pytest.raises(ValueError, match="does not say what it holds"):
        rfrope.load(path)
    np.savez(path, n=np.ones(2), checkpoint=np.asarray("[" + "[]," * 2**23 + "1]"))
    with pytest.raises(ValueError, match="is not a checkpoint"):
        estimate(path)
