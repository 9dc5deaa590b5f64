"""The statements of operators: which keys wait, and what is done with one.

All of them run in the caller's transaction. An action locks the head if nobody has it locked and its lease does not
hold, so that it waits for nobody and changes nothing that is being handled. Whoever let a lease run out finds another
token, or none, when it settles after all.
"""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.ordering.key_cursor import BEGINNING, LAST_ID
from faststream_outbox.storage.ordering.states import STATE
from faststream_outbox.storage.parking import (
    BY_OPERATOR,
    sql_cause,
    sql_number,
    sql_with_cause,
    sql_without_cause,
)
from faststream_outbox.storage.postgres.statements.rows import DEAD_ROW, ROW, UNLEASE, Statement, epoch
from faststream_outbox.storage.schema.tables import quoted_name

# What a head is, without the payload, which nobody looks at here.
_HEAD: Final = ROW.replace("o.payload", "''::bytea")
_IS_PARKED: Final = "o.next_attempt_at = 'infinity'"
# A row with a token is a suspect, and stays one. Another token, so that whoever had it cannot settle any more.
_DISOWN: Final = "acquired_token = CASE WHEN o.acquired_token IS NOT NULL THEN gen_random_uuid() END"
_CAUSE: Final = sql_cause("o.headers")


class KeyStatements:
    """The statements for the keys of one outbox, as operators use them."""

    def __init__(self, outbox: Table, dlq: Table | None) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._dlq = None if dlq is None else quoted_name(dlq.name, dlq.schema)
        self.read = self._read()
        self.retry = self._retry()
        self.release = self._release()
        self.park = self._park()
        self.skip = self._skip()

    def _probe(self, after: str) -> str:
        return f"""SELECT o.queue, o.entity_key AS key, o.id, ({STATE}) = ANY ($2::text[]) AS wanted
      FROM {self._outbox} o WHERE o.entity_key IS NOT NULL AND (o.queue, o.entity_key, o.id) > ({after})
     ORDER BY o.queue, o.entity_key, o.id LIMIT 1"""

    def _read(self) -> Statement:
        # From head to head, one probe of the index each, until enough are found. Past the queue asked for, it ends.
        first = f"coalesce($1::text, ''), '', '{BEGINNING[1]}'::bigint"
        here = "($1::text IS NULL OR x.queue = $1::text)"
        return Statement(f"""WITH RECURSIVE walk AS (
  SELECT x.*, x.wanted::int::bigint AS found FROM ({self._probe(first)}) x WHERE {here}
  UNION ALL
  SELECT x.*, w.found + x.wanted::int
    FROM walk w CROSS JOIN LATERAL ({self._probe(f"w.queue, w.key, {LAST_ID}")}) x
   WHERE w.found < $3::bigint AND {here})
SELECT {epoch("now()")}, f.waiting, {_HEAD} FROM {self._outbox} o CROSS JOIN LATERAL (
  SELECT count(*) AS waiting FROM {self._outbox} f
   WHERE f.queue = o.queue AND f.entity_key = o.entity_key AND f.entity_key IS NOT NULL AND f.id > o.id) f
 WHERE o.id = ANY (ARRAY(SELECT w.id FROM walk w WHERE w.wanted)) ORDER BY o.queue, o.entity_key""")

    def _head(self, condition: str = "true") -> str:
        # The conditions stand on the locked row, so they are checked on its newest version.
        return f"""WITH head AS MATERIALIZED (
  SELECT o.id FROM {self._outbox} o WHERE o.id = (
    SELECT h.id FROM {self._outbox} h
     WHERE h.queue = $1::text AND h.entity_key = $2::text AND h.entity_key IS NOT NULL
     ORDER BY h.queue, h.entity_key, h.id LIMIT 1)
     AND o.lease_expires_at <= now() AND {condition} FOR UPDATE OF o SKIP LOCKED)"""

    def _retry(self) -> Statement:
        # A parked row was given up, so all that the strategy and `max_deliveries` go by begins anew.
        return Statement(f"""{self._head()}
UPDATE {self._outbox} o SET {_DISOWN}, next_attempt_at = least(o.next_attempt_at, now()),
       headers = {sql_without_cause("o.headers")},
       attempts_count = CASE WHEN {_IS_PARKED} THEN 0 ELSE o.attempts_count END,
       deliveries_count = CASE WHEN {_IS_PARKED} THEN 0 ELSE o.deliveries_count END,
       first_attempt_at = CASE WHEN NOT {_IS_PARKED} THEN o.first_attempt_at END,
       last_attempt_at = CASE WHEN NOT {_IS_PARKED} THEN o.last_attempt_at END
 WHERE o.id = (SELECT head.id FROM head) RETURNING o.id""")

    def _release(self) -> Statement:
        # Deliveries are counted anew: what was parked for `max_deliveries` would be parked again before it is handled.
        due = sql_number(_CAUSE, "due")
        return Statement(f"""{self._head(_IS_PARKED)}
UPDATE {self._outbox} o SET {_DISOWN}, next_attempt_at = coalesce(to_timestamp({due}), now()),
       headers = {sql_without_cause("o.headers")}, deliveries_count = 0
 WHERE o.id = (SELECT head.id FROM head) RETURNING o.id""")

    def _park(self) -> Statement:
        cause = (
            f"jsonb_build_object('reason', '{BY_OPERATOR}', 'exception', $3::text, "
            f"'parked_at', {epoch('now()')}, 'due', {epoch('o.next_attempt_at')})"
        )
        return Statement(f"""{self._head(f"NOT {_IS_PARKED}")}
UPDATE {self._outbox} o SET {UNLEASE}, next_attempt_at = 'infinity', headers = {sql_with_cause("o.headers", cause)}
 WHERE o.id = (SELECT head.id FROM head) RETURNING o.id""")

    def _skip(self) -> Statement:
        gone = f"""{self._head()},
gone AS (
  DELETE FROM {self._outbox} o WHERE o.id = (SELECT head.id FROM head) RETURNING o.*)"""
        if self._dlq is None:
            return Statement(f"{gone}\nSELECT o.id FROM gone o WHERE $3::text IS NOT NULL")
        parked_for = f"concat_ws(': ', nullif({_CAUSE} ->> 'reason', ''), nullif({_CAUSE} ->> 'exception', ''))"
        return Statement(f"""{gone},
kept AS (
  INSERT INTO {self._dlq} ({DEAD_ROW})
  SELECT o.id, o.queue, o.entity_key, o.payload, {sql_without_cause("o.headers")}, o.timer_id, o.attempts_count,
         o.deliveries_count, o.created_at, o.first_attempt_at, o.last_attempt_at, 'rejected',
         $3::text || coalesce(E'\\n\\nparked for ' || nullif({parked_for}, ''), '')
    FROM gone o)
SELECT o.id FROM gone o""")
