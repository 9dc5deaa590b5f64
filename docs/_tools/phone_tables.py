"""Marks tables for the style sheet: on a phone a table of sentences becomes a list, with the heading of each column.

A table of figures scrolls, because its columns are compared. Long code in a table is broken between the words of names.
"""

import re
from functools import partial
from html import escape, unescape

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td(?P<rest>[^>]*)>(?P<text>.*?)</td>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
# Where long code is broken: between the parts of a path, and, if it is longer still, between the words of a name.
_BREAKS = (
    (re.compile(r"<code>[^<]{25,}</code>"), re.compile(r"_")),
    (re.compile(r"<code>(?:[^<]|<wbr>){20,}</code>"), re.compile(r"/(?!code>)|::|[(=]|\.(?=\w)")),
)
# Two columns fit on a phone. More than five are figures, and more than eight need the whole width of a desktop.
_FEWEST, _MOST, _MANY = 3, 5, 9


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - the signature of a hook
    """Mark the tables of a page."""
    return _TABLE.sub(lambda found: marked(found[0]), html)


def marked(table: str) -> str:
    """Return a table with the mark that it needs, if any."""
    for code, ends in _BREAKS:
        table = code.sub(partial(_breakable, ends), table)
    headings = [unescape(_TAG.sub("", text)).strip() for text in _HEADING.findall(table)]
    if len(headings) >= _MANY:
        return table.replace("<table>", "<table data-figures>", 1)
    if not _FEWEST <= len(headings) <= _MOST or "text-align: right" in table:
        return table
    return _ROW.sub(lambda row: _labelled(row[0], headings), table.replace("<table>", "<table data-sentences>", 1))


def _breakable(ends: re.Pattern[str], code: re.Match[str]) -> str:
    return ends.sub(r"\g<0><wbr>", code[0])


def _labelled(row: str, headings: list[str]) -> str:
    left = iter(headings)

    def label(cell: re.Match[str]) -> str:
        # An empty cell says nothing where its column is not seen.
        empty = "" if _TAG.sub("", cell["text"]).strip() else " data-empty"
        return f'<td data-label="{escape(next(left))}"{empty}{cell["rest"]}>{cell["text"]}</td>'

    return _CELL.sub(label, row)
