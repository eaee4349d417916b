"""The README in the metadata of a wheel: links to files of the source tree lead nowhere there, and become paths."""

import pathlib
import re

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReadmeHook(MetadataHookInterface):
    """Gives the project its ``readme``."""

    def update(self, metadata: dict) -> None:
        """Set the text; called by hatchling."""
        text = pathlib.Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_relative_links(text)}


def without_relative_links(text: str) -> str:
    """Return a Markdown text whose links to paths are the paths, in brackets, and without pictures of the tree."""
    text = re.sub(r"<picture>.*?</picture>\n*", "", text, flags=re.DOTALL)
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", r"\1 (`\2`)", text)
