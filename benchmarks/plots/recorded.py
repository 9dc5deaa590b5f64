"""The tables that benchmarks/README.md records, read back."""

import re
from pathlib import Path
from typing import Final

RECORD: Final = Path("benchmarks/README.md")
# A title and the rows of the first table below it.
_TABLE: Final = re.compile(r"^#### (?P<title>.+)\n(?:(?!####|\|).*\n)*(?P<rows>(?:\|.*\n)+)", re.MULTILINE)

# Of each case of a table its columns, by name, with the middle of what was measured.
Table = dict[str, dict[str, float]]


def recorded_tables(markdown: str) -> dict[str, Table]:
    """Read all tables of a record, by title."""
    return {found["title"]: _table(found["rows"].splitlines()) for found in _TABLE.finditer(markdown)}


def _table(rows: list[str]) -> Table:
    head, _, *lines = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {
        case: {column: _middle(cell) for column, cell in zip(head[1:], cells, strict=True) if cell}
        for case, *cells in lines
    }


def _middle(cell: str) -> float:
    """Read "27,759 (27,651…31,529)"."""
    return float(cell.partition(" ")[0].replace(",", ""))
