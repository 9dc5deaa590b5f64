"""The statements by which operators search the outbox: a part of one index each, never a table.

A statement examines the next rows of a *leg*, one range of one index, and returns those that match and the last one.
The size of the part stands in the text, because Postgres plans for a tenth of the table if LIMIT is a parameter.
"""

from collections.abc import Mapping
from typing import Final, Literal

from sqlalchemy import Table

from faststream_outbox.storage.operating.filters import COUNT_CAP, MessageFilter
from faststream_outbox.storage.ordering.key_cursor import LAST_ID
from faststream_outbox.storage.postgres.statements.conditions import HEAD_STATE, condition, head_before, names
from faststream_outbox.storage.postgres.statements.statement import ROW, SIZE, Statement, epoch
from faststream_outbox.storage.schema.tables import quoted_name

Leg = Literal["id", "timer", "key", "due", "keyed"]

# How many rows a statement examines: the first that is more than a page, then the last ones.
PARTS: Final = (125, 1_000, 9_000)
# In how much of the table, from both ends, a correlation id is searched.
FOUND_IN: Final = 10_000
# How many of the newest rows `tail` knows when it begins.
NEWEST: Final = 1_000
# So many names of queues are read at once.
MOST_NAMES: Final = 100

_CORRELATION: Final = "o.headers ->> 'correlation_id' = :correlation_id::text"
_AFTER_ID: Final = ":after_id::bigint"
_AFTER: Final = ":after_value::text"
# The range of the index of each leg, and its order. Of several columns that are equal to a parameter the planner drops
# the order, and might then walk the primary key to find few rows; so the range of a key is written by two comparisons.
_RANGES: Final[Mapping[Leg, tuple[str, str]]] = {
    "id": (f"o.id > {_AFTER_ID}", "o.id"),
    "timer": (
        f"o.timer_id IS NOT NULL AND (o.queue, o.timer_id) > (:after_queue::text, {_AFTER})",
        "o.queue, o.timer_id",
    ),
    "key": (
        f"""o.entity_key IS NOT NULL AND (o.queue, o.entity_key, o.id) > (:leg_queue::text, :key::text, {_AFTER_ID})
       AND (o.queue, o.entity_key, o.id) <= (:leg_queue::text, :key::text, {LAST_ID})""",
        "o.queue, o.entity_key, o.id",
    ),
    "due": (
        f"""o.entity_key IS NULL AND o.queue = :leg_queue::text
       AND (o.next_attempt_at, o.id) > ({_AFTER}::timestamptz, {_AFTER_ID})""",
        "o.next_attempt_at, o.id",
    ),
    "keyed": (
        f"""o.entity_key IS NOT NULL AND o.queue = :leg_queue::text
       AND (o.entity_key, o.id) > ({_AFTER}, {_AFTER_ID})""",
        "o.entity_key, o.id",
    ),
}
# The value by which a leg is ordered, besides the id. As JSON a time has one form, whatever the session's settings are.
_VALUES: Final[Mapping[Leg, str]] = {
    "id": "''",
    "timer": "o.timer_id::text",
    "key": "''",
    "due": "to_jsonb(o.next_attempt_at) #>> '{}'",
    "keyed": "o.entity_key",
}
# Of the index of due times only a part can be in a state. Leased rows were due when they were claimed.
_DUE_BY_STATE: Final = {
    **dict.fromkeys(("ready", "in_flight", "expired"), "AND o.next_attempt_at <= now()"),
    **dict.fromkeys(("delayed", "retrying", "parked"), "AND o.next_attempt_at > now()"),
}


class SearchStatements:
    """The statements for one outbox; those of a search are made when they are first needed."""

    def __init__(self, outbox: Table) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._parts: dict[tuple[Leg, tuple[str, ...], str, int], Statement] = {}
        self.read = self._read()
        self.sizes = Statement(f"SELECT o.id, {SIZE} FROM {self._outbox} o WHERE o.id = ANY (:ids::bigint[])")
        self.queues = self._queues()
        self.find = self._find()
        self.newest = self._newest()
        self.newer = self._newer()
        self.count_key = self._count_key()

    def _read(self) -> Statement:
        head = head_before(self._outbox, f"h.id, {HEAD_STATE} AS state")
        return Statement(f"""SELECT {epoch("now()")}, head.id, head.state, {ROW} FROM {self._outbox} o
  LEFT JOIN LATERAL ({head}) head ON true WHERE o.id = ANY (:ids::bigint[]) ORDER BY o.id""")

    def part(self, leg: Leg, where: MessageFilter, size: int) -> Statement:
        """Return the statement that examines `size` rows of a leg for those that match a filter."""
        due = _DUE_BY_STATE.get(where.state or "", "") if leg == "due" else ""
        known = (leg, names(where), due, size)
        if known not in self._parts:
            self._parts[known] = self._part(leg, where, due, size)
        return self._parts[known]

    def _part(self, leg: Leg, where: MessageFilter, due: str, size: int) -> Statement:
        bounds, order = _RANGES[leg]
        if leg == "timer" and where.queue is not None:
            bounds = f"o.queue = :queue::text AND {bounds}"
        wanted = f"({condition(where, self._outbox)}) IS TRUE AS wanted"
        return Statement(f"""SELECT s.id, s.queue, {_VALUES[leg].replace("o.", "s.")}, s.wanted, s.n FROM (
  SELECT o.*, row_number() OVER () AS n, count(*) OVER () AS seen FROM (
    SELECT o.id, o.queue, o.entity_key, o.timer_id, o.next_attempt_at, {wanted}
      FROM {self._outbox} o WHERE {bounds} {due} ORDER BY {order} LIMIT {size}) o) s
 WHERE s.wanted OR s.n = s.seen ORDER BY s.n""")

    def _queues(self) -> Statement:
        # From queue to queue by a probe of each index.
        first, following = (next_queue(self._outbox, beyond) for beyond in (">= :first::text", "> q.queue"))
        return Statement(f"""WITH RECURSIVE queues(queue) AS (
  SELECT {first}
  UNION ALL
  SELECT {following} FROM queues q WHERE q.queue IS NOT NULL)
SELECT q.queue FROM queues q WHERE q.queue IS NOT NULL LIMIT {MOST_NAMES}""")

    def _find(self) -> Statement:
        ends = (
            f"(SELECT o.id, ({_CORRELATION}) IS TRUE AS wanted FROM {self._outbox} o "
            f"WHERE o.id {sign} {bound} ORDER BY o.id {order} LIMIT {FOUND_IN})"
            for sign, bound, order in ((">", -LAST_ID, "ASC"), ("<=", LAST_ID, "DESC"))
        )
        oldest, newest = ends
        # The two parts of a small table overlap, or meet.
        return Statement(f"""WITH oldest AS MATERIALIZED {oldest}, newest AS MATERIALIZED {newest}
SELECT (SELECT count(*) FROM oldest) < {FOUND_IN} OR (SELECT max(id) FROM oldest) >= (SELECT min(id) FROM newest),
       ARRAY(SELECT id FROM oldest WHERE wanted UNION SELECT id FROM newest WHERE wanted ORDER BY id
             LIMIT :limit::bigint)""")

    def _count_key(self) -> Statement:
        bounds, order = _RANGES["key"]
        return Statement(f"""SELECT count(*) FROM (
  SELECT FROM {self._outbox} o WHERE {bounds.replace(_AFTER_ID, str(-LAST_ID))}
   ORDER BY {order} LIMIT {COUNT_CAP + 1}) o""")

    def _newest(self) -> Statement:
        return Statement(
            f"SELECT o.id, o.queue FROM {self._outbox} o WHERE o.id <= {LAST_ID} ORDER BY o.id DESC LIMIT {NEWEST}"
        )

    def _newer(self) -> Statement:
        return Statement(
            f"SELECT o.id, o.queue FROM {self._outbox} o WHERE o.id > {_AFTER_ID} ORDER BY o.id LIMIT {FOUND_IN}"
        )


def next_queue(outbox: str, beyond: str) -> str:
    """Return SQL for the first queue beyond another: the lesser of two probes, one of each index."""
    probes = ", ".join(
        f"(SELECT o.queue FROM {outbox} o WHERE o.entity_key IS {kind} AND o.queue {beyond} ORDER BY o.queue LIMIT 1)"
        for kind in ("NULL", "NOT NULL")
    )
    return f"least({probes})::text"
