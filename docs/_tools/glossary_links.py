"""Links the first use of a glossary's term on each page to the glossary, with the first sentence of its meaning."""

import html
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

_GLOSSARY = "glossary.md"
# Pages that use the words in passing, or have their own links.
_LEFT_OUT = ("changelog.md", _GLOSSARY, "index.md")

# The words that are linked, by the heading of their term. Terms that are common words too ("run", "head", "key") are
# linked only where they must mean the term.
_USES = {
    "claim": r"claim(?:s|ed|ing)?",
    "lease": r"leases?",
    "fencing": r"fenc(?:ed|ing)",
    "suspect": r"suspects?",
    "watermark": r"watermarks?",
    "wake-up": r"wake-ups?",
    "dispatch": r"dispatch(?:ed|es)?",
    "verdict": r"verdicts?",
    "outcome": r"outcomes?",
    "settle": r"settl(?:e|es|ed|ing)",
    "dead-letter": r"dead(?:-letter(?:ed|s)?| letters?)",
    "timer": r"timers?",
    "head": r"(?<=the )head(?= of)|(?<=its )head",
    "key": r"(?<=with a )key|(?<=with the same )key|(?<=of one )key|(?<=of a )key",
    "park": r"park(?:s|ed|ing)?",
    "shard": r"shards?",
    "node": r"nodes",
    "relay": r"relays?",
    "inbox": r"inbox(?:es)?",
}
_PATTERNS = {
    anchor: re.compile(rf"(?<![\w.-])(?:{uses})(?![\w-]|\.\w)", re.IGNORECASE) for anchor, uses in _USES.items()
}

# What is text to read stands outside tags, and outside these elements.
_TOKEN = re.compile(r"<[^>]+>|[^<]+")
_CLOSED = {"a", "abbr", "code", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "svg", "script", "style", "button"}


def meanings(config: MkDocsConfig) -> dict[str, str]:
    """Return the first sentence of each term, by the anchor of its heading."""
    text = (Path(config.docs_dir) / _GLOSSARY).read_text()
    found = re.findall(r"^### (.+)\n\n((?:.+\n)+)", text, re.MULTILINE)
    return {term.lower().replace(" ", "-"): _first_sentence(paragraph) for term, paragraph in found}


def _first_sentence(paragraph: str) -> str:
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", re.sub(r"[*`]", "", " ".join(paragraph.split())))
    return re.split(r"(?<=\.) ", plain, maxsplit=1)[0]


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the links to a page."""
    source = page.file.src_uri
    glossary = files.get_file_from_path(_GLOSSARY)
    if source in _LEFT_OUT or glossary is None:
        return html
    return linked(html, get_relative_url(glossary.url, page.url), meanings(config), own=_own(source))


def _own(source: str) -> set[str]:
    """Return the terms that a page is about: it needs no link for them."""
    stem = Path(source).stem
    return {anchor for anchor in _PATTERNS if stem.rstrip("s") in {anchor, f"{anchor}-program", f"{anchor}-in-app"}}


def linked(page: str, glossary: str, meaning: dict[str, str], *, own: set[str]) -> str:
    """Return the HTML with a link at the first use of each term."""
    left = {anchor: pattern for anchor, pattern in _PATTERNS.items() if anchor not in own}
    parts, closed = list[str](), 0
    for token in _TOKEN.findall(page):
        if token.startswith("<"):
            name = re.match(r"</?([a-z0-9]+)", token)
            if name and name[1] in _CLOSED and not token.endswith("/>"):
                closed += -1 if token.startswith("</") else 1
            parts.append(token)
        else:
            parts.append(token if closed else _link_in(token, glossary, meaning, left))
    return "".join(parts)


def _link_in(text: str, glossary: str, meaning: dict[str, str], left: dict[str, re.Pattern[str]]) -> str:
    found = [(match, anchor) for anchor, pattern in left.items() if (match := pattern.search(text))]
    parts, end = list[str](), 0
    for match, anchor in sorted(found, key=lambda each: each[0].start()):
        if match.start() < end:
            continue
        del left[anchor]
        title = html.escape(meaning[anchor], quote=True)
        link = f'<a class="term" href="{glossary}#{anchor}" title="{title}">{match[0]}</a>'
        parts += [text[end : match.start()], link]
        end = match.end()
    return "".join([*parts, text[end:]])
