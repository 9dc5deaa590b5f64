"""The questions of the doctor to the tables: bounded probes of their indexes, whatever the tables hold."""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.contract import MOST_COUNTED, MOST_QUEUES
from faststream_outbox.storage.ordering.key_cursor import BEGINNING, LAST_ID
from faststream_outbox.storage.ordering.states import STATE
from faststream_outbox.storage.parking import BY_OPERATOR, sql_cause, sql_number
from faststream_outbox.storage.postgres.statements.nodes import NODE
from faststream_outbox.storage.postgres.statements.statement import Statement, epoch
from faststream_outbox.storage.schema.tables import quoted_name

# How many keys are looked at, over all queues: one probe of the index each.
MOST_KEYS: Final = 10_000
# How many dead letters of a queue are counted.
MOST_DEAD: Final = 10_000
# How many keys of a group are named.
_NAMED: Final = 3
# How many rows behind a delayed head are looked at for one that is due: 10 more probes of the index for such a key.
_BEHIND: Final = 10
# The states of heads that no row has by itself: an operator stopped the key, or due rows wait behind a delayed head.
HELD: Final = "held"
DELAYING: Final = "delaying"

# What is read of a row, for `_groups`.
_SEEN: Final = f"""{STATE} AS state, {NODE} AS node, {epoch("o.next_attempt_at")} AS due,
         {epoch("coalesce(o.first_attempt_at, o.created_at)")} AS began, {epoch("o.acquired_at")} AS acquired"""
# Rows in one state, held by one node or none: how many, the oldest times, some keys, and the reasons of operators.
_GROUPED: Final = f"""count(*), min(s.due), min(s.began), min(s.acquired),
       (array_agg(s.key) FILTER (WHERE s.key IS NOT NULL))[1:{_NAMED}],
       (array_agg(s.reason) FILTER (WHERE s.reason IS NOT NULL))[1:{_NAMED}]"""


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
  SELECT q.queue, r.*, NULL::text AS key, NULL::text AS reason FROM queues q CROSS JOIN LATERAL (
    SELECT {_SEEN} FROM {self._outbox} o
     WHERE o.entity_key IS NULL AND o.queue = q.queue AND o.next_attempt_at <= now()
     ORDER BY o.next_attempt_at LIMIT {MOST_COUNTED}) r) s
 GROUP BY s.queue, s.state, s.node ORDER BY s.queue, s.state, s.node""")

    def _head(self, after: str) -> str:
        cause = sql_cause("o.headers")
        parked = f"CASE WHEN o.next_attempt_at = 'infinity' THEN {sql_number(cause, 'parked_at')} END"
        held = f"o.next_attempt_at = 'infinity' AND {cause} ->> 'reason' = '{BY_OPERATOR}'"
        reason = f"CASE WHEN {held} THEN coalesce({cause} ->> 'exception', '') END"
        return f"""SELECT o.queue, o.entity_key AS key, o.id, {_SEEN}, {parked} AS parked, {reason} AS reason
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
  SELECT w.queue, w.key, w.node, w.due, w.acquired, w.reason, coalesce(b.due, w.parked, w.began) AS began,
         CASE WHEN w.state = 'parked' AND w.reason IS NOT NULL THEN '{HELD}'
              WHEN b.due IS NOT NULL THEN '{DELAYING}' ELSE w.state END AS state
    FROM walk w LEFT JOIN LATERAL (
      SELECT {epoch("min(r.next_attempt_at) FILTER (WHERE r.next_attempt_at <= now())")} AS due FROM (
        SELECT o.next_attempt_at FROM {self._outbox} o
         WHERE o.entity_key IS NOT NULL AND o.queue = w.queue AND o.entity_key = w.key AND o.id > w.id
         ORDER BY o.queue, o.entity_key, o.id LIMIT {_BEHIND}) r) b ON w.state = 'delayed')
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


# How many acts of a kind are read to find who holds a key.
_ACTS: Final = 1000


def read_holders(audit: Table) -> Statement:
    """Return the statement that reads who stopped some keys of a queue, the latest act first."""
    name = quoted_name(audit.name, audit.schema)
    latest = " UNION ALL ".join(
        f"""(SELECT a.id, a."by", a.target FROM {name} a
  WHERE a.action = '{action}' ORDER BY a.id DESC LIMIT {_ACTS})"""
        for action in ("hold_key", "park_key")
    )
    return Statement(f"""SELECT h.target ->> 'key', h."by" FROM ({latest}) h
 WHERE h.target ->> 'queue' = :queue::text AND h.target ->> 'key' = ANY (:keys::text[]) ORDER BY h.id DESC""")
