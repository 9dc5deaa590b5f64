"""The search of the built site knows the words of other systems."""

import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
WORDS: dict[str, list[str]] = yaml.safe_load((ROOT / "docs" / "_tools" / "search_words.yml").read_text())


@pytest.fixture(scope="session")
def tags(site: Path) -> dict[str, list[str]]:
    """The words of each page in the index of the search, by its source."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    return {
        entry["location"].replace(".html", ".md"): entry.get("tags", [])
        for entry in index["docs"]
        if "#" not in entry["location"]
    }


def test_each_page_is_found_by_its_words(tags: dict[str, list[str]]) -> None:
    assert {page: words for page, words in WORDS.items() if tags[page] != words} == {}


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("requeue", "dead-letters.md"),
        ("visibility timeout", "subscribing.md"),
        ("fifo", "ordering.md"),
        ("idempotency", "exactly-once.md"),
        ("cron", "timers.md"),
        ("backoff", "retries.md"),
        ("kubernetes", "production.md"),
        ("enqueue", "publishing.md"),
        ("stuck", "on-call.md"),
        ("unblock", "on-call.md"),
    ],
)
def test_a_word_of_another_system_leads_to_our_page(word: str, page: str, tags: dict[str, list[str]]) -> None:
    assert word in tags[page]


def test_it_can_be_searched_without_a_server(site: Path) -> None:
    assert (site / "search" / "search_index.js").is_file()
