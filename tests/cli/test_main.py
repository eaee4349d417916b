"""The command line as a program: exit codes, terminals, help, interrupts."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from campaign import HANGS, campaign, sparse

import rfrope
from rfrope import cli
from rfrope.cli import main

FAST = ["--samples", "4096", "--trials", "1024"]
COMMANDS = ("validate", "design", "inspect", "plan", "export", "compare", "audit", "kernels", "doctor")


def program(*arguments, **environment):
    """Run ``python -m rfrope`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "rfrope", *arguments],
        capture_output=True,
        env=os.environ | environment,
        timeout=HANGS,
    )


@pytest.mark.parametrize("command", [["inspect"], ["plan", "--context", 99], ["export", "--to", "vllm"]])
def test_a_path_where_nothing_lies(run, command):
    for source, read in (("meta-llama/Llama-3.1-8B", rfrope.from_config), ("none.npz", rfrope.load)):
        with pytest.raises(FileNotFoundError, match=f"^{source}: there is no such file.*; expected") as caught:
            read(source)
        assert run(*command, source) == (2, "", f"rfrope {command[0]}: error: {caught.value}\n")


def test_a_model_that_is_not_there_is_named(run, tmp_path):
    source = tmp_path / "rope.npz"
    rfrope.save(source, rfrope.Rope(np.ones(4), context=8))
    for engine, name in (("vllm", "new.json"), ("llama.cpp", "new.gguf")):
        if engine == "llama.cpp":
            pytest.importorskip("gguf", reason="gguf is not installed")
        code, _, err = run("export", source, "--to", engine, "-o", tmp_path / name, "--model", tmp_path / "none")
        assert code == 2
        assert f"{tmp_path / 'none'}: " in err
        assert "Errno" not in err


def test_the_console_script_is_main():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="rfrope")
    assert script.load() is main


def test_the_console_script_runs():
    path = os.path.join(os.path.dirname(sys.executable), "rfrope")
    if not os.path.exists(path):
        pytest.skip("rfrope is not installed beside this interpreter, so there is no script to start")
    done = subprocess.run([path, "kernels"], capture_output=True, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, b"")


def test_exit_codes_leave_the_process():
    done = program("validate", "gausian")
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"gausian" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    sparse([["validate", "gaussian", *FAST], ["kernels"], ["validate", "--help"]], lambda c: c == ["kernels"]),
)
def test_a_terminal_without_greek_letters(command):
    done = program(*command, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii")


def test_json_stays_readable_without_greek_letters():
    done = program("validate", "gaussian", *FAST, "--json", PYTHONIOENCODING="ascii")
    rows = json.loads(done.stdout)["results"][0]["rows"]
    assert {row["quantity"] for row in rows} == {"Φ", "Φ₂", "E sin", "E S", "Var S"}


@pytest.mark.parametrize(
    "command", sparse([["kernels"], ["validate", "gaussian", *FAST, "--json"]], lambda c: len(c) == 1)
)
def test_a_reader_that_leaves_is_no_error(command):
    process = subprocess.Popen(
        [sys.executable, "-m", "rfrope", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=HANGS) == 0
    assert errors == b""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--unknown"], "usage: rfrope"),
        (["nonsense"], "usage: rfrope"),
        (["doctor", "cupy"], "usage: rfrope"),
        (
            ["audit", "a.npy", "meta-llama/Llama-3.1-8B"],
            "there is no such file or folder here, and nothing is",
        ),
        (["compare", "meta-llama/Llama-3.1-8B"], "there is no such file or folder here, and nothing is"),
    ],
)
def test_bad_commands(run, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", rfrope.geometric(8))
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert told in err


def test_completion(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, _, err = run("--print-completion", "bash")
    assert code == 2
    assert "pip install 'rfrope[completion]'" in err
    monkeypatch.undo()
    pytest.importorskip("shtab", reason="shtab is not installed")
    code, out, _ = run("--print-completion", "bash")
    assert code == 0
    assert all(name in out for name in COMMANDS)
    assert "--head-dim" in out


def test_without_a_command_it_prints_the_help(run):
    assert run() == run("--help")
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out.startswith("usage: rfrope")


def test_version(run):
    assert run("--version")[:2] == (0, f"rfrope {rfrope.__version__}\n")


@pytest.mark.parametrize("command", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help(run, command):
    code, out, _ = run(*command)
    assert code == 0
    assert out.startswith("usage: rfrope")
    text = " ".join(out.split())
    assert re.search(r"Examples?: rfrope ", text)
    assert re.search(r"Exit codes?: 0", text)


def test_an_interrupt_is_one_line(run, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("rfrope.cli.validate.validate", interrupted)
    code, out, err = run("validate", "gaussian")
    assert (code, out, err) == (130, "", "rfrope validate: interrupted; no file was left half written\n")


@campaign
def test_an_interrupt_of_the_process():
    """A real signal, while the trials run."""
    many = ["validate", "gaussian(scale=32)", "--samples", "4294967295"]
    code = (  # a job in the background would ignore the signal
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from rfrope.cli import main; print('begun', flush=True); sys.exit(main(sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *many], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, out) == (130, ""), err
    assert err == "rfrope validate: interrupted; no file was left half written\n"


def test_a_terminal_without_greek_letters_is_no_reason_to_stop(monkeypatch):
    """What it cannot show is replaced; arguments that are not given are those of the process."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "argv", ["rfrope", "kernels"])
    assert cli.main() == 0
    screen.flush()
    assert b"?" in screen.buffer.getvalue()
    assert "gaussian" in screen.buffer.getvalue().decode()
