"""Sphinx configuration. Build with ``sphinx-build -W -b html docs docs/_build/html``; nothing is fetched."""

import csv
import doctest
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import sphinx.util.inspect
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ConfigError
from sphinx.ext.autosummary import AutoLink
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx_gallery.utils import scale_image

import rfrope

HERE = pathlib.Path(__file__).parent
SCORER = HERE / "_static" / "scorer.js"
sys.path.insert(0, str(HERE))
dark, demo, notebook = map(importlib.import_module, ("dark", "demo", "notebook"))

project = "rfrope"
author = "The rfrope developers"
copyright = "The rfrope developers"
version = release = rfrope.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.doctest", "sphinx.ext.mathjax", "numpydoc"]
extensions += ["myst_parser"]  # the performance page includes tables that a benchmark writes
extensions += ["sphinx_copybutton", "sphinx_design", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build", "_data"]
templates_path = ["_templates"]
rst_prolog = ".. currentmodule:: rfrope\n\n"  # so that `rotate` and `models.compare` are links on every page
html_theme = "pydata_sphinx_theme"
html_title = f"rfrope {version}"
html_copy_source = html_show_sourcelink = False
html_static_path, html_css_files, html_js_files = ["_static"], ["site.css"], ["site.js"]
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
REPOSITORY = ""
if shutil.which("git"):
    asked = subprocess.run(["git", "remote", "get-url", "origin"], cwd=HERE, capture_output=True, text=True)
    REPOSITORY = asked.stdout.strip()
if re.match("https?://", REPOSITORY):  # a copy of the repository that has an address
    link = {"name": "Repository", "url": REPOSITORY.removesuffix(".git"), "icon": "fa-brands fa-git-alt"}
    html_theme_options["icon_links"] = [link]
html_sidebars = {"index": [], "project/changelog": [], "learn/demo": []}
REFERENCE = ("reference/**",)  # pages whose sidebar goes by topic
html_sidebars |= {name: ["topics.html"] for name in REFERENCE}
html_search_scorer = str(SCORER)
mathjax_path = "tex-svg.js"  # part of MathJax 3.2.2, which ship_mathjax copies: formulas need no connection
copybutton_prompt_text, copybutton_prompt_is_regexp = r">>> |\.\.\. |\$ ", True
sphinx_gallery_conf = {
    "examples_dirs": ["../examples/gallery"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": "/plot_",
    "doc_module": ("rfrope",),
    "backreferences_dir": "gallery/uses",
    "prefer_full_module": {r"rfrope\.[a-z_.]+"},
    "download_all_examples": False,
    "show_memory": False,
    "capture_repr": (),  # a page shows what its script prints
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "remove_config_comments": True,
    "image_scrapers": ("dark",),
    "within_subsection_order": "FileNameSortKey",
    "matplotlib_animations": False,
    "reset_modules": ("matplotlib", "dark.reset"),
}

THUMBNAIL = (400, 280)  # pixels, as sphinx-gallery has them
WIDE = 640  # pixels, beyond which text of a picture is too small on a phone

default_role = "linked"
nitpicky = True
nitpick_ignore = [("py:obj", "QUANTITIES")]  # a constant that its page spells out
add_module_names = False
autosummary_generate = True
autosummary_filename_map = {"rfrope.kernel": "rfrope.kernel-function"}  # some file systems cannot tell it from Kernel
# stand-ins, so that the reference needs neither of two large packages; `sign_by_itself` keeps signatures
autodoc_mock_imports = [
    name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None
]
autodoc_typehints = "none"  # the docstrings name types with shapes and units
numpydoc_show_class_members = False
doctest_default_flags = doctest.NORMALIZE_WHITESPACE


class Linked(AutoLink):
    """A name in backquotes links to what it names; on a narrative page one that names nothing stops the build."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the link, or in a docstring the name of an argument in italics."""
        made, messages = super().run()
        narrates = not self.env.docname.startswith(("reference/api", "reference/generated", "gallery/"))
        if isinstance(made[0], nodes.emphasis) and narrates:
            logging.getLogger(__name__).warning("`%s` names nothing public", self.text, location=self.get_location())
        return made, messages


class KernelTable(SphinxDirective):
    """``.. kernel-table::`` lists the registered kernel families; all of it comes from the registry."""

    def run(self) -> list[nodes.Node]:
        """Return one definition for each record."""
        lines: list[str] = []
        for record in rfrope.kernels.records():
            parameters = ", ".join(f"{name}={default}" for name, default in record.parameters.items())
            lines += [f"``{record.name}({parameters})``", ""]
            fields = {
                "Φ": f"``{record.formula}``",
                "Law of ω": f"``{record.law}``",
                "Dimensions": record.dimensions,
                "Example": f"``{record.example}``",
                "Other names": ", ".join(f"``{alias}``" for alias in record.aliases),
            }
            lines += [f"    :{name}: {text}" for name, text in fields.items() if text] + [""]
        return self.parse_text_to_nodes("\n".join(lines))


class SchemeTable(SphinxDirective):
    """``.. scheme-table::`` lists the schemes for longer contexts; all of it comes from their records."""

    def run(self) -> list[nodes.Node]:
        """Return one row for each record."""
        rows = [("Scheme", "What it does", "Needs", "May have", "By length")]
        for scheme in rfrope.scaling.records():
            names = ", ".join(f"``{name}``" for name in (scheme.name, *scheme.aliases))
            keys = (", ".join(f"``{key}``" for key in held) for held in (scheme.required, scheme.optional))
            rows.append((names, scheme.effect, *keys, "yes" if scheme.by_length else ""))
        lines = [".. list-table::", "   :header-rows: 1", ""]
        for row in rows:
            lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(row)]
        return self.parse_text_to_nodes("\n".join(lines))


def describe_limits(form: rfrope.engines.Format) -> str:
    """Return all that a format cannot carry, in words."""
    lacks = [] if form.any_rope or form.heads else ["sets for each head"]
    lacks += [] if form.any_rope else ["several axes"]
    lacks += [] if len(form.pairings) == 2 else ["interleaved pairs"]
    lacks += [] if form.factor else ["an attention factor"]
    return ", ".join([*lacks, form.cannot] if form.cannot else lacks) or "nothing"


class EngineTable(SphinxDirective):
    """``.. engine-table::`` lists the engines that a Rope can be exported to; all of it comes from their records."""

    def run(self) -> list[nodes.Node]:
        """Return one definition for each record."""
        lines: list[str] = []
        for engine in (one for one in rfrope.engines.records() if one.format is not None):
            lines += [engine.name, ""]
            fields = {
                "Takes": engine.format.carries,
                "Cannot carry": describe_limits(engine.format),
                "A set for each head": engine.format.heads,
                "Rounds": engine.format.exact,
                "Files": ", ".join(f"``{suffix}``" for suffix in engine.format.suffixes),
                "Options": ", ".join(f"``{option}``" for option in engine.format.options),
                "Source": engine.format.source,
            }
            lines += [f"    :{name}: {text}" for name, text in fields.items() if text] + [""]
        return self.parse_text_to_nodes("\n".join(lines))


class RuleTable(SphinxDirective):
    """``.. rule-table::`` lists the engines whose rules for configs are known; all of it comes from their records."""

    def run(self) -> list[nodes.Node]:
        """Return one definition for each record."""
        lines: list[str] = []
        for engine in (one for one in rfrope.engines.records() if one.reading is not None):
            reading = engine.reading
            kinds = ", ".join(f"``{name}``" for name in reading.model_types) or "all that `from_config` knows"
            lines += [f"{engine.name} {reading.version}", "", f"    :Model types: {kinds}", "    :Sources:"]
            files = (re.sub(r"([^ ,]*/[^ ,]*)", r"``\1``", source) for source in reading.sources)
            lines += [*(f"        - {source}" for source in files), ""]
        return self.parse_text_to_nodes("\n".join(lines))


class BenchmarkTable(SphinxDirective):
    """``.. benchmark-table:: FILE.csv`` shows what `benchmarks.compare` measured, a row for each job."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return what it was measured on, and the ratios of each revision."""
        path = HERE / "_data" / self.arguments[0]
        self.env.note_dependency(str(path))
        lines = path.read_text("utf-8").splitlines()
        about = [line[2:] for line in lines if line.startswith("# ")]
        rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
        found = {(row["revision"], row["job"]): row for row in rows}
        revisions = dict.fromkeys(row["revision"] for row in rows)
        dates = {row["revision"]: row["date"] for row in rows}
        text = [
            f"``{about[0].removeprefix('Made by: ')}``",
            "",
            *(f"- {line}" for line in about[1:]),
            "",
            ".. list-table::",
            "   :header-rows: 1",
            "",
        ]
        text += ["   * - Job"] + [f"     - {name} {dates[name]}" for name in revisions]
        for job in dict.fromkeys(row["job"] for row in rows):
            text += [f"   * - {job}"] + [f"     - {self.cell(found[name, job])}" for name in revisions]
        return self.parse_text_to_nodes("\n".join(text))

    @staticmethod
    def cell(row: dict[str, str]) -> str:
        """Return a ratio with its interval, in bold where it is beyond noise."""
        if not row["ratio"]:
            return "not there"
        value, low, high = (f"{float(row[name]):.3g}" for name in ("ratio", "low", "high"))
        return f"{f'**{value}**, ' + row['verdict'] if row['verdict'] else value} ({low} to {high})"


class Notebook(SphinxDirective):
    """``.. notebook:: FILE.ipynb`` shows the cells of a notebook with the outputs that are kept in it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return its sections."""
        path = HERE / self.arguments[0]
        self.env.note_dependency(str(path.resolve()))
        text = notebook.shown(path, HERE / "gallery" / "images")
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class DarkPictures(SphinxTransform):
    """Beside each picture its form for a dark page, where there is one; site.css shows the one that fits."""

    default_priority = 100
    thumb = re.compile(r"/gallery/images/thumb/(sphx_glr_.*)_thumb\.png")

    def apply(self, **_: Any) -> None:
        """Add the pictures."""
        for light in [*self.document.findall(nodes.image)]:
            if self.width(light) > WIDE:  # on a phone it is scrolled
                light["classes"] = [*light["classes"], "wide-picture"]
            shown = {"only-light", "only-dark"} & {*light["classes"]}  # a page that has both names both
            found = None if shown else self.find(light["uri"])
            if found is not None:
                other = light.copy()
                other["uri"], other["ids"], other["names"] = found, [], []
                other["classes"] = [*other["classes"], "dark-light"]  # to which the theme does nothing
                if isinstance(light.parent, nodes.reference):  # each is a link of its own
                    wrapped = light.parent.copy()
                    wrapped += other
                    light, other = light.parent, wrapped
                for one, name in ((light, "light-picture"), (other, "dark-picture")):
                    one["classes"] = [*one["classes"], name]
                light.parent.insert(light.parent.index(light) + 1, other)

    def width(self, image: nodes.image) -> float:
        """Return the width of a picture in pixels; 0 if nothing says it."""
        path = HERE / image["uri"].lstrip("/")
        if path.suffix == ".svg" and path.is_file():
            return 4 / 3 * float(re.search(r'<svg[^>]*?\bwidth="([\d.]+)pt"', path.read_text("utf-8"))[1])
        return float(image.get("width", "0px").removesuffix("px"))

    def find(self, uri: str) -> str | None:
        """Return where the form for a dark page is; a thumbnail's, and that of a file of matplotlib, are made here."""
        folder = HERE if uri.startswith("/") else HERE.joinpath(self.env.docname).parent
        path = folder / uri.lstrip("/")
        beside, thumb = path.with_stem(path.stem + dark.BESIDE), self.thumb.fullmatch(uri)
        if beside.is_file() and thumb is None:
            pass  # drawn for a dark page where the other was
        elif path.suffix == ".svg" and path.is_file():
            beside = HERE / "gallery" / "images" / beside.name
            beside.write_text(dark.recolour_svg(path.read_text("utf-8")), "utf-8")
        elif thumb is not None:
            whole = HERE / "gallery" / "images" / f"{thumb[1]}_001{dark.BESIDE}.png"
            if whole.is_file():
                scale_image(whole, beside, *THUMBNAIL)
        return f"/{beside.relative_to(HERE).as_posix()}" if beside.is_file() else None


class PicturesFirst(SphinxTransform):
    """A picture of the gallery above the script that draws it; the first one above all of it."""

    default_priority = DarkPictures.default_priority + 1

    def apply(self, **_: Any) -> None:
        """Move the pictures."""
        if not self.env.docname.startswith("gallery/plot_"):
            return
        pictures = [
            *self.document.findall(lambda one: isinstance(one, nodes.image) and "light-picture" in one["classes"])
        ]
        for picture in pictures:
            home, at = picture.parent, picture.parent.index(picture)
            pair = home[at : at + 2]  # and its form for a dark page
            kind = nodes.paragraph if picture is pictures[0] else nodes.literal_block
            found = [i for i, one in enumerate(home[:at]) if isinstance(one, kind)]
            place = found[0] + 1 if picture is pictures[0] else found[-1]
            del home[at : at + 2]
            home.insert(place, pair)


class SearchWords(SphinxTransform):
    """Words that readers type for a page, from ``scorer.js``, in the index of the search."""

    default_priority = 100
    words = json.loads(re.search(r"^const WORDS = (\{.*?\});", SCORER.read_text("utf-8"), re.DOTALL | re.MULTILINE)[1])

    def apply(self, **_: Any) -> None:
        """Add the words as keywords of the page."""
        found = self.words.get(self.env.docname)
        if found is not None:
            self.document.insert(0, nodes.meta("", name="keywords", content=", ".join(found.split())))


def topics(pagename: str) -> list[dict[str, Any]]:
    """Return the topics of the API reference with their names, for the sidebar of one of its pages."""
    found: list[dict[str, Any]] = []
    lines = (HERE / "reference" / "api.rst").read_text("utf-8").splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line and below == "-" * len(line):
            found.append({"title": line, "open": False, "names": []})
        elif found and re.fullmatch(r"   (?:\w+\.)*\w+", line):
            name = line.strip()
            page = f"reference/generated/{autosummary_filename_map.get(f'rfrope.{name}', f'rfrope.{name}')}"
            short = name.rpartition(".")[2] if name.count(".") == 1 else name
            here = page == pagename
            found[-1]["names"].append((re.sub(r"(?<=[._])|(?<=[a-z])(?=[A-Z])", "<wbr>", short), page, here))
            found[-1]["open"] |= here
    return found


def give_topics(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Hand the topics to the template of the sidebar."""
    if pagename.startswith("reference/"):
        beside = [name for name in app.env.toctree_includes["reference/index"] if name != "reference/api"]
        context["topics"] = topics(pagename)
        context["beside"] = [(app.env.titles[name].astext(), name, name == pagename) for name in beside]


def public_names() -> dict[str, Any]:
    """Every name that a user may rely on, with what it stands for."""
    names = {f"rfrope.{name}": getattr(rfrope, name) for name in rfrope.__all__}
    modules = {name: value for name, value in names.items() if inspect.ismodule(value)}
    return names | {f"{home}.{name}": getattr(one, name) for home, one in modules.items() for name in one.__all__}


def check_reference(app: Sphinx, environment: BuildEnvironment) -> None:
    """Warn of public names that the API reference lacks, so that ``-W`` stops the build."""
    known = set(environment.domains["py"].data["objects"])
    by_object = {id(value): name for name, value in public_names().items() if name in known}
    for name, value in public_names().items():
        constant = name.rpartition(".")[2].isupper()  # its module's page spells it out
        if not (inspect.ismodule(value) or constant) and id(value) not in by_object:
            logging.getLogger(__name__).warning("public name %s is missing from docs/reference/api.rst", name)


def show_dot_products(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Show the dot product, ``q . k`` in docstrings, as a centred dot, which ends no sentence."""
    lines[:] = [re.sub(r"(?<=[\w)]) \. (?=[\w(])", " · ", line) for line in lines]


def sign_by_itself(app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returned: str) -> Any:
    """Return the signature of a class itself, where autodoc takes that of the stand-in for its base."""
    if what != "class" or not hasattr(value, "__sphinx_mock__"):
        return None
    own = sphinx.util.inspect.signature(value.__init__, bound_method=True)
    return sphinx.util.inspect.stringify_signature(own, show_annotation=False), None


def resolve_from_top(app: Sphinx, environment: BuildEnvironment, node: nodes.Element, content: nodes.Element) -> Any:
    """Resolve a name in a submodule's docstring by where users find it: under ``rfrope``."""
    if node.get("refdomain") != "py":
        return None
    python, target = environment.domains["py"], f"rfrope.{node['reftarget']}"
    return python.resolve_xref(environment, node["refdoc"], app.builder, "obj", target, node, content)


def ship_mathjax(app: Sphinx, error: Exception | None) -> None:
    """Copy the one file of MathJax that renders formulas as SVG, which needs no fonts, beside the pages."""
    if error is None and app.builder.format == "html":
        shutil.copyfile(mathjax_file(), os.path.join(app.outdir, "_static", mathjax_path))


def write_demo(app: Sphinx, error: Exception | None) -> None:
    """Write the page that `demo.rst` shows, beside it."""
    if error is None and app.builder.format == "html":
        demo.write(pathlib.Path(app.outdir, "learn", "demo_page.html"))


def mathjax_file() -> pathlib.Path:
    """Where the package sphinx-mathjax-offline has it: the bytes of mathjax@3.2.2 from npm, es5/tex-svg.js."""
    package = importlib.util.find_spec("sphinx-mathjax-offline")
    if package is None or package.origin is None:
        raise ConfigError("formulas need MathJax: pip install 'rfrope[docs]'")
    return pathlib.Path(package.origin).parent / "static" / "mathjax" / mathjax_path


def allow_missing_pictures(app: Sphinx, config: Any) -> None:
    """Without a drawn gallery, its pictures on the front page are missing, which is no fault."""
    if str(config.plot_gallery) in ("0", "False"):
        config.suppress_warnings = [*config.suppress_warnings, "image.not_readable"]


def setup(app: Sphinx) -> None:
    """Register what is above."""
    app.connect("config-inited", allow_missing_pictures)
    mathjax_file()
    notebook.make(HERE / "learn" / "paper.rst")  # for its link
    app.add_role("linked", Linked())
    app.add_transform(DarkPictures)
    app.add_transform(PicturesFirst)
    app.add_transform(SearchWords)
    app.connect("html-page-context", give_topics)
    app.connect("build-finished", ship_mathjax)
    app.connect("build-finished", write_demo)
    app.add_directive("kernel-table", KernelTable)
    app.add_directive("scheme-table", SchemeTable)
    app.add_directive("engine-table", EngineTable)
    app.add_directive("rule-table", RuleTable)
    app.add_directive("benchmark-table", BenchmarkTable)
    app.add_directive("notebook", Notebook)
    app.connect("autodoc-process-docstring", show_dot_products)
    app.connect("autodoc-process-signature", sign_by_itself)
    app.connect("missing-reference", resolve_from_top)
    app.connect("env-check-consistency", check_reference)
