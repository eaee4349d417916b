"""Names come from files that anybody may have written: nothing in them acts on a terminal, or reorders what is read."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import models
from rfrope._backends import findings
from rfrope.cli import main, page

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202eknil\u2066\u200b\rPASSED\nPASSED"
SAFE = r"\x1b]0;title\x07\x1b[2J\x9b31m\u202eknil\u2066\u200b\rPASSED\nPASSED"
PART = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 128, "rope_theta": 10000.0}
LLAMA = {"model_type": "llama", **PART}
CONFIGS = {
    "a part": {"model_type": "own", f"{EVIL}_config": LLAMA, "text_config": LLAMA},
    "a model type": {**PART, "model_type": EVIL},
    "a kind of layers": {
        **LLAMA,
        "rope_parameters": {EVIL: {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}},
    },
    "a scheme": {**LLAMA, "rope_scaling": {"rope_type": EVIL, "factor": 2.0}},
    "a key": {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0, EVIL: 3}},
    "a key of layers": {**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1e4}, EVIL: 3}},
    "nothing that is read": {f"{EVIL}_config": {"model_type": EVIL}},
    "a value": {**LLAMA, "rope_theta": EVIL},
    "too many parts": {},
}
for _ in range(12):
    CONFIGS["too many parts"] = {"model_type": "own", f"{EVIL}_config": CONFIGS["too many parts"]}


@pytest.fixture
def config(request, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[request.param]))
    return str(path)


def assert_safe(text: str) -> None:
    """No character but line ends that is not shown as itself, and no line that a name has made."""
    assert "".join(text.split("\n")).isprintable()
    assert not re.search(r"^PASSED(?!: largest)", text, re.MULTILINE)


COMMANDS = {
    "inspect": lambda path: ["inspect", path],
    "inspect --json": lambda path: ["inspect", path, "--json"],
    "inspect two": lambda path: ["inspect", path, path],
    "compare": lambda path: ["compare", path],
    "plan": lambda path: ["plan", path, "--context", "256"],
    "diff": lambda path: ["diff", path, path.replace("config.json", "")],
    "diff to another": lambda path: ["diff", path, _plain(path)],
    "audit": lambda path: ["audit", str(_buffers(path)), path],
    "export": lambda path: ["export", path, "--to", "vllm"],
    "export --part": lambda path: ["export", path, "--to", "vllm", "--part", EVIL],
}


def _plain(path):
    other = path.replace("config.json", "other.json")
    with open(other, "w") as file:
        json.dump({"model_type": "llama", "head_dim": 32, "rope_theta": 7.0, "max_position_embeddings": 64}, file)
    return other


def _buffers(path):
    held = path.replace("config.json", "buffers.npz")
    np.savez(held, **{f"{EVIL}.inv_freq": rfrope.geometric(8), "model.inv_freq": rfrope.geometric(8, base=7.0)})
    return held


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_print_no_escapes_of_a_config(command, config, capsys, quick_fits):
    code = main(COMMANDS[command](config))
    out, err = capsys.readouterr()
    assert out or err
    assert code in (0, 1, 2)
    if command != "inspect --json":
        assert_safe(out)
    assert_safe(err)


@campaign
def test_the_name_of_a_part_is_shown_with_escapes(tmp_path, capsys, monkeypatch, quick_fits):
    monkeypatch.setenv("COLUMNS", "1000")
    path, html = tmp_path / "config.json", tmp_path / "page.html"
    path.write_text(json.dumps(CONFIGS["a part"]))
    for command in ("inspect", "compare", "plan"):
        assert main([*COMMANDS[command](str(path)), "--html", str(html), "--force"]) == 0
        assert SAFE in capsys.readouterr().out, command
        text = html.read_text("utf-8")
        assert "".join(text.split("\n")).replace("\t", "").isprintable()
        report = json.loads(re.search(r'id="report">(.*?)</script>', text, re.DOTALL)[1])
        assert SAFE in json.dumps(report).replace("\\\\", "\\")


def strings(value):
    """All texts in some data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


def test_no_text_of_a_page_hides_anything():
    parts = [page.table(EVIL, [(EVIL, "b"), ("c", EVIL)], note=EVIL), page.copyable(EVIL, f"two\nlines {EVIL}")]
    text = page.rendered(EVIL, parts, EVIL)
    report = json.loads(re.search(r'id="report">(.*?)</script>', text, re.DOTALL)[1])
    found = [*strings(report)]
    assert len(found) > 6
    for one in (text.replace("\t", ""), *found):
        assert "".join(one.split("\n")).isprintable()
    assert any(one.startswith("two\nlines ") for one in found)  # its lines stay


def test_python_shows_no_escapes_of_a_config():
    for rope in rfrope.from_config(CONFIGS["a part"]):
        assert repr(rope).isprintable()
        assert rope.source.model.name.isprintable()
        assert rope.source.model.model_type.isprintable()
    assert rfrope.from_config(CONFIGS["a model type"])[0].source.model.model_type == SAFE
    compared = models.compare(CONFIGS["a part"])
    for text in (str(compared), compared._repr_html_(), *map(str, compared.ropes)):
        assert_safe(text)
    found = models.audit({f"{EVIL}.inv_freq": rfrope.geometric(8, base=7.0)}, rfrope.geometric(8))
    for text in (str(found), found._repr_html_(), *map(str, found.findings)):
        assert_safe(text)
    rope = rfrope.Rope([1.0], pairing=None, source={"note": EVIL, EVIL: EVIL})
    assert_safe(rope._repr_html_())
    with pytest.raises(ValueError, match=r"rope\.pairing is None") as caught:
        rope.rotate(np.ones(2), 1)
    assert str(caught.value).isprintable()


def test_errors_of_files_show_no_escapes(tmp_path):
    path = tmp_path / "rope.npz"
    good = {"units": "radians per unit of position", "shape": [2], "dtype": "float64", "rfrope": "0"}
    for held in (
        {EVIL: np.ones(2)},
        {"metadata": json.dumps({"format": 10**300, "units": EVIL})},
        {"metadata": json.dumps({"format": 2, "source": {}, "rope": {}, **good, "units": EVIL, "shape": [EVIL]})},
        {"metadata": json.dumps({"format": 1, "provenance": {}, **good, "dtype": EVIL})},
        {EVIL: np.array([None], dtype=object)},
    ):
        np.savez(path, **({"frequencies": np.ones(2)} | held if "metadata" in held else held))
        with pytest.raises(ValueError, match=r"rope\.npz") as caught:
            rfrope.load(path)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000


def test_words_of_the_command_line_are_printed_with_escapes(tmp_path, capsys):
    folder = tmp_path / "\x1b[31m"
    folder.mkdir()
    path = folder / "rope.npz"
    rfrope.save(path, rfrope.Rope([1.0, 0.5], context=8))
    assert main(["export", str(path), "--to", "vllm", "-o", str(folder / "new.json")]) == 0
    assert_safe(capsys.readouterr().out)
    assert main(["inspect", str(folder / EVIL)]) == 2
    error = capsys.readouterr().err
    assert "".join(error.split("\n")).isprintable()
    with pytest.raises(SystemExit):
        main(["inspect", "--" + EVIL])
    error = capsys.readouterr().err
    assert "".join(error.split("\n")).isprintable()


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        (["inspect", "config.json", "--html", "new.html"], 0),
        (["inspect", "config.json", "config.json"], 0),
        (["inspect", "rope.npz", "--plot", "new.txt"], 2),
        (["compare", "config.json", "--html", "new.html"], 0),
        (["plan", "config.json", "--context", "256", "--html", "new.html"], 0),
        (["export", "config.json", "--to", "vllm", "-o", "new.json"], 0),
        (["export", "--conformance", "new"], 0),
        (["validate", "gaussian(scale=8)", "--qk", "rope.npz"], 2),
        (["design", "gaussian(scale=8)", "--head-dim", "16", "--context", "64", "-o", "new.npz"], 0),
        (["design", "gaussian(scale=8)", "--head-dim", "16", "--context", "64", "-o", "rope.npz"], 2),
        (["doctor", "config.json"], 2),
    ],
    ids=str,
)
def test_no_line_is_made_by_the_name_of_a_file(words, ends, tmp_path, capsys, quick_fits):
    """A folder that a pattern of the shell found may have any name; so may what an archive holds."""
    folder = tmp_path / EVIL
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    np.savez(folder / "rope.npz", **{EVIL: np.ones(3)})
    files = ("config.json", "rope.npz", "new")
    words = [str(folder / word) if word.startswith(files) else word for word in words]
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    assert code == ends
    assert_safe(out)
    assert_safe(err)


def test_the_doctor_prints_what_libraries_say_with_escapes(monkeypatch, capsys):
    finding = findings.Finding(EVIL, False, EVIL, EVIL, EVIL)
    monkeypatch.setattr(findings.Probe, "finding", lambda probe: finding)
    assert main(["doctor"]) == 0
    assert "".join(capsys.readouterr().out.split("\n")).isprintable()
