"""Pictures for a dark page: each is drawn a second time in colours for one, and the page shows the one that fits it.

`scrape` saves the figures of the gallery, `recolour` changes the colours of a figure, and `recolour_svg` those of a
file that matplotlib wrote. Lightness is turned over where a colour has no hue; what has one becomes lighter.
"""

from __future__ import annotations

import ast
import colorsys
import pathlib
import re
from typing import Any

GROUND = "#14181e"  # of a dark page
LIGHT = {  # the colours of Okabe and Ito, on a dark ground
    "#0072b2": "#4da8e8",
    "#e69f00": "#f5b83d",
    "#009e73": "#2fcb9c",
    "#d55e00": "#ff8b4d",
    "#cc79a7": "#e8a5cb",
    "#56b4e9": "#a9dcff",
}
MAPS = {"RdBu": "berlin_r", "RdBu_r": "berlin", "PuOr": "managua"}  # whose middle is that of the ground
BESIDE = "-dark"  # what the name of a picture for a dark page has more


def _get_sg_image_scraper() -> Any:
    """Return what sphinx-gallery takes from a module that it is given by name."""
    return scrape


def dark(colour: str) -> str:
    """Return the colour ``#rrggbb`` that stands for another one on a dark page."""
    colour = colour.lower()
    if colour in LIGHT or colour == "#ffffff":
        return LIGHT.get(colour, GROUND)
    red, green, blue = (int(colour[i : i + 2], 16) / 255.0 for i in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    lightness = 0.93 - 0.83 * lightness if saturation < 0.1 else max(lightness, 0.6)
    return "#" + "".join(f"{round(255.0 * one):02x}" for one in colorsys.hls_to_rgb(hue, lightness, saturation))


def recolour(figure: Any) -> None:
    """Give a figure of matplotlib colours for a dark page."""
    from matplotlib import colormaps, colors
    from matplotlib.cm import ScalarMappable

    def changed(value: Any) -> list[tuple[float, ...]]:
        rgba = colors.to_rgba_array(value)
        return [(*colors.to_rgb(dark(colors.to_hex(one[:3]))), one[3]) for one in rgba]

    figure.canvas.draw()  # places of ticks and labels, and colours of what has a scale of them
    for artist in figure.findobj(lambda one: not hasattr(one, "patch")):  # a figure, axes and legends have theirs
        if isinstance(artist, ScalarMappable) and artist.get_array() is not None:
            name = MAPS.get(artist.get_cmap().name)
            if name in colormaps:
                artist.set_cmap(name)
            continue
        whole = hasattr(artist, "get_facecolor")  # a patch, or a collection, where "color" sets both
        for part in ("facecolor", "edgecolor") if whole else ("color", "markerfacecolor", "markeredgecolor"):
            held = getattr(artist, f"get_{part}", lambda: ())()
            if len(held) and not isinstance(held, str | tuple):
                getattr(artist, f"set_{part}")(changed(held))
            elif len(held) and held not in ("none", "auto"):
                getattr(artist, f"set_{part}")(changed(held)[0])
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_tick_params(which="both", color=dark("#000000"), labelcolor=dark("#000000"))


def recolour_svg(text: str) -> str:
    """Return a file of matplotlib in colours for a dark page."""
    text = re.sub(r"#[0-9a-fA-F]{6}\b", lambda held: dark(held[0]), text)
    ink = f"<style>svg {{ fill: {dark('#000000')} }}</style>"  # where black goes without saying
    return re.sub(r"(<svg\b[^>]*>)", rf"\1{ink}", text, count=1)


def reset(configuration: Any, name: str) -> None:
    """Let a script of the gallery draw with text that is read on a telephone, too."""
    from matplotlib import rcParams

    rcParams.update({"font.size": 12, "axes.titlesize": 12, "legend.fontsize": 11})


def scrape(block: Any, variables: dict[str, Any], configuration: Any) -> str:
    """Save the figures of a block of the gallery, each for a light and a dark page, and return how they are shown."""
    from matplotlib import pyplot

    script = pathlib.Path(variables["src_file"]).read_text("utf-8")
    title, _, rest = (ast.get_docstring(ast.parse(script)) or "").partition("\n")
    alt = " ".join(rest.lstrip("=\n").split()) or title
    shown, paths = [], variables["image_path_iterator"]
    for number in pyplot.get_fignums():
        figure, path = pyplot.figure(number), pathlib.Path(next(paths))
        figure.savefig(path, dpi=160)
        where = path.relative_to(configuration["src_dir"]).as_posix()
        width = round(100 * figure.get_size_inches()[0])
        recolour(figure)
        figure.savefig(path.with_stem(path.stem + BESIDE), dpi=160, facecolor=GROUND)
        shown.append(f".. image:: /{where}\n   :alt: {alt}\n   :width: {width}px\n   :class: sphx-glr-single-img\n")
    pyplot.close("all")
    return "\n".join(shown)
