"""What the tests ask of a page in HTML: its anchors, its links, what it loads, and its headings."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

# What a browser loads when it opens the page, by the attribute that has its address.
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
# A link to the same page on another host, or to the page before; nothing is loaded for them.
_NOT_LOADED = {"canonical", "prev", "next"}


@dataclass
class Page:
    """A page of the site."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.page.anchors.add(found["id"])
        if tag == "a" and "href" in found:
            self.page.links.append(found["href"])
        if tag in _LOADED and (address := found.get(_LOADED[tag])) and found.get("rel") not in _NOT_LOADED:
            self.page.loaded.append(address)
        if tag in {"h1", "h2"}:
            self.page.headings.append(tag)


def read(file: Path) -> Page:
    """Read a page."""
    reader = _Reader()
    reader.feed(file.read_text())
    return reader.page
