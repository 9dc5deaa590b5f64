"""The pages of the built site: links lead somewhere, and nothing is loaded from elsewhere."""

import posixpath
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.site.pages import Page

# What a reader sees when a page is missing; its links start at the root of a host.
NOT_FOUND = "404.html"


def target(page: str, address: str) -> tuple[str, str]:
    """Return the file in the site that an address on a page means, and the anchor in it."""
    parts = urlsplit(address)
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path))) if parts.path else page
    return path, unquote(parts.fragment)


def is_of_the_site(address: str) -> bool:
    return not urlsplit(address).scheme and not address.startswith("//")


def test_links_and_their_anchors_lead_somewhere(pages: dict[str, Page], site: Path) -> None:
    broken = []
    for name, page in pages.items():
        for address in filter(is_of_the_site, page.links if name != NOT_FOUND else ()):
            file, anchor = target(name, address)
            known = pages[file].anchors if file in pages else set()
            if not (site / file).is_file() or (anchor and anchor not in known | {"__comments"}):
                broken.append(f"{name}: {address}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(pages: dict[str, Page], site: Path) -> None:
    loaded = {(name, address) for name, page in pages.items() for address in page.loaded}
    assert {each for each in loaded if not is_of_the_site(each[1]) and not each[1].startswith("data:")} == set()
    assert {each for each in loaded if each[0] != NOT_FOUND and not (site / target(*each)[0]).is_file()} == set()
    styles = "".join(file.read_text() for file in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]*", styles) == []


def test_every_page_has_one_title(pages: dict[str, Page]) -> None:
    assert len(pages) > 60
    assert {name: page.headings.count("h1") for name, page in pages.items() if page.headings.count("h1") != 1} == {}


def test_the_changelog_is_a_page(pages: dict[str, Page]) -> None:
    assert any(anchor.startswith("100-") for anchor in pages["changelog.html"].anchors)


def test_the_first_use_of_a_term_leads_to_the_glossary(pages: dict[str, Page]) -> None:
    assert "glossary.html#lease" in pages["subscribing.html"].links
    assert "../glossary.html#dead-letter" in pages["tutorial/failures.html"].links
    terms = {link.partition("#")[2] for page in pages.values() for link in page.links if "glossary.html#" in link}
    assert len(terms) >= 15
    assert terms <= pages["glossary.html"].anchors


@pytest.mark.parametrize(
    ("page", "mark"),
    [
        ("production", '<td data-label="why">a message may be delivered twice</td>'),
        ("from-the-original", "<table data-sentences>"),
        ("soak", "<table data-figures>"),
    ],
)
def test_a_phone_shows_a_table_of_sentences_as_a_list(page: str, mark: str, site: Path) -> None:
    assert mark in (site / f"{page}.html").read_text()


def test_a_long_name_in_a_table_is_broken_between_its_words(site: Path) -> None:
    name = "test_transactions.py::test_nothing_is_left_after_a_rollback".replace("_", "_<wbr>")
    name = name.replace("::", "::<wbr>").replace(".py", ".<wbr>py")
    assert f"{name}</code>" in (site / "proof.html").read_text()
    assert "<code>faststream_outbox.<wbr>router</code>" in (site / "reference" / "index.html").read_text()


def test_texts_of_the_log_are_wrapped_and_tables_of_text_are_not(site: Path) -> None:
    def block(page: str, text: str) -> str:
        before = (site / page).read_text().partition(text)[0]
        return before[before.rindex('<div class="language-') :].partition(">")[0]

    assert "wrapped" in block("troubleshooting.html", "The time for draining is over: ")
    assert "wrapped" not in block("nodes.html", "ea5ea4c4-33cc  yes")
    assert "wrapped" not in block("observability.html", "your own span, where you publish")


def test_a_table_of_figures_stays_a_table(site: Path) -> None:
    assert "data-sentences" not in (site / "scale.html").read_text().partition('id="rows-a-second"')[2][:5000]
