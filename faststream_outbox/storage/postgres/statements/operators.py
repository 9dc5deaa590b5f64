"""The statements of operators: read and count rows, list the keys that wait, and act on one of them.

Those for keys run in the caller's transaction. An action locks the head only if no other transaction has locked it and
its lease is over, so that it never waits and never changes a row that is being handled. A process whose lease ran out
finds another token, or none, if it settles later.
"""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.contract import MOST_COUNTED, MOST_QUEUES
from faststream_outbox.storage.ordering.key_cursor import BEGINNING, LAST_ID
from faststream_outbox.storage.ordering.states import BLOCKED, STATE
from faststream_outbox.storage.parking import BY_OPERATOR, sql_cause, sql_number, sql_without_cause
from faststream_outbox.storage.postgres.statements.settle import DEAD_ROW, insert_dead, returning_dead, set_parked
from faststream_outbox.storage.postgres.statements.statement import ROW, Statement, epoch
from faststream_outbox.storage.schema.row_security import READ_HIDDEN
from faststream_outbox.storage.schema.tables import quoted_name

# A head without its payload, which these statements do not show.
_HEAD: Final = ROW.replace("o.payload", "''::bytea")
_IS_PARKED: Final = "o.next_attempt_at = 'infinity'"
# A row with a token is a suspect and stays one. It gets a new token, so that the process that had it cannot settle it.
_DISOWN: Final = "acquired_token = CASE WHEN o.acquired_token IS NOT NULL THEN gen_random_uuid() END"

# The tables, of those given by their quoted names, whose rows are hidden: the arguments of `RowSecurityError`.
HIDDEN_TABLES: Final = Statement(READ_HIDDEN)


class OperatorStatements:
    """The statements of operators, for one outbox and, if there is one, its dead-letter table."""

    def __init__(self, outbox: Table, dlq: Table | None = None) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._dlq = None if dlq is None else quoted_name(dlq.name, dlq.schema)
        self.read = self._read()
        self.look = self._look()
        self.stats = self._stats()
        self.unserved = self._unserved()
        self.read_keys = self._read_keys()
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

    def _stats(self) -> Statement:
        dead = (
            f"SELECT d.queue, count(*) AS dead FROM {self._dlq} d GROUP BY d.queue"
            if self._dlq
            else "SELECT ''::text, 0 WHERE false"
        )
        blocked = ", ".join(f"'{state}'" for state in BLOCKED)
        # Rows with a key come in the order of its index, which has the head of each key first.
        return Statement(f"""WITH seen AS (
  SELECT o.queue, o.created_at, o.next_attempt_at, {STATE} AS state, NULL AS head_state, false AS is_head
    FROM {self._outbox} o WHERE o.entity_key IS NULL
  UNION ALL
  SELECT o.queue, o.created_at, o.next_attempt_at, {STATE}, first_value({STATE}) OVER its_key,
         row_number() OVER its_key = 1
    FROM {self._outbox} o WHERE o.entity_key IS NOT NULL
  WINDOW its_key AS (PARTITION BY o.queue, o.entity_key ORDER BY o.id)),
counted AS (
  SELECT s.*, CASE WHEN s.state IN ('in_flight', 'expired') THEN s.state
         WHEN s.head_state <> 'ready' AND NOT s.is_head OR s.is_head AND s.state = 'parked' THEN 'blocked'
         WHEN s.state = 'ready' THEN 'ready' ELSE 'scheduled' END AS counts_as FROM seen s),
live AS (
  SELECT t.queue,
         count(*) FILTER (WHERE t.counts_as = 'ready') AS ready,
         count(*) FILTER (WHERE t.counts_as = 'scheduled') AS scheduled,
         count(*) FILTER (WHERE t.counts_as = 'in_flight') AS in_flight,
         count(*) FILTER (WHERE t.counts_as = 'expired') AS expired,
         count(*) FILTER (WHERE t.counts_as = 'blocked') AS blocked,
         count(*) FILTER (WHERE t.is_head AND t.state IN ({blocked})) AS blocked_keys,
         count(*) FILTER (WHERE t.is_head AND t.state = 'parked') AS parked_keys,
         min({epoch("t.next_attempt_at")}) FILTER (WHERE t.counts_as = 'ready') AS due,
         min({epoch("t.created_at")}) AS created,
         min({epoch("t.next_attempt_at")}) FILTER (WHERE t.counts_as IN ('ready', 'in_flight', 'expired')) AS late
    FROM counted t GROUP BY t.queue),
dead(queue, dead) AS ({dead})
SELECT coalesce(l.queue, d.queue), coalesce(l.ready, 0), coalesce(l.scheduled, 0), coalesce(l.in_flight, 0),
       coalesce(l.expired, 0), coalesce(l.blocked, 0), coalesce(d.dead, 0), coalesce(l.blocked_keys, 0),
       coalesce(l.parked_keys, 0), {epoch("now()")} - l.due, {epoch("now()")} - l.created,
       {epoch("now()")} - l.late
  FROM live l FULL JOIN dead d USING (queue) ORDER BY 1""")

    def _probe(self, after: str) -> str:
        return f"""SELECT o.queue, o.entity_key AS key, o.id, ({STATE}) = ANY (:states::text[]) AS wanted
      FROM {self._outbox} o WHERE o.entity_key IS NOT NULL AND (o.queue, o.entity_key, o.id) > ({after})
     ORDER BY o.queue, o.entity_key, o.id LIMIT 1"""

    def _unserved(self) -> Statement:
        first, following = (
            "least("
            + ", ".join(
                f"(SELECT o.queue FROM {self._outbox} o WHERE o.entity_key IS {kind} AND o.queue {beyond} "
                "ORDER BY o.queue LIMIT 1)"
                for kind in ("NULL", "NOT NULL")
            )
            + ")::text"
            for beyond in (">= ''", "> q.queue")
        )
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

    def _read_keys(self) -> Statement:
        # From head to head, one probe of the index each, until enough are found or the queue asked for ends.
        first = f"coalesce(:queue::text, ''), '', '{BEGINNING[1]}'::bigint"
        here = "(:queue::text IS NULL OR x.queue = :queue::text)"
        return Statement(f"""WITH RECURSIVE walk AS (
  SELECT x.*, x.wanted::int::bigint AS found FROM ({self._probe(first)}) x WHERE {here}
  UNION ALL
  SELECT x.*, w.found + x.wanted::int
    FROM walk w CROSS JOIN LATERAL ({self._probe(f"w.queue, w.key, {LAST_ID}")}) x
   WHERE w.found < :limit::bigint AND {here})
SELECT {epoch("now()")}, f.waiting, {_HEAD} FROM {self._outbox} o CROSS JOIN LATERAL (
  SELECT count(*) AS waiting FROM {self._outbox} f
   WHERE f.queue = o.queue AND f.entity_key = o.entity_key AND f.entity_key IS NOT NULL AND f.id > o.id) f
 WHERE o.id = ANY (ARRAY(SELECT w.id FROM walk w WHERE w.wanted)) ORDER BY o.queue, o.entity_key""")

    def _head(self, condition: str = "true") -> str:
        # The conditions are on the locked row, so Postgres checks them on its newest version.
        return f"""WITH head AS MATERIALIZED (
  SELECT o.id FROM {self._outbox} o WHERE o.id = (
    SELECT h.id FROM {self._outbox} h
     WHERE h.queue = :queue::text AND h.entity_key = :key::text AND h.entity_key IS NOT NULL
     ORDER BY h.queue, h.entity_key, h.id LIMIT 1)
     AND o.lease_expires_at <= now() AND {condition} FOR UPDATE OF o SKIP LOCKED)"""

    def _retry(self) -> Statement:
        # A parked row had used up its attempts: the retry strategy and `max_deliveries` count from 0 again.
        return Statement(f"""{self._head()}
UPDATE {self._outbox} o SET {_DISOWN}, next_attempt_at = least(o.next_attempt_at, now()),
       headers = {sql_without_cause("o.headers")},
       attempts_count = CASE WHEN {_IS_PARKED} THEN 0 ELSE o.attempts_count END,
       deliveries_count = CASE WHEN {_IS_PARKED} THEN 0 ELSE o.deliveries_count END,
       first_attempt_at = CASE WHEN NOT {_IS_PARKED} THEN o.first_attempt_at END,
       last_attempt_at = CASE WHEN NOT {_IS_PARKED} THEN o.last_attempt_at END
 WHERE o.id = (SELECT head.id FROM head) RETURNING o.id""")

    def _release(self) -> Statement:
        # Deliveries count from 0: a row parked for `max_deliveries` would be parked again before it is handled.
        due = sql_number(sql_cause("o.headers"), "due")
        return Statement(f"""{self._head(_IS_PARKED)}
UPDATE {self._outbox} o SET {_DISOWN}, next_attempt_at = coalesce(to_timestamp({due}), now()),
       headers = {sql_without_cause("o.headers")}, deliveries_count = 0
 WHERE o.id = (SELECT head.id FROM head) RETURNING o.id""")

    def _park(self) -> Statement:
        cause = (
            f"jsonb_build_object('reason', '{BY_OPERATOR}', 'exception', :reason::text, "
            f"'parked_at', {epoch('now()')}, 'due', {epoch('o.next_attempt_at')})"
        )
        return Statement(f"""{self._head(f"NOT {_IS_PARKED}")}
UPDATE {self._outbox} o SET {set_parked(cause)} WHERE o.id = (SELECT head.id FROM head) RETURNING o.id""")

    def _skip(self) -> Statement:
        gone = f"""{self._head()},
gone AS (
  DELETE FROM {self._outbox} o WHERE o.id = (SELECT head.id FROM head) {returning_dead()})"""
        if self._dlq is None:
            return Statement(f"{gone}\nSELECT g.id FROM gone g WHERE :reason::text IS NOT NULL")
        cause = sql_cause("g.headers")
        parked_for = f"concat_ws(': ', nullif({cause} ->> 'reason', ''), nullif({cause} ->> 'exception', ''))"
        # The counts and times of the row stay.
        failures = f"""CROSS JOIN LATERAL (
      SELECT 'rejected' AS reason,
             :reason::text || coalesce(E'\\n\\nparked for ' || nullif({parked_for}, ''), '') AS exception,
             NULL::bigint AS attempts, NULL::float8 AS first_at, NULL::float8 AS last_at) l"""
        return Statement(f"{gone},\n{insert_dead(self._dlq, 'gone', failures)}\nSELECT g.id FROM gone g")
