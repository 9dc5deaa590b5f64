"""The questions of the doctor to the tables: bounded probes of their indexes, whatever the tables hold."""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.contract import MOST_COUNTED, MOST_QUEUES
from faststream_outbox.storage.ordering.key_cursor import BEGINNING, LAST_ID
from faststream_outbox.storage.ordering.states import STATE
from faststream_outbox.storage.parking import sql_cause, sql_number
from faststream_outbox.storage.postgres.statements.nodes import NODE
from faststream_outbox.storage.postgres.statements.statement import Statement, epoch
from faststream_outbox.storage.schema.tables import quoted_name

# How many keys are looked at, over all queues: one probe of the index each.
MOST_KEYS: Final = 10_000
# How many dead letters of a queue are counted.
MOST_DEAD: Final = 10_000
# How many keys of a group are named.
_NAMED: Final = 3

# What is read of a row, for `_groups`.
_SEEN: Final = f"""{STATE} AS state, {NODE} AS node, {epoch("o.next_attempt_at")} AS due,
         {epoch("coalesce(o.first_attempt_at, o.created_at)")} AS began, {epoch("o.acquired_at")} AS acquired"""
# Rows in one state, held by one node or none: how many, the oldest times, and some keys.
_GROUPED: Final = f"""count(*), min(s.due), min(s.began), min(s.acquired),
       (array_agg(s.key) FILTER (WHERE s.key IS NOT NULL))[1:{_NAMED}]"""


def _queues(table: str, conditions: tuple[str, ...] = ("true",)) -> str:
    """Return the part of a statement that walks from queue to queue: one probe of each index for each queue."""
    first, following = (
        "least("
        + ", ".join(
            f"(SELECT o.queue FROM {table} o WHERE {condition} AND o.queue {beyond} ORDER BY o.queue LIMIT 1)"
            for condition in conditions
        )
        + ")::text"
        for beyond in (">= ''", "> q.queue")
    )
    return f"""WITH RECURSIVE queues(queue, n) AS (
  SELECT {first}, 1
  UNION ALL
  SELECT {following}, q.n + 1 FROM queues q WHERE q.queue IS NOT NULL AND q.n <= {MOST_QUEUES})"""


class RowQuestions:
    """The questions to one outbox and, if there is one, its dead-letter table."""

    def __init__(self, outbox: Table, dlq: Table | None) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self.plain = self._plain()
        self.heads = self._heads()
        self.highest_id = self._highest_id(self._outbox)
        dead = None if dlq is None else quoted_name(dlq.name, dlq.schema)
        self.dead = None if dead is None else self._dead(dead)
        self.highest_dead_id = None if dead is None else self._highest_id(dead)

    def _plain(self) -> Statement:
        # The first due rows of each queue: claims begin there.
        return Statement(f"""{_queues(self._outbox, ("o.entity_key IS NULL",))}
SELECT s.queue, s.state, s.node, {_GROUPED}, false FROM (
  SELECT q.queue, r.*, NULL::text AS key FROM queues q CROSS JOIN LATERAL (
    SELECT {_SEEN} FROM {self._outbox} o
     WHERE o.entity_key IS NULL AND o.queue = q.queue AND o.next_attempt_at <= now()
     ORDER BY o.next_attempt_at LIMIT {MOST_COUNTED}) r) s
 GROUP BY s.queue, s.state, s.node ORDER BY s.queue, s.state, s.node""")

    def _head(self, after: str) -> str:
        parked = sql_number(sql_cause("o.headers"), "parked_at")
        began = f"CASE WHEN o.next_attempt_at = 'infinity' THEN {parked} END"
        return f"""SELECT o.queue, o.entity_key AS key, o.id, {_SEEN}, {began} AS parked
      FROM {self._outbox} o WHERE o.entity_key IS NOT NULL AND (o.queue, o.entity_key, o.id) > ({after})
     ORDER BY o.queue, o.entity_key, o.id LIMIT 1"""

    def _heads(self) -> Statement:
        # From head to head. The last column says whether the walk stopped before the last key.
        return Statement(f"""WITH RECURSIVE walk AS (
  SELECT x.*, 1 AS n FROM ({self._head(f"'', '', '{BEGINNING[1]}'::bigint")}) x
  UNION ALL
  SELECT x.*, w.n + 1 FROM walk w CROSS JOIN LATERAL ({self._head(f"w.queue, w.key, {LAST_ID}")}) x
   WHERE w.n < {MOST_KEYS}),
seen AS (
  SELECT w.queue, w.key, w.state, w.node, w.due, coalesce(w.parked, w.began) AS began, w.acquired FROM walk w)
SELECT s.queue, s.state, s.node, {_GROUPED}, (SELECT max(w.n) >= {MOST_KEYS} FROM walk w)
  FROM seen s GROUP BY s.queue, s.state, s.node ORDER BY s.queue, s.state, s.node""")

    def _highest_id(self, table: str) -> Statement:
        return Statement(f"SELECT max(o.id) FROM {table} o")

    def _dead(self, dlq: str) -> Statement:
        return Statement(f"""{_queues(dlq)}
SELECT q.queue, count(*), min({epoch("r.failed_at")}), mode() WITHIN GROUP (ORDER BY r.failure_reason)
  FROM queues q CROSS JOIN LATERAL (
    SELECT o.failed_at, o.failure_reason FROM {dlq} o
     WHERE o.queue = q.queue AND o.failed_at > now() - make_interval(secs => :seconds::float8)
     ORDER BY o.failed_at DESC LIMIT {MOST_DEAD}) r
 GROUP BY q.queue ORDER BY q.queue""")


def read_pauses(control: Table) -> Statement:
    """Return the statement that reads which queues are paused: until when, since when, by whom and why."""
    return Statement(f"""SELECT c.queue, {epoch("c.until")}, {epoch("c.since")}, c."by", c.reason
  FROM {quoted_name(control.name, control.schema)} c
 WHERE c.kind = 'pause' AND (c.until IS NULL OR c.until > now()) ORDER BY c.queue LIMIT 1000""")
