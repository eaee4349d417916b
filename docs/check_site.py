"""Read the built site: links lead somewhere, pictures are drawn, and a browser shows its pages without a complaint.

    python docs/check_site.py docs/_build/html

Links and anchors between pages are checked by reading the files, and so is their text: it holds no object as Python
prints one that has no words of its own, and no signature that hides its arguments; and no script, style or picture,
MathJax above all, comes from another host. In a picture of the gallery no panel is empty. Then a headless Chromium, if
there is one, opens every page without a connection, at the width of a screen and of a telephone. Errors are: a formula
left as text or refused by MathJax, an image that is missing or has no alternative text, a page that is wider than the
window, code or a table that is cut off on a telephone, a word of a heading, a table or the sidebar that is broken in
its middle, and an error in the console. It then types a few words into the search: what they name comes first, and the
changelog last. Exit code: 0, or 1 with a line for each error. Without a browser the second part is skipped, in a line
that says so.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import numpy as np
from matplotlib.image import imread

NO_WORDS = re.compile(r"<[^<>]* at 0x[0-9a-f]+>|<(?:matplotlib|Figure|Axes)\b[^<>]*>|\(\*args, \*\*kwargs\)")
DARK = 0.35  # brightness of an axis line
SIDE, TICK, EDGE = 60, 12, 4  # pixels: the least length of such a line, the most of a tick, what is left out beside it
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (1280, 390)
SEARCHES = {  # what is typed, and the page that comes first
    "install": "learn/quickstart",
    "cite": "reference/cite",
    "which kernel": "learn/choose",
    "use my YaRN config": "learn/read_your_model",
    "does vLLM do the same": "learn/check_your_engine",
    "rotate images": "howto/axes",
    "extend to 32k": "learn/extend",
}
PATIENCE = 420.0  # seconds for all pages, on a machine that does much else

READER = """<!doctype html><meta charset="utf-8"><title>reader</title><body><script>
const pages = PAGES, widths = WIDTHS, searches = SEARCHES, found = [];
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
async function opened(page, width) {
  const frame = document.createElement("iframe");
  frame.style.width = width + "px"; frame.style.height = "900px";
  const loaded = new Promise((done) => { frame.onload = done; });
  frame.src = "/" + page; document.body.append(frame);
  await loaded;
  return frame;
}
function broken(root) {  // words of letters alone that go on in the next line
  const range = root.createRange(), words = [];
  for (const one of root.querySelectorAll("h1, h2, h3, th, .bd-sidebar-primary a, .bd-toc-nav a, td code")) {
    const walker = root.createTreeWalker(one, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      for (const word of text.data.matchAll(/\\p{L}{2,}/gu)) {
        range.setStart(text, word.index); range.setEnd(text, word.index + word[0].length);
        const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
        if (tops.size > 1 && !text.data.includes("\\u00ad")) words.push(word[0]);
      }
    }
  }
  return [...new Set(words)];
}
async function search(typed, wanted) {
  const frame = await opened("search.html?q=" + encodeURIComponent(typed), widths[0]);
  const links = () => [...frame.contentDocument.querySelectorAll("#search-results ul.search > li > a")];
  let before = -1;
  for (let i = 0; i < 40 && (links().length !== before || !before); i++) { before = links().length; await wait(150); }
  const say = (what) => found.push("search for " + typed + ": " + what);
  if (!links().length) say("nothing is found");
  else if (!links()[0].pathname.endsWith("/" + wanted + ".html")) say("comes to " + links()[0].textContent + " first");
  const first = links().findIndex((one) => one.pathname.endsWith("changelog.html"));
  if (first >= 0 && links().slice(first).some((one) => !one.pathname.endsWith("changelog.html")))
    say("the changelog is not last");
  frame.remove();
}
async function read(page, width) {
  const frame = await opened(page, width);
  const view = frame.contentWindow, root = view.document;
  const say = (what) => found.push(page + " (" + width + " px): " + what);
  if (view.MathJax && view.MathJax.startup && view.MathJax.startup.promise) await view.MathJax.startup.promise;
  const body = root.querySelector(".bd-article") || root.body;
  for (const one of body.querySelectorAll("[data-mjx-error], [data-mml-node=merror]"))
    say("MathJax: " + (one.getAttribute("data-mjx-error") || one.textContent));
  if (width === widths[0]) {
    const copy = body.cloneNode(true);
    for (const code of copy.querySelectorAll("pre, code, script, mjx-container, .highlight")) code.remove();
    const raw = copy.textContent.match(/\\\\[([][^\\n]{0,40}/);
    if (raw) say("a formula left as text: " + raw[0]);
    for (const image of root.images) {
      const beside = image.closest(".sphx-glr-thumbcontainer");  // the name of a thumbnail stands below it
      if (!image.alt && !beside) say("no alternative text: " + image.getAttribute("src"));
      image.loading = "eager"; await image.decode().catch(() => say("not shown: " + image.getAttribute("src")));
    }
  }
  if (width < 600) for (const one of root.querySelectorAll(".bd-article pre, .bd-article table")) {
    const edge = one.closest(".pst-scrollable-table-container") || one, over = edge.scrollWidth - edge.clientWidth;
    if (edge.clientWidth && over > 1) say(`cut off by ${over} pixels: ${one.textContent.trim().slice(0, 40)}`);
  }
  const wide = root.documentElement.scrollWidth - root.documentElement.clientWidth;
  if (wide > 1) say("wider than the window by " + wide + " pixels");
  for (const word of broken(root)) say("broken in its middle: " + word);
  frame.remove();
}
(async () => {
  for (const page of pages) for (const width of widths)
    await read(page, width).catch((error) => found.push(page + ": " + error));
  if (pages.includes("search.html"))
    for (const [typed, wanted] of Object.entries(searches)) await search(typed, wanted);
  await fetch("/report", {method: "POST", body: JSON.stringify(found)});
})();
</script></body>"""


class Page(HTMLParser):
    """The links of a page, the places in it that links may name, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.taken: list[str] = []  # what the page itself is made of
        self.places = {"", "top"}
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag links to and is called."""
        held = dict(attrs)
        self.places |= {held[name] or "" for name in ("id", "name") if name in held}
        name = {"a": "href", "link": "href", "img": "src", "script": "src"}.get(tag)
        link = held.get(name or "")
        if link:
            self.links.append(link)
            if tag in ("img", "script") or held.get("rel") in ("stylesheet", "preload", "icon"):
                self.taken.append(link)

    def handle_data(self, data: str) -> None:
        """Collect the text."""
        self.text += data


def written(site: pathlib.Path) -> list[pathlib.Path]:
    """Every page, without what the theme keeps among its own files."""
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.relative_to(site).parts]


def broken_links(site: pathlib.Path) -> list[str]:
    """Links between the pages of the site that lead nowhere."""
    pages = {path: Page(path.read_text("utf-8")) for path in written(site)}
    by_place, found = {path.resolve(): path for path in pages}, []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            at = by_place.get(target) if parts.fragment else None
            if not target.exists():
                found.append(f"{path.relative_to(site)}: {link} leads nowhere")
            elif at is not None and unquote(parts.fragment) not in pages[at].places:
                found.append(f"{path.relative_to(site)}: {link} names no place on that page")
    return found


def from_elsewhere(site: pathlib.Path) -> list[str]:
    """What pages are made of that another host has to give, such as MathJax."""
    taken = {path: Page(path.read_text("utf-8")).taken for path in written(site)}
    found = [(path, link) for path, links in taken.items() for link in links if urlsplit(link).netloc]
    return [f"{path.relative_to(site)}: {link} is fetched from another host" for path, link in found]


def printed_objects(site: pathlib.Path) -> list[str]:
    """What the pages show of objects and signatures that says nothing to a reader."""
    pages = {path: Page(path.read_text("utf-8")).text for path in written(site)}
    return [f"{path.relative_to(site)}: {one}" for path, text in pages.items() for one in NO_WORDS.findall(text)]


def empty_panels(site: pathlib.Path) -> list[str]:
    """Pictures that have axes with nothing in them: one colour between the line on the left and the one below."""
    found = []
    for path in sorted(one for one in (site / "_images").glob("*.png") if not one.stem.endswith("-dark")):
        picture = imread(path)[..., :3]
        dark = picture.max(axis=-1) < DARK
        thin = dark & ~np.roll(dark, 1, axis=1) & ~np.roll(dark, -EDGE, axis=1)  # the left of a line, not of an area
        for column in np.flatnonzero(thin.sum(axis=0) >= SIDE):
            for top, end in runs(dark[:, column]):
                below = range(max(top, end - TICK), end)  # a tick may go on from the corner
                width, bottom = max((runs(dark[row, column:])[0, 1], row) for row in below)
                inside = picture[top + EDGE : bottom - EDGE, column + EDGE : column + width - EDGE]
                if min(width, bottom - top) >= SIDE and np.all(inside == picture[0, 0]):
                    found.append(f"{path.relative_to(site)}: an empty panel, {width} by {bottom - top} pixels")
    return found


def runs(line: np.ndarray) -> np.ndarray:
    """First index and end of each run of True."""
    return np.flatnonzero(np.diff(line.astype(int), prepend=0, append=0)).reshape(-1, 2)


def read_in_a_browser(site: pathlib.Path, browser: str) -> list[str]:
    """What a headless browser finds on the pages."""
    pages = [str(path.relative_to(site)) for path in written(site)]
    answers: queue.Queue[list[str]] = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/reader":
                super().do_GET()
                return
            text = READER
            for name, value in {"PAGES": pages, "WIDTHS": WIDTHS, "SEARCHES": SEARCHES}.items():
                text = text.replace(name, json.dumps(value), 1)
            text = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self) -> None:
            answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = ["--headless=new", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"]
    options += ["--window-size=1400,1000", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    options += ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, tempfile.TemporaryFile() as log:
        address = f"http://127.0.0.1:{server.server_address[1]}/reader"
        process = subprocess.Popen(
            [browser, *options, f"--user-data-dir={folder}", address], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            found = answers.get(timeout=PATIENCE)
        except queue.Empty:
            found = [f"{browser} did not read {len(pages)} pages within {PATIENCE:.0f} seconds"]
        finally:
            process.terminate()
            process.wait()
            server.shutdown()
            server.server_close()
        log.seek(0)
        said = log.read().decode("utf-8", "replace")
    console = re.findall(r"CONSOLE[^\]]*\] (.*(?:Uncaught|Failed to load|Refused|ERR_).*)", said)
    return found + [f"console: {line:.300}" for line in dict.fromkeys(console)]


def main(arguments: list[str]) -> int:
    """Check the site in the folder that is named; return the exit code."""
    site = pathlib.Path(arguments[0])
    if not (site / "index.html").is_file():
        print(f"{site} holds no index.html; expected the folder of a built site", file=sys.stderr)
        return 1
    found = broken_links(site) + from_elsewhere(site) + printed_objects(site) + empty_panels(site)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("SKIPPED: no browser to read the pages with (apt-get install chromium); the files were checked")
    else:
        found += read_in_a_browser(site, browser)
    good = "every link leads somewhere, every picture is drawn"
    print("\n".join(found) or good + (", every page reads well" if browser else ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
