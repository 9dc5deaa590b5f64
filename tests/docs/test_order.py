"""Every page is in the navigation and in the list of pages, in one order."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The page of the changelog is made from CHANGELOG.md.
NAVIGATION = [
    page
    for page in re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    if page != "changelog.md"
]


def test_the_navigation_has_every_page() -> None:
    assert sorted(NAVIGATION) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_the_list_of_pages_has_them_in_the_order_of_the_navigation() -> None:
    listed = (ROOT / "docs" / "index.md").read_text().partition("| you want to")[2]
    pages = re.findall(r"\]\(([\w-]+\.md)\)", listed.partition("\n\n##")[0])
    assert [page for page in pages if page in NAVIGATION and page != "index.md"] == NAVIGATION[1:]


def test_every_example_is_listed() -> None:
    examples = {path.parent.name for path in (ROOT / "examples").glob("*/__init__.py")}
    listed = re.findall(r"^\| \[(\w+)\]\(\1\) \|", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(examples)
