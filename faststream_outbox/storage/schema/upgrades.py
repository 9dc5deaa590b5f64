"""The statements that create the tables, and those that bring tables of an older schema version up to date."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.schema.ddl import comment_on, create_index_on, create_table, quoted
from faststream_outbox.storage.schema.tables import SCHEMA_VERSION

_INDENT: Final = re.compile(r"^\t", re.MULTILINE)
_LINE_END: Final = re.compile(r" $", re.MULTILINE)
# The tables that each version brought, by their kinds.
_NEW_TABLES: Final[Mapping[int, tuple[str, ...]]] = {2: ("control", "audit", "nodes")}


def create_statements(tables: Mapping[str, Table]) -> Iterator[str]:
    """Return the statements that create tables, by their kinds: `outbox`, `dlq`, `control` and so on."""
    for table in tables.values():
        for statement in create_table(table, with_schema=False, taken_names=()):
            # SQLAlchemy indents by tabs and leaves spaces at the ends of lines.
            yield _LINE_END.sub("", _INDENT.sub("    ", statement))


def upgrade_statements(tables: Mapping[str, Table], version: int) -> Iterator[str]:
    """Return the statements that bring the tables of a schema version up to date; 0 is that of tables without one.

    They remove nothing that processes of the older version need. Indexes are created while the tables are in use, so
    the statements run outside a transaction.
    """
    if not 0 <= version <= SCHEMA_VERSION:
        raise ValueError(f"There is no schema {version}: the versions are 0 (none recorded) to {SCHEMA_VERSION}.")
    new = {kind for number in range(version + 1, SCHEMA_VERSION + 1) for kind in _NEW_TABLES.get(number, ())}
    for number in range(version + 1, SCHEMA_VERSION + 1):
        yield from _STEPS[number](tables)
    yield from create_statements({kind: table for kind, table in tables.items() if kind in new})
    if version < SCHEMA_VERSION:
        for kind, table in tables.items():
            if kind not in new and table.comment:
                yield comment_on(quoted(table.name, table.schema), table.comment)


def _record_versions(_tables: Mapping[str, Table]) -> Iterator[str]:
    """Change nothing: the first version only records itself."""
    yield from ()


def _index_correlation_ids(tables: Mapping[str, Table]) -> Iterator[str]:
    if (dlq := tables.get("dlq")) is not None:
        [index] = [each for each in dlq.indexes if str(each.name).endswith("_correlation_idx")]
        yield create_index_on(index, quoted(dlq.name, dlq.schema), (), concurrently=True)


# By version: what it needs that the version before has not.
_STEPS: Final[Mapping[int, Callable[[Mapping[str, Table]], Iterator[str]]]] = {
    1: _record_versions,
    2: _index_correlation_ids,
}
