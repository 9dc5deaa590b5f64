"""Every page is linked wherever pages are listed, in one order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAVIGATION = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_the_navigation_has_every_page() -> None:
    assert sorted(NAVIGATION) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize(("file", "start"), [("README.md", "## Documentation"), ("docs/index.md", "| you want to")])
def test_a_list_of_pages_has_them_in_the_order_of_the_navigation(file: str, start: str) -> None:
    listed = (ROOT / file).read_text().partition(start)[2]
    pages = re.findall(r"\]\((?:docs/)?([\w-]+\.md)\)", listed.partition("\n\n##")[0])
    assert [page for page in pages if page in NAVIGATION and page != "index.md"] == NAVIGATION[1:]


def test_every_example_is_listed() -> None:
    examples = {path.parent.name for path in (ROOT / "examples").glob("*/__init__.py")}
    listed = re.findall(r"^\| \[(\w+)\]\(\1\) \|", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(examples)
