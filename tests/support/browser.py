"""A headless Chromium that opens a page from the disk, runs a script on it, and gives back what the script found."""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 180.0  # seconds, on a machine that does much else
RUN = """<script>
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const keep = (held) => Object.assign(top.document.body.appendChild(top.document.createElement("pre")),
  {id: "found", textContent: JSON.stringify(held)});
(async () => { SCRIPT })().then(keep, (error) => { console.error("Uncaught " + error); });
</script>"""


def find() -> str:
    """Return a browser's path; the test is skipped without one."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no browser is installed (apt-get install chromium)")
    return found


def parts_of(text: str) -> list[dict[str, Any]]:
    """Return the parts of a page, as its script finds them."""
    report = re.search(r'id="report">(.*?)</script>', text, re.DOTALL)
    return json.loads(report[1])["parts"]


def run(page: pathlib.Path, script: str, *, width: int = 1280) -> Any:
    """What a script returns on a copy of a page, opened as a file without a network; the console has no complaint.

    Parameters
    ----------
    page : path
    script : str
        Body of an asynchronous function; ``wait(ms)`` is there.
    width : int
        Of the page, in pixels: it lies in a frame, since a window of Chromium is never narrower than 500.
    """
    options = ["--headless=new", "--disable-gpu", "--no-first-run", "--enable-logging=stderr", "--dump-dom"]
    options += ["--window-size=1600,2000", "--virtual-time-budget=60000", "--host-resolver-rules=MAP * ~NOTFOUND"]
    options += ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        copy = pathlib.Path(folder, "page.html")
        content = page.read_text("utf-8").replace("</body>", RUN.replace("SCRIPT", script) + "</body>")
        frame = f'<iframe style="border: 0; width: {width}px; height: 1900px" srcdoc="{html.escape(content)}"></iframe>'
        copy.write_text(f'<!doctype html><meta charset="utf-8"><body>{frame}</body>', "utf-8")
        done = subprocess.run(
            [find(), *options, f"--user-data-dir={folder}/profile", copy.as_uri()],
            capture_output=True,
            timeout=PATIENCE,
        )
    assert re.findall(r"CONSOLE[^\]]*\] (.*)", done.stderr.decode("utf-8", "replace")) == []
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout.decode("utf-8", "replace"), re.DOTALL)
    return None if found is None else json.loads(html.unescape(found[1]))
