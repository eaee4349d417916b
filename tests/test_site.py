"""The check of the built site: it finds what it is to find. The site itself is built and read by .ci/run."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import sys

import pytest
from campaign import campaign

PATH = pathlib.Path(__file__).parents[1] / "docs" / "check_site.py"
if not PATH.is_file():
    pytest.skip("docs/ is not here", allow_module_level=True)

GOOD = """<!doctype html><html><head><title>t</title></head><body><article class="bd-article"><h1 id="here">One</h1>
<a href="#here">up</a> <a href="other.html#there">other</a> <a href="https://example.org/x">away</a>
<pre>\\(not a formula\\)</pre></article></body></html>"""
OTHER = "<!doctype html><html><head><title>o</title></head><body><p id='there'>Two</p></body></html>"


@pytest.fixture(scope="module")
def check():
    """Return the module docs/check_site.py."""
    spec = importlib.util.spec_from_file_location("check_site", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def site(tmp_path):
    """``site(index=text, ...)`` writes pages and returns their folder."""

    def write(**pages):
        for name, text in ({"index": GOOD, "other": OTHER} | pages).items():
            (tmp_path / f"{name}.html").write_text(text, encoding="utf-8")
        (tmp_path / "_static").mkdir(exist_ok=True)
        (tmp_path / "_static" / "theme.html").write_text('<a href="{{ nowhere }}">', encoding="utf-8")
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("link", "error"),
    [
        ("gone.html", "index.html: gone.html leads nowhere"),
        ("other.html#gone", "index.html: other.html#gone names no place on that page"),
        ("#gone", "index.html: #gone names no place on that page"),
    ],
)
def test_links_that_lead_nowhere(check, site, link, error):
    assert check.broken_links(site()) == []
    assert check.broken_links(site(index=GOOD.replace("#here", link))) == [error]


def test_without_a_browser_it_says_what_was_left_out(check, site, monkeypatch, capsys):
    monkeypatch.setattr(check.shutil, "which", lambda name: None)
    assert check.main([str(site())]) == 0
    assert "SKIPPED: no browser" in capsys.readouterr().out
    assert check.main([str(site(index=GOOD.replace("#here", "gone.html")))]) == 1
    assert check.main([str(site() / "nothing")]) == 1


@campaign
def test_what_a_browser_finds(check, site):
    browser = next(filter(None, map(shutil.which, check.BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser is installed")
    assert check.read_in_a_browser(site(), browser) == []
    bad = """<img src="gone.png"> <p>\\(x\\)</p> <div style="width: 3000px">wide</div>"""
    bad += "<script>lost.name</script></article>"
    found = "\n".join(check.read_in_a_browser(site(index=GOOD.replace("</article>", bad)), browser))
    for error in (
        "no alternative text: gone.png",
        "not shown: gone.png",
        "left as text: \\(x",
        "wider than",
        "Uncaught",
    ):
        assert error in found
