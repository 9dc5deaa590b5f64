"""The pages on order name tests that are there, and have no figures beside those of the benchmarks."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLES = (ROOT / "benchmarks" / "README.md").read_text()
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("ordering.md", "ordering-approaches.md")}
# The names by which the page calls files of tests.
FILES = dict(re.findall(r"\*(\w+)\*\s+is\s+`(tests/[\w/]+\.py)`", PAGES["ordering-approaches.md"]))
# "*runs* `test_a`, `test_b`" and "`tests/x.py::test_a`".
SHORT = re.findall(r"\*(\w+)\*((?:,?\s+`test_\w+`)+)", PAGES["ordering-approaches.md"])
LONG = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", "".join(PAGES.values()))
NAMED = sorted({*LONG, *((FILES[file], test) for file, tests in SHORT for test in re.findall(r"test_\w+", tests))})
# Tables and columns of the benchmarks are in italics: "*claims a round*".
TITLES = re.findall(r"(?<!\*)\*([a-z][\w ]+)\*(?!\*)", " ".join(PAGES["ordering.md"].split()))
RATES = re.compile(r"\d(?:[.,]\d+)?\s?(?:K|µs|ms|msg/s|messages a second|times as (?:fast|long|slow))\b")


def test_there_is_something_to_check() -> None:
    assert len(NAMED) >= 25
    assert len(TITLES) >= 4
    assert len(re.findall(r"`(?:[\w/.]+::)?test_\w+`", PAGES["ordering-approaches.md"])) >= len(NAMED)


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_is_named_is_there(file: str, test: str) -> None:
    assert re.search(rf"def {test}\(", (ROOT / file).read_text())


@pytest.mark.parametrize("page", PAGES)
def test_a_page_on_order_has_no_figures_of_its_own(page: str) -> None:
    assert RATES.findall(PAGES[page]) == []


@pytest.mark.parametrize("title", TITLES)
def test_a_table_that_is_named_is_one_of_the_benchmarks(title: str) -> None:
    assert re.search(rf"^#### {title}\b|\| {title} \|", TABLES, re.MULTILINE)


def test_the_tables_of_the_page_on_scale_are_those_of_the_benchmarks() -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    tables = re.findall(r"<!-- table: .*? -->\n\n(.*?)\n\n<!-- end of table -->", page, re.DOTALL)
    assert len(tables) >= 4
    assert [table for table in tables if table not in TABLES] == []
