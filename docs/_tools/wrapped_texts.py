"""Marks texts of a program, such as lines of its log, for the style sheet, which wraps them.

A text with two spaces side by side, or with lines of a drawing, is a table or a tree: its columns stay, and it scrolls.
"""

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_BLOCK = re.compile(r'<div class="language-text highlight">(?P<text>.*?)</div>', re.DOTALL)
_ALIGNED = re.compile(r"\S {2,}\S|[\u2500-\u257f]")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - the signature of a hook
    """Mark the texts of a page that have no columns."""
    return _BLOCK.sub(lambda found: marked(found[0]), html)


def marked(block: str) -> str:
    """Return a block of text, with the mark if it has no columns."""
    text = re.sub(r"<[^>]+>", "", block)
    return block if _ALIGNED.search(text) else block.replace("language-text", "language-text wrapped", 1)
