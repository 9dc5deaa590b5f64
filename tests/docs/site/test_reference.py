"""The reference of the built site has every public name, and shows examples that are Python."""

import ast
import html
import importlib
import re
from pathlib import Path

import pytest

from tests.docs.site.pages import Page
from tests.test_stability import MODULES

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
OPERATIONS = "faststream_outbox.operations"
# A text, and what is FastStream's: named in the words of a page, without a docstring of ours.
ONLY_NAMED = {"__version__", "Context", "ContextRepo", "Logger", "NoCast"}
# The broker calls these; a person on call does not.
FOR_THE_BROKER = {"act_on_key_in", "examine_for_broker", "on_store"}
EXAMPLE = re.compile(r"<strong>Example:</strong></p>\s*<div class=\"[^\"]*highlight\"><pre>(.*?)</pre>", re.DOTALL)


def anchors(pages: dict[str, Page]) -> set[str]:
    return {anchor for name, page in pages.items() if name.startswith("reference/") for anchor in page.anchors}


@pytest.mark.parametrize("module", [*MODULES, OPERATIONS])
def test_every_public_name_is_there(module: str, pages: dict[str, Page]) -> None:
    exported = importlib.import_module(module).__all__
    there = {anchor.rpartition(".")[2] for anchor in anchors(pages) if anchor.startswith("faststream_outbox.")}
    words = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    named = {name for name in ONLY_NAMED if re.search(rf"[`.]{name}`", words)}
    assert sorted({*exported} - there - named) == []


def test_every_act_and_every_question_of_an_operator_is_there(pages: dict[str, Page]) -> None:
    operations = importlib.import_module(OPERATIONS).OutboxOperations
    methods = {name for name in dir(operations) if not name.startswith("_") and callable(getattr(operations, name))}
    listed = {anchor for anchor in anchors(pages) if ".OutboxOperations." in anchor}
    assert sorted(methods - FOR_THE_BROKER - {anchor.rpartition(".")[2] for anchor in listed}) == []


def test_the_first_page_leads_to_each_of_the_others() -> None:
    linked = re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", (REFERENCE / "index.md").read_text(), re.MULTILINE)
    assert sorted(linked) == sorted(page.name for page in REFERENCE.glob("*.md") if page.name != "index.md")


def test_examples_are_python(site: Path) -> None:
    examples = [
        (file.name, html.unescape(re.sub(r"<[^>]+>", "", shown)))
        for file in sorted((site / "reference").glob("*.html"))
        for shown in EXAMPLE.findall(file.read_text())
    ]
    assert len(examples) > 50
    for page, example in examples:
        compile(example, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_defaults_are_shown_as_values(site: Path) -> None:
    for page in ("subscriber.html", "relay.html"):
        text = re.sub(r"<[^>]+>", "", (site / "reference" / page).read_text())
        assert "DEFAULTS." not in text
