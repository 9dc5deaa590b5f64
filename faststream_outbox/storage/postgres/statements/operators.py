"""The statements of operators: read rows, find queues that nobody reads, and act on the head of a key.

Those for keys run in the caller's transaction. An action locks the head only if no other transaction has locked it and
its lease is over, so that it never waits and never changes a row that is being handled. A process whose lease ran out
finds another token, or none, if it settles later.
"""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.contract import MOST_COUNTED, MOST_QUEUES
from faststream_outbox.storage.parking import (
    BY_OPERATOR,
    sql_cause,
    sql_holds,
    sql_number,
    sql_skipped_text,
    sql_text,
    sql_with_cause,
    sql_without_cause,
)
from faststream_outbox.storage.postgres.statements.search import next_queue
from faststream_outbox.storage.postgres.statements.settle import DEAD_ROW, insert_dead, returning_dead, set_parked
from faststream_outbox.storage.postgres.statements.statement import ROW, Statement, epoch
from faststream_outbox.storage.schema.missing_rights import READ_MISSING
from faststream_outbox.storage.schema.row_security import READ_HIDDEN
from faststream_outbox.storage.schema.tables import quoted_name

_IS_PARKED: Final = "o.next_attempt_at = 'infinity'"
# A row with a token is a suspect and stays one. It gets a new token, so that the process that had it cannot settle it.
DISOWN: Final = "acquired_token = CASE WHEN o.acquired_token IS NOT NULL THEN gen_random_uuid() END"

# The tables, of those given by their quoted names, whose rows are hidden: the arguments of `RowSecurityError`.
HIDDEN_TABLES: Final = Statement(READ_HIDDEN)
# The tables on which rights are missing: the arguments of `MissingRightsError`.
MISSING_RIGHTS: Final = Statement(READ_MISSING)


class OperatorStatements:
    """The statements of operators, for one outbox and, if there is one, its dead-letter table."""

    def __init__(self, outbox: Table, dlq: Table | None = None) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._dlq = None if dlq is None else quoted_name(dlq.name, dlq.schema)
        self.read = self._read()
        self.look = self._look()
        self.unserved = self._unserved()
        self.retry = self._retry()
        self.release = self._release()
        self.park = self._park()
        self.skip = self._skip()

    def _read(self) -> Statement:
        return Statement(f"""SELECT {ROW} FROM {self._outbox} o
 WHERE :queue::text IS NULL OR o.queue = :queue::text ORDER BY o.id LIMIT :limit::bigint""")

    def _look(self) -> dict[str, Statement]:
        statements = {f"The outbox {self._outbox}": Statement(f"SELECT {ROW} FROM {self._outbox} o LIMIT 0")}
        if self._dlq is not None:
            dead = Statement(f"SELECT {DEAD_ROW} FROM {self._dlq} LIMIT 0")
            statements[f"The dead-letter table {self._dlq}"] = dead
        return statements

    def _unserved(self) -> Statement:
        first, following = (next_queue(self._outbox, beyond) for beyond in (">= ''", "> q.queue"))
        # From queue to queue by a probe of each index, then the first rows of each: a backlog costs no more than some.
        # Rows behind a head that is not due wait for the head.
        return Statement(f"""WITH RECURSIVE queues(queue) AS (
  SELECT {first}
  UNION ALL
  SELECT {following} FROM queues q WHERE q.queue IS NOT NULL),
others AS (
  SELECT q.queue FROM queues q WHERE q.queue <> ALL (:known::text[]) LIMIT {MOST_QUEUES})
SELECT q.queue, count(*) FILTER (WHERE r.due)
  FROM others q CROSS JOIN LATERAL (
    (SELECT true AS due, o.lease_expires_at > now() AS leased FROM {self._outbox} o
      WHERE o.entity_key IS NULL AND o.queue = q.queue AND o.next_attempt_at <= now()
      ORDER BY o.next_attempt_at LIMIT {MOST_COUNTED})
    UNION ALL
    SELECT k.next_attempt_at <= now()
           AND first_value(k.next_attempt_at) OVER (PARTITION BY k.entity_key ORDER BY k.id) <= now(),
           k.lease_expires_at > now()
      FROM (SELECT o.id, o.entity_key, o.next_attempt_at, o.lease_expires_at FROM {self._outbox} o
             WHERE o.entity_key IS NOT NULL AND o.queue = q.queue
             ORDER BY o.entity_key, o.id LIMIT {MOST_COUNTED}) k) r
 GROUP BY q.queue HAVING bool_or(r.due) AND NOT bool_or(r.leased) ORDER BY q.queue""")

    def _head(self, condition: str = "true") -> str:
        # The conditions are on the locked row, so Postgres checks them on its newest version.
        return f"""WITH head AS MATERIALIZED (
  SELECT o.id, {sql_holds("o.headers")} AS holds FROM {self._outbox} o WHERE o.id = (
    SELECT h.id FROM {self._outbox} h
     WHERE h.queue = :queue::text AND h.entity_key = :key::text AND h.entity_key IS NOT NULL
     ORDER BY h.queue, h.entity_key, h.id LIMIT 1)
     AND (:head::bigint IS NULL OR o.id = :head::bigint)
     AND o.lease_expires_at <= now() AND {condition} FOR UPDATE OF o SKIP LOCKED)"""

    def _change(self, condition: str, changes: str) -> Statement:
        """Return the statement that changes a head; one that is no message, and only holds its key, is deleted."""
        return Statement(f"""{self._head(condition)},
dropped AS (
  DELETE FROM {self._outbox} o WHERE o.id = (SELECT head.id FROM head WHERE head.holds) RETURNING o.id),
changed AS (
  UPDATE {self._outbox} o SET {changes}
   WHERE o.id = (SELECT head.id FROM head WHERE NOT head.holds) RETURNING o.id)
SELECT c.id FROM changed c UNION ALL SELECT d.id FROM dropped d""")

    def _retry(self) -> Statement:
        # A parked row had used up its attempts: the retry strategy and `max_deliveries` count from 0 again.
        return self._change(
            "true",
            f"""{DISOWN}, next_attempt_at = least(o.next_attempt_at, now()),
       headers = {sql_without_cause("o.headers")},
       attempts_count = CASE WHEN {_IS_PARKED} THEN 0 ELSE o.attempts_count END,
       deliveries_count = CASE WHEN {_IS_PARKED} THEN 0 ELSE o.deliveries_count END,
       first_attempt_at = CASE WHEN NOT {_IS_PARKED} THEN o.first_attempt_at END,
       last_attempt_at = CASE WHEN NOT {_IS_PARKED} THEN o.last_attempt_at END""",
        )

    def _release(self) -> Statement:
        # Deliveries count from 0: a row parked for `max_deliveries` would be parked again before it is handled.
        cause = sql_cause("o.headers")
        due, failure = sql_number(cause, "due"), sql_text(cause, "failure")
        retried = sql_with_cause("o.headers", f"jsonb_build_object('exception', {failure})")
        return self._change(
            _IS_PARKED,
            f"""{DISOWN}, next_attempt_at = coalesce(to_timestamp({due}), now()),
       headers = CASE WHEN {failure} IS NULL THEN {sql_without_cause("o.headers")} ELSE {retried} END,
       deliveries_count = 0""",
        )

    def _park(self) -> Statement:
        failure = sql_text(sql_cause("o.headers"), "exception")
        cause = (
            f"jsonb_strip_nulls(jsonb_build_object('reason', '{BY_OPERATOR}', 'exception', :reason::text, "
            f"'parked_at', {epoch('now()')}, 'due', {epoch('o.next_attempt_at')}, 'failure', {failure}))"
        )
        return Statement(f"""{self._head(f"NOT {_IS_PARKED}")}
UPDATE {self._outbox} o SET {set_parked(cause)} WHERE o.id = (SELECT head.id FROM head) RETURNING o.id""")

    def _skip(self) -> Statement:
        gone = f"""{self._head()},
gone AS (
  DELETE FROM {self._outbox} o WHERE o.id = (SELECT head.id FROM head) {returning_dead()})"""
        if self._dlq is None:
            return Statement(f"{gone}\nSELECT g.id FROM gone g WHERE :reason::text IS NOT NULL")
        # The counts and times of the row stay.
        failures = f"""CROSS JOIN LATERAL (
      SELECT 'rejected' AS reason, {sql_skipped_text(":reason::text", sql_cause("g.headers"))} AS exception,
             NULL::bigint AS attempts, NULL::float8 AS first_at, NULL::float8 AS last_at
       WHERE NOT {sql_holds("g.headers")}) l"""
        return Statement(f"{gone},\n{insert_dead(self._dlq, 'gone', failures)}\nSELECT g.id FROM gone g")
