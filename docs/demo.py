"""The page of `demo.rst`: what ``rfrope inspect`` and ``rfrope design`` say of a few models, in one page with a choice.

python docs/demo.py demo_page.html
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import pathlib
import re
import sys
import tempfile
from typing import Any

from rfrope import cli
from rfrope._core.results import Copyable
from rfrope.cli import page

QWEN = {"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "rope_theta": 1e6}
QWEN |= {"max_position_embeddings": 32768}
PRESETS: dict[str, dict[str, Any] | list[str]] = {  # the keys of published configs that say what RoPE is
    "Llama 3.1 8B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "rope_theta": 5e5,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "Qwen2.5 7B": QWEN,
    "Qwen2.5 7B with YaRN": QWEN
    | {
        "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
    "Gemma 3 4B": {
        "model_type": "gemma3_text",
        "head_dim": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "Matérn design": ["design", "matern(nu=1.5, scale=64)", "--head-dim", "64", "--context", "4096", "--seed", "0"],
}


def made(name: str, preset: dict[str, Any] | list[str], folder: pathlib.Path) -> tuple[list[page.Panel], str]:
    """Return the parts of one command's page, and its text."""
    config, target = folder / f"{name.replace(' ', '-')}.json", folder / "page.html"
    arguments = preset
    if isinstance(preset, dict):
        config.write_text(json.dumps(preset, indent=1), "utf-8")
        arguments = ["inspect", config.name]
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        code = cli.main([*arguments, "--html", target.name, "--force"])
    if code:
        raise SystemExit(f"{' '.join(arguments)} came to exit code {code}")
    content = target.read_text("utf-8")
    held = json.loads(re.search(r'id="report">(.*?)</script>', content, re.DOTALL)[1])
    parts = [one for one in held["parts"] if one.get("title") != "The command"]
    if isinstance(preset, dict):
        config_part = Copyable("The config", preset, f"What {config.name} has; then rfrope inspect reads it.")
        parts.append(page.list_part(config_part))
    words = " ".join(["rfrope", *(json.dumps(one) if " " in one else one for one in arguments)])
    parts.append(page.list_part(Copyable("The command", words)))
    text = re.search(r"<summary>The same as text</summary><pre>(.*?)</pre>", content, re.DOTALL)[1]
    return parts, f"{name}\n{'=' * len(name)}\n{html.unescape(text)}"


def write(path: pathlib.Path) -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as folder:
        found = {name: made(name, preset, pathlib.Path(folder)) for name, preset in PRESETS.items()}
    parts = [{"kind": "panel", "parts": one, "when": {"look at": i}} for i, (one, _) in enumerate(found.values())]
    choice = {"name": "look at", "values": [*found], "start": 0, "slider": False}
    text = "\n\n".join(text for _, text in found.values())
    path.write_text(page.render("What a RoPE does", parts, text, [choice]), "utf-8")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
