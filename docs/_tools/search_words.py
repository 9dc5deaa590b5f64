"""Gives each page the words by which readers search for it and that it does not use; the search index has them as tags.

The words are in search_words.yml. Tags weigh more than titles in the search, and are not shown on the page.
"""

import re
from pathlib import Path

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_SOURCE = Path(__file__).with_suffix(".yml").read_text()
_WORDS: dict[str, list[str]] = yaml.safe_load(_SOURCE)


def on_files(files: Files, config: MkDocsConfig) -> Files:  # noqa: ARG001 - the signature of a hook
    """Refuse words for a page that is not there, or that is there twice: YAML would keep its last line only."""
    if unknown := sorted(page for page in _WORDS if files.get_file_from_path(page) is None):
        raise PluginError(f"search_words.yml names pages that do not exist: {', '.join(unknown)}.")
    if len(_WORDS) < len(re.findall(r"^[^#\s].*:", _SOURCE, re.MULTILINE)):
        raise PluginError("search_words.yml names a page twice.")
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - the same
    """Set the tags of a page."""
    if words := _WORDS.get(page.file.src_uri):
        page.meta["tags"] = [*page.meta.get("tags", []), *words]
    return markdown
