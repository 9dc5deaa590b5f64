"""Tables of a run, put into a page of the documentation where it has marks for them."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import Spread
from benchmarks.results import Result

_MARKED: Final = re.compile(r"(?P<begin><!-- table: (?P<title>.+?) -->\n).*?(?P<end><!-- end of table -->)", re.DOTALL)


def table_of(stored: Mapping[str, Any]) -> str:
    """Write a table again, from what JSON has of it."""
    lines = {
        case: {column: Spread(**value) if isinstance(value, dict) else value for column, value in values.items()}
        for case, values in stored["lines"].items()
    }
    return Result(stored["title"], lines, stored["note"]).table()


def renewed(page: str, tables: Iterable[Mapping[str, Any]]) -> str:
    """Return a page with the tables between its marks replaced; those that are not given stay."""
    written = {stored["title"]: table_of(stored) for stored in tables}

    def renew(mark: re.Match[str]) -> str:
        table = written.get(mark["title"])
        return mark[0] if table is None else f"{mark['begin']}\n{table}\n\n{mark['end']}"

    return _MARKED.sub(renew, page)


def renew(page: Path, tables: Iterable[Mapping[str, Any]]) -> None:
    """Replace the tables of a page."""
    page.write_text(renewed(page.read_text(), tables))
