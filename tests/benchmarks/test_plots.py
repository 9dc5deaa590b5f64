import re

from benchmarks.measure import Spread
from benchmarks.peers.contestants import ROOT
from benchmarks.plots.__main__ import FIGURE, IMAGES, PAGE, PLOTS, README, with_words
from benchmarks.plots.bars import PANELS, bars, described
from benchmarks.plots.peers import style
from benchmarks.plots.recorded import RECORD, recorded_tables
from benchmarks.plots.style import lines_of
from benchmarks.plots.tables import renewed
from benchmarks.results import Result
from benchmarks.spreading import busiest


def test_a_line_is_a_name_over_what_is_counted() -> None:
    cases = ("original, best, 1 process", "original, best, 2 processes", "ours, 1,000,000 rows", "bare asyncpg")
    table = Result("drains", {case: {"msg/s": Spread.of([5.0])} for case in cases}, "").as_json()
    assert lines_of(table, "msg/s") == {"original, best": {1: 5.0, 2: 5.0}, "ours": {1_000_000: 5.0}}


def test_an_entry_looks_alike_whatever_its_settings() -> None:
    assert style("original, best") == style("original") != style("ours")
    assert style("no such peer") is None


def test_a_page_gets_the_tables_that_it_has_marks_for() -> None:
    page = (
        "# Page\n\n<!-- table: costs -->\n\nold\n\n<!-- end of table -->\n\n"
        "<!-- table: other -->\nkept<!-- end of table -->\n"
    )
    costs = Result("costs", {"a message": {"µs": Spread.of([1.0, 2.0, 3.0]), "B": 7.0}}, "").as_json()
    table = "|  | µs | B |\n| --- | ---: | ---: |\n| a message | 2.00 (1.50…2.50) | 7.00 |"
    once = renewed(page, [costs], {})
    assert once == page.replace("old", table)
    assert renewed(once, [costs], {}) == once


def test_a_page_gets_the_plots_that_it_has_marks_for() -> None:
    page = "<!-- plot: churn: A rate -->\n<!-- end of plot -->\n<!-- plot: other: Another -->\n<!-- end of plot -->\n"
    once = renewed(page, [], {"churn": "images/churn.svg"})
    assert once == page.replace("rate -->\n", "rate -->\n\n![A rate](images/churn.svg)\n\n")
    assert renewed(once, [], {"churn": "images/churn.svg"}) == once


def test_every_mark_of_the_page_is_one_that_is_filled() -> None:
    page = (ROOT / PAGE).read_text()
    assert set(re.findall("<!-- plot: (.+?):", page)) <= set(PLOTS)
    assert page.count("<!-- table: ") == page.count("<!-- end of table -->") == 4
    assert page.count("<!-- plot: ") == page.count("<!-- end of plot -->") > 0


def test_the_busiest_node_is_compared_with_the_mean() -> None:
    assert busiest([1.0, 1.0, 1.0, 1.0], shards=4, nodes=2) == 1
    assert busiest([3.0, 1.0, 1.0, 1.0], shards=4, nodes=4) == 2
    # Three shards for one node, one for the other: as many as there are, whatever was hashed finer.
    assert busiest([1.0] * 8, shards=4, nodes=3) == 1.5


def test_a_recorded_table_is_read() -> None:
    page = (
        "#### drains, quick\n\nA note.\n\n|  | msg/s | p50, ms |\n| --- | ---: | ---: |\n"
        "| ours, best | 27,759 (27,651…31,529) | 2.20 |\n| bare | 5.00 |  |\n"
    )
    assert recorded_tables(page) == {
        "drains, quick": {"ours, best": {"msg/s": 27759.0, "p50, ms": 2.2}, "bare": {"msg/s": 5.0}}
    }


def test_the_figure_of_the_readme_is_drawn_from_the_recorded_tables() -> None:
    drawn = bars(recorded_tables((ROOT / RECORD).read_text()))
    assert (ROOT / IMAGES / f"{FIGURE}.svg").read_text() == drawn
    assert drawn.count('class="ours"') == len(PANELS)
    assert drawn.count('class="peer"') == 3 * len(PANELS)


def test_the_readme_has_the_numbers_of_its_figure_in_words() -> None:
    tables = recorded_tables((ROOT / RECORD).read_text())
    words = described(tables)
    page = (ROOT / README).read_text()
    assert f'alt="{words}"' in page
    assert with_words(page, words) == page
    assert with_words(page, "other words").replace("other words", words) == page
    assert set(re.findall(r'class="n[^>]*>([\d.,]+)<', bars(tables))) <= set(re.findall(r"[\d,.]*\d", words))
