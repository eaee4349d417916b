"""The check of the built site: it finds what it is to find. The site itself is built and read by .ci/run."""

import importlib
import pathlib
import shutil

import pytest
from campaign import campaign
from packages import script_at

DOCS = pathlib.Path(__file__).parents[2] / "docs"
if not DOCS.is_dir():
    pytest.skip("docs/ is not here", allow_module_level=True)

GOOD = """<!doctype html><html><head><title>t</title></head><body><article class="bd-article"><h1 id="here">One</h1>
<a href="#here">up</a> <a href="other.html#there">other</a> <a href="https://example.org/x">away</a>
<pre>\\(not a formula\\)</pre></article></body></html>"""
OTHER = "<!doctype html><html><head><title>o</title></head><body><p id='there'>Two</p></body></html>"


def module_of(name):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    with script_at(DOCS / f"{name}.py") as module:
        yield module


@pytest.fixture(scope="module")
def check():
    """Return the module docs/check_site.py."""
    yield from module_of("check_site")


@pytest.fixture
def browser(check):
    found = next(filter(None, map(shutil.which, check.BROWSERS)), None)
    if found is None:
        pytest.skip("no browser is installed")
    return found


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


BAD = {  # in the place of something of the good page: what the check named by the function says
    ("broken_links", "#here", "gone.html"): "index.html: gone.html leads nowhere",
    ("broken_links", "#here", "other.html#gone"): "index.html: other.html#gone names no place on that page",
    ("broken_links", "#here", "#gone"): "index.html: #gone names no place on that page",
    ("printed_objects", "One", "<pre>[&lt;matplotlib.lines.Line2D&gt;]</pre>"): "index.html: <matplotlib.lines.Line2D>",
    ("printed_objects", "One", "<p>&lt;b&gt;&lt;object object at 0x1a&gt;</p>"): "index.html: <object object at 0x1a>",
    ("printed_objects", "One", "a<b>B</b>(<em>*args</em>, <em>**kwargs</em>)"): "index.html: (*args, **kwargs)",
    ("from_elsewhere", "<h1", '<script src="https://cdn.example.org/t.js"></script><h1'): "index.html: ",
    ("from_elsewhere", "<h1", '<link rel="stylesheet" href="//example.org/a.css"><h1'): "index.html: ",
    ("from_elsewhere", "<h1", '<img alt="a" src="http://example.org/a.png"><h1'): "index.html: ",
}


@pytest.mark.parametrize(("function", "good", "bad"), BAD)
def test_what_is_wrong_with_a_page_is_found_and_nothing_else(check, site, monkeypatch, function, good, bad):
    monkeypatch.setattr(check, "BROWSERS", ())  # what a browser reads has its test
    look = getattr(check, function)
    assert look(site(other=OTHER.replace("Two", "a &lt; b at 0.3, &lt;b&gt; (rope, *args)"))) == []
    wrong = site(index=GOOD.replace(good, bad))
    (found,) = look(wrong)
    assert found.startswith(BAD[function, good, bad])
    assert check.main([str(wrong)]) == 1


@campaign
@pytest.mark.parametrize("spines", [("top", "right"), ()])
@pytest.mark.parametrize("dpi", [100, 173])
def test_panels_in_which_nothing_is_drawn(check, site, spines, dpi):
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(1, 3, figsize=(7, 3), layout="constrained")
    figure.colorbar(axes[0].imshow([[0.0, 1.0], [2.0, 0.5]], cmap="gray"), ax=axes[0])
    axes[1].plot([0.0, 1.0], [0.5, 0.5], lw=0.8)
    for name in spines:
        axes[2].spines[name].set_visible(False)
    folder = site() / "_images"
    folder.mkdir()
    figure.savefig(folder / "panels.png", dpi=dpi)
    (found,) = check.empty_panels(folder.parent)
    assert found.startswith("_images/panels.png: an empty panel, ")
    assert check.main([str(folder.parent)]) == 1
    axes[2].plot([0.2], [0.3], ".")
    figure.savefig(folder / "panels.png", dpi=dpi)
    assert check.empty_panels(folder.parent) == []
    pyplot.close(figure)


def test_without_a_browser_it_says_what_was_left_out(check, site, monkeypatch, capsys):
    monkeypatch.setattr(check.shutil, "which", lambda name: None)
    assert check.main([str(site())]) == 0
    assert "SKIPPED: no browser" in capsys.readouterr().out
    assert check.main([str(site(index=GOOD.replace("#here", "gone.html")))]) == 1
    assert check.main([str(site() / "nothing")]) == 1


@campaign
def test_what_a_browser_finds(check, site, browser):
    assert check.read_in_a_browser(site(), browser) == []
    bad = """<img src="gone.png"> <p>\\(x\\)</p> <div style="width: 3000px">wide</div>"""
    bad += "<table><tr><th><div style='width: 2em; overflow-wrap: anywhere'>characteristic</div></th></tr></table>"
    bad += "<script>lost.name</script></article>"
    found = "\n".join(check.read_in_a_browser(site(index=GOOD.replace("</article>", bad)), browser))
    for error in (
        "no alternative text: gone.png",
        "not shown: gone.png",
        "left as text: \\(x",
        "wider than",
        "broken in its middle: characteristic",
        "Uncaught",
    ):
        assert error in found


@pytest.fixture(scope="module")
def dark():
    """Return the module docs/dark.py."""
    yield from module_of("dark")


def test_a_figure_is_given_colours_of_a_dark_page(dark):
    figure = importlib.import_module("matplotlib.figure").Figure()
    colors = importlib.import_module("matplotlib.colors")
    axes, other = figure.subplots(1, 2)
    (line,) = axes.plot([0, 1], [0, 1], color="black", label="black")
    band = axes.fill_between([0, 1], [0, 1], [1, 2], color="#0072B2", alpha=0.25)
    image = other.imshow([[0.0, 1.0]], cmap="PuOr")
    legend, title = axes.legend(), axes.set_title("title")
    dark.recolour(figure)
    ink = dark.dark("#000000")
    for one in (
        line.get_color(),
        title.get_color(),
        legend.get_texts()[0].get_color(),
        axes.spines["left"].get_edgecolor(),
    ):
        assert colors.to_hex(one) == ink
    assert {colors.to_hex(label.get_color()) for label in axes.get_xticklabels()} == {ink}
    for patch in (figure.patch, axes.patch, legend.get_frame()):
        assert colors.to_hex(patch.get_facecolor()) == dark.GROUND
    assert colors.to_hex(band.get_facecolor()[0]) == dark.LIGHT["#0072b2"]
    assert band.get_facecolor()[0, 3] == 0.25
    assert image.get_cmap().name in ("managua", "PuOr")  # which older releases of matplotlib lack


def test_a_file_is_given_colours_of_a_dark_page(dark):
    text = '<svg width="1"><g><path style="fill: #ffffff"/><path style="stroke: #0072B2"/><text>t</text></g></svg>'
    found = dark.recolour_svg(text)
    assert found.count("<svg") == found.count("<style>") == 1
    assert f'style="fill: {dark.GROUND}"' in found
    assert f'style="stroke: {dark.LIGHT["#0072b2"]}"' in found
    assert f"svg {{ fill: {dark.dark('#000000')} }}" in found
