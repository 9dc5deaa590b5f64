"""The statements that find the rows of a selection, slice by slice, along an index.

A walk compares a bounded number of rows in one statement and goes on from where it ended, so no statement reads a whole
table. A filter that names a queue walks that queue's indexes; any other filter walks the primary key.
"""

from typing import Final, Literal, NamedTuple

from sqlalchemy import Table

from faststream_outbox.storage.operating.acts import EXAMINED
from faststream_outbox.storage.postgres.statements.statement import Statement
from faststream_outbox.storage.schema.tables import quoted_name

# Which index a walk follows: the primary key, the rows of a queue by their time, those with a key by their key, one
# key, one timer, or the dead letters of a queue by their time.
Path = Literal["ids", "times", "keys", "key", "timer", "failures"]


def time_text(column: str) -> str:
    """Return SQL for an instant as text that no setting changes; a float would not hold every instant exactly."""
    return f"(to_json({column}) #>> '{{}}')"


class _Index(NamedTuple):
    """How a path follows its index: its rows `{r}`, their order, and the place of each besides its id."""

    rows: str
    order: str = "{r}.id"
    place: str = "''"


_AFTER_ID: Final = "{r}.id > :after_id::bigint"
_AFTER_TIME: Final = "(:after::text::timestamptz, :after_id::bigint)"
_AFTER_KEY: Final = "(:after::text, :after_id::bigint)"
_OF_QUEUE: Final = "{r}.queue = :queue::text"
_INDEXES: Final[dict[Path, _Index]] = {
    "ids": _Index(f"{_AFTER_ID} AND {{r}}.id <= :upper_id::bigint"),
    "times": _Index(
        f"{_OF_QUEUE} AND {{r}}.entity_key IS NULL AND ({{r}}.next_attempt_at, {{r}}.id) > {_AFTER_TIME}",
        "{r}.next_attempt_at, {r}.id",
        time_text("{r}.next_attempt_at"),
    ),
    "keys": _Index(
        f"{_OF_QUEUE} AND {{r}}.entity_key IS NOT NULL AND ({{r}}.entity_key, {{r}}.id) > {_AFTER_KEY}",
        "{r}.entity_key, {r}.id",
        "{r}.entity_key",
    ),
    "key": _Index(
        f"{_OF_QUEUE} AND {{r}}.entity_key = :key::text AND {{r}}.entity_key IS NOT NULL AND {_AFTER_ID}",
        "{r}.queue, {r}.entity_key, {r}.id",
    ),
    # At most one row. An order by id would let the planner walk the primary key to find it.
    "timer": _Index(f"{_OF_QUEUE} AND {{r}}.timer_id = :timer_id::text AND {_AFTER_ID}", "{r}.timer_id"),
    # The index has no id, and one comparison still uses it. With two, a plan for all values expects few rows, and sorts
    # all dead letters of the queue.
    "failures": _Index(
        f"{_OF_QUEUE} AND ({{r}}.failed_at, {{r}}.id) > {_AFTER_TIME}",
        "{r}.failed_at, {r}.id",
        time_text("{r}.failed_at"),
    ),
}


def walk(table: Table, row: str, path: Path, condition: str) -> Statement:
    """Return the statement that finds the next ids of a path, and where it ended; no end means: the path is over.

    `seen` is read only as far as needed: once `:limit` ids are found nothing more is compared.
    """
    rows, order, place = (text.replace("{r}", row) for text in _INDEXES[path])
    return Statement(f"""WITH seen AS MATERIALIZED (
  SELECT {row}.id, {place} AS place, {condition} AND {row}.id <= :upper_id::bigint AS wanted
    FROM {quoted_name(table.name, table.schema)} {row} WHERE {rows}
   ORDER BY {order} LIMIT {EXAMINED}),
found AS MATERIALIZED (SELECT s.id, s.place FROM seen s WHERE s.wanted LIMIT :limit::bigint)
SELECT (SELECT array_agg(f.id) FROM found f),
       CASE WHEN (SELECT count(*) FROM found) >= :limit::bigint
            THEN (SELECT array[f.place, f.id::text] FROM found f OFFSET :limit::bigint - 1)
            WHEN (SELECT count(*) FROM seen) >= {EXAMINED}
            THEN (SELECT array[s.place, s.id::text] FROM seen s OFFSET {EXAMINED - 1}) END""")
