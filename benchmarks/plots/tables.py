"""Tables and plots of a run, put into a page of the documentation where it has marks for them."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import Spread
from benchmarks.results import Result

_TABLE: Final = re.compile(r"(?P<begin><!-- table: (?P<title>.+?) -->\n).*?(?P<end><!-- end of table -->)", re.DOTALL)
# With what is read by those who cannot see it.
_PLOT: Final = re.compile(
    r"(?P<begin><!-- plot: (?P<name>\w+): (?P<text>.+?) -->\n).*?(?P<end><!-- end of plot -->)", re.DOTALL
)


def table_of(stored: Mapping[str, Any]) -> str:
    """Write a table again, from what JSON has of it."""
    lines = {
        case: {column: Spread(**value) if isinstance(value, dict) else value for column, value in values.items()}
        for case, values in stored["lines"].items()
    }
    return Result(stored["title"], lines, stored["note"]).table()


def renewed(page: str, tables: Iterable[Mapping[str, Any]], plots: Mapping[str, str]) -> str:
    """Return a page with the tables, by title, and plots, by name, replaced between its marks; all others stay."""
    written = {stored["title"]: table_of(stored) for stored in tables}

    def put_table(mark: re.Match[str]) -> str:
        table = written.get(mark["title"])
        return mark[0] if table is None else f"{mark['begin']}\n{table}\n\n{mark['end']}"

    def put_plot(mark: re.Match[str]) -> str:
        file = plots.get(mark["name"])
        return mark[0] if file is None else f"{mark['begin']}\n![{mark['text']}]({file})\n\n{mark['end']}"

    return _PLOT.sub(put_plot, _TABLE.sub(put_table, page))


def renew(page: Path, tables: Iterable[Mapping[str, Any]], plots: Mapping[str, str]) -> None:
    """Replace the tables and plots of a page."""
    page.write_text(renewed(page.read_text(), tables, plots))
