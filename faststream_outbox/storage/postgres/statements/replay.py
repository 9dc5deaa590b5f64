"""The statements that put dead letters back into the outbox, those with a key before what waits of their key.

Ids are the order of a key, so a row goes back under its original id. Claims rely on it that no row appears before the
head of a key, or between the rows of a run, so two statements in one transaction keep that promise for them.

The first locks the stripes of the keys, as publishers do: no row of these keys is committed until the replay is. The
second one, whose snapshot is younger than the locks, locks each head; a key whose head is leased, or locked, is left
alone. Then it deletes the head and inserts it again under its own id, beside the rows that go back. A claim with an
older snapshot finds its version of the head deleted and takes nothing of the key. An UPDATE would not do: such a claim
would follow the row to its new version and lease it.

Neither statement waits for a lock that a publisher or a claim holds, so a replay cannot be part of a deadlock of keys.
"""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.ordering.key_cursor import FIRST_ID
from faststream_outbox.storage.parking import sql_without_cause
from faststream_outbox.storage.postgres.statements.insert import lock_class, lock_stripe
from faststream_outbox.storage.postgres.statements.statement import Statement
from faststream_outbox.storage.schema.tables import notify_channel, quoted_name

# What a head gets that is inserted again. One whose lease ran out stays a suspect, under a new token, so that the
# process that had it cannot settle it. Its `acquired_at` keeps it out of the run of the rows that are now before it.
_REWRITTEN: Final = {
    "acquired_token": "CASE WHEN m.acquired_token IS NOT NULL THEN gen_random_uuid() END",
    "acquired_at": "CASE WHEN m.acquired_token IS NULL THEN m.acquired_at ELSE coalesce(m.acquired_at, now()) END",
}

# Well below `deadlock_timeout`, one second by default: the replay fails and is tried again, not the publisher.
LIMIT_WAITS: Final = "set_config('lock_timeout', '300ms', true)"


class ReplayStatements:
    """The statements that replay dead letters, for one outbox and its dead-letter table."""

    def __init__(self, outbox: Table, dlq: Table) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._dlq = quoted_name(dlq.name, dlq.schema)
        self._channel = notify_channel(outbox.name, outbox.schema).replace("'", "''")
        # Columns of the user's own, too; those that Postgres computes cannot be inserted.
        self._columns = [f'"{column.name}"' for column in outbox.columns if column.computed is None]
        self.lock = self._lock()
        self.replay = self._replay()
        self.edit = self._edit()
        self.keys = self._keys()

    def _lock(self) -> Statement:
        # It tries each lock once: waiting while it holds others could make a deadlock with a publisher.
        return Statement(f"""WITH letters AS MATERIALIZED (
  SELECT d.id, CASE WHEN d.entity_key IS NOT NULL THEN {lock_stripe("d.queue", "d.entity_key")} END AS stripe
    FROM {self._dlq} d WHERE d.id = ANY (:ids::bigint[])),
stripes AS MATERIALIZED (
  SELECT s.stripe, pg_try_advisory_xact_lock({lock_class(self._outbox)}, s.stripe) AS locked
    FROM (SELECT DISTINCT l.stripe FROM letters l WHERE l.stripe IS NOT NULL) s)
SELECT current_setting('transaction_isolation'), array_agg(l.id ORDER BY l.id),
       array_agg(l.id ORDER BY l.id) FILTER (WHERE l.stripe IN (SELECT s.stripe FROM stripes s WHERE NOT s.locked))
  FROM letters l""")

    def _drawn(self) -> str:
        """Return SQL for the last id that the outbox has drawn; NULL if that cannot be known."""
        table = self._outbox.replace("'", "''")
        return f"""SELECT CASE WHEN has_sequence_privilege(s.name, 'USAGE, SELECT')
              THEN coalesce(pg_sequence_last_value(s.name::regclass), 0) END AS id
    FROM (SELECT pg_get_serial_sequence('{table}', 'id') AS name) s"""

    def _replay(self) -> Statement:
        # A comparison of rows leaves one index to find a head by. Tests with IN are in lists of columns, not in
        # conditions: there Postgres hashes what they search, whatever it estimates.
        rewritten = ", ".join(_REWRITTEN.get(name.strip('"'), f"m.{name}") for name in self._columns)
        return Statement(f"""WITH letters AS MATERIALIZED (
  SELECT d.id, d.original_id, d.queue, d.entity_key, d.payload, d.headers, d.timer_id, d.created_at
    FROM {self._dlq} d WHERE d.id = ANY (:ids::bigint[]) FOR UPDATE OF d SKIP LOCKED),
drawn AS MATERIALIZED ({self._drawn()}),
checked AS MATERIALIZED (
  SELECT l.*, (SELECT CASE WHEN (h.queue, h.entity_key) = (l.queue, l.entity_key) THEN h.id END
                 FROM {self._outbox} h
                WHERE h.entity_key IS NOT NULL
                  AND (h.queue, h.entity_key, h.id) >= (l.queue, l.entity_key, {FIRST_ID})
                ORDER BY h.queue, h.entity_key, h.id LIMIT 1) AS head,
         CASE WHEN row_number() OVER (PARTITION BY l.original_id ORDER BY l.id) > 1
                OR (SELECT o.id FROM {self._outbox} o WHERE o.id = l.original_id) IS NOT NULL THEN 'id_taken'
              WHEN l.original_id > (SELECT drawn.id FROM drawn) THEN 'id_not_drawn'
              WHEN l.timer_id IS NOT NULL
               AND (row_number() OVER (PARTITION BY l.queue, l.timer_id ORDER BY l.id) > 1
                    OR (SELECT t.id FROM {self._outbox} t WHERE t.queue = l.queue AND t.timer_id = l.timer_id LIMIT 1)
                       IS NOT NULL) THEN 'timer_waits' END AS why
    FROM letters l),
heads AS MATERIALIZED (
  SELECT o.id, o.queue, o.entity_key FROM {self._outbox} o
   WHERE o.id = ANY (ARRAY(SELECT DISTINCT c.head FROM checked c WHERE c.why IS NULL AND c.head IS NOT NULL))
     AND o.lease_expires_at <= now() FOR UPDATE OF o SKIP LOCKED),
judged AS MATERIALIZED (
  SELECT c.id, c.original_id, c.queue, c.entity_key, c.payload, c.headers, c.timer_id, c.created_at, c.head,
         CASE WHEN c.why IS NOT NULL THEN c.why
              WHEN c.head IS NULL OR (c.head, c.queue, c.entity_key) IN (
                SELECT h.id, h.queue, h.entity_key FROM heads h) THEN NULL
              ELSE 'in_flight' END AS why
    FROM checked c),
moved AS (
  DELETE FROM {self._outbox} o
   WHERE o.id = ANY (ARRAY(SELECT DISTINCT j.head FROM judged j WHERE j.why IS NULL AND j.head IS NOT NULL))
RETURNING {", ".join(f"o.{name}" for name in self._columns)}),
rewritten AS (
  INSERT INTO {self._outbox} ({", ".join(self._columns)}) SELECT {rewritten} FROM moved m),
made AS (
  INSERT INTO {self._outbox} (id, queue, entity_key, payload, headers, timer_id, created_at, next_attempt_at)
  SELECT j.original_id, j.queue, j.entity_key, j.payload, {sql_without_cause("j.headers")}, j.timer_id, j.created_at,
         (SELECT clock_timestamp())
    FROM judged j WHERE j.why IS NULL ORDER BY j.original_id
  ON CONFLICT DO NOTHING RETURNING id),
done AS MATERIALIZED (
  SELECT j.id, j.queue, CASE WHEN j.why IS NOT NULL THEN j.why
              WHEN j.original_id IN (SELECT m.id FROM made m) THEN NULL
              WHEN j.timer_id IS NULL THEN 'id_taken' ELSE 'timer_waits' END AS why
    FROM judged j),
gone AS (
  DELETE FROM {self._dlq} d WHERE d.id = ANY (ARRAY(SELECT e.id FROM done e WHERE e.why IS NULL)))
SELECT array_agg(e.id ORDER BY e.id) FILTER (WHERE e.why IS NULL),
       array_agg(e.id ORDER BY e.id) FILTER (WHERE e.why IS NOT NULL),
       array_agg(e.why ORDER BY e.id) FILTER (WHERE e.why IS NOT NULL),
       (SELECT count(pg_notify('{self._channel}', q.queue))
          FROM (SELECT DISTINCT e.queue FROM done e WHERE e.why IS NULL) q)
  FROM done e""")

    def _edit(self) -> Statement:
        return Statement(f"""UPDATE {self._outbox} o SET payload = :payload::bytea, headers = :headers::text::jsonb
 WHERE o.id = :id::bigint RETURNING o.id""")

    def _keys(self) -> Statement:
        return Statement(f"SELECT d.id, d.queue, d.entity_key FROM {self._dlq} d WHERE d.id = ANY (:ids::bigint[])")
