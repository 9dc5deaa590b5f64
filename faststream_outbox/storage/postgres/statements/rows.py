"""The statements of the Postgres store, written once per table; those of publishing are in `insert_statements.py`.

They share four habits. The lease's token is compared inside the statement, never in the caller. Time is the database's
`now()`, and times travel as epoch seconds, because drivers fail on instants that `datetime` cannot hold. Batches come
as sorted arrays, so rows are locked in the order of their ids, on the store's own connections (see `LANE_SETTINGS`).
No input of a user's becomes part of a text: table names are quoted, the rest are parameters.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.ordering.states import BLOCKED, STATE
from faststream_outbox.storage.parking import sql_without_cause
from faststream_outbox.storage.postgres.statements.locks import lock_class, lock_stripe
from faststream_outbox.storage.schema.tables import quoted_name

# The settings of the store's own connections. A plan is made once and kept; made while the table was small it would be
# a scan of all of it, and the next burst of rows would meet it. So one plan is left to make: the index probed for each
# element of the array, hashed with the array's other columns. Stricter isolation would only make claimers fail at rows
# that they are meant to skip.
LANE_SETTINGS: Final = {
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_nestloop": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "enable_hashjoin": "on",
    "enable_indexscan": "on",
    "jit": "off",
}

# Among how many suspects of a queue, the first ones, the longest expired is looked for.
SUSPECTS_COMPARED: Final = 1000


@dataclass(frozen=True)
class Statement:
    """One statement with `$1`-style parameters, as asyncpg takes them."""

    text: str

    @cached_property
    def pyformat(self) -> str:
        """The same for drivers that take named parameters: `$1` is `%(p1)s`."""
        return self._with_parameters("s")

    @cached_property
    def psycopg(self) -> str:
        """The same for psycopg 3, in binary, which spares it the escaping of arrays: `$1` is `%(p1)b`."""
        return self._with_parameters("b")

    def _with_parameters(self, kind: str) -> str:
        def named(match: re.Match[str]) -> str:
            return f"%(p{match[1]}){kind}" if match[1] else match[0]

        return _PARAMETER.sub(named, self.text.replace("%", "%%"))


# A quoted identifier, which is left as it is, or a parameter.
_PARAMETER: Final = re.compile(r'"(?:[^"]|"")*"|\$(\d+)')


def epoch(column: str) -> str:
    """Write an instant as a number."""
    # EXTRACT would go through `numeric`, which costs the server more than all else about a column.
    return f"date_part('epoch', {column})"


# The fields of `OutboxRow`, in their order.
ROW: Final = ", ".join(
    [
        *("o.id", "o.queue", "o.entity_key", "o.payload", "o.headers::text", "o.timer_id"),
        *(epoch("o.created_at"), epoch("o.next_attempt_at"), epoch("o.acquired_at"), "o.acquired_token"),
        *(epoch("o.lease_expires_at"), "o.attempts_count", "o.deliveries_count"),
        *(epoch("o.first_attempt_at"), epoch("o.last_attempt_at")),
    ]
)
# The same of rows that were claimed just now: whoever claimed them knows their token.
CLAIMED_ROW: Final = ROW.replace("o.acquired_token", "NULL::uuid")
# What the dead-letter table keeps of a row.
DEAD_ROW: Final = """original_id, queue, entity_key, payload, headers, timer_id, attempts_count, deliveries_count,
         created_at, first_attempt_at, last_attempt_at, failure_reason, last_exception"""
# A delivery more than before, but for the last one that can be counted.
DELIVERED: Final = "least(o.deliveries_count, 9223372036854775806) + 1"
LEASE: Final = f"""acquired_at = now(), deliveries_count = {DELIVERED},
       lease_expires_at = now() + make_interval(secs => $2::float8), acquired_token = $1::uuid"""
# The rows of a batch that still are the caller's. The array stands twice: probing the index with all of it at once
# visits, and locks, in the order of ids; a plain join may as well walk the whole index.
HELD: Final = "o.id = ANY ($1::bigint[]) AND o.id = l.id AND o.acquired_token = l.token"
UNLEASE: Final = "acquired_token = NULL, acquired_at = NULL, lease_expires_at = '-infinity'"

PING: Final = Statement("SELECT 1")
WHO: Final = Statement("SELECT pg_backend_pid()")
_CURRENT: Final = ", ".join(f"current_setting('{name}')" for name in LANE_SETTINGS)
WHO_AND_HOW: Final = Statement(f"SELECT pg_backend_pid(), {_CURRENT}")
SET_CONFIG: Final = Statement(
    "SELECT set_config(s.name, s.value, false) FROM unnest($1::text[], $2::text[]) AS s(name, value)"
)
# The same for the rest of a transaction that has begun, whose isolation is what it is.
_LOCAL: Final = ", ".join(
    f"set_config('{name}', '{value}', true)"
    for name, value in LANE_SETTINGS.items()
    if name != "default_transaction_isolation"
)
SET_LOCAL: Final = Statement(f"SELECT {_LOCAL}")
# Postgres keeps one of equal notifications in a transaction.
NOTIFY: Final = Statement("SELECT pg_notify($1::text, n.payload)::text FROM unnest($2::text[]) AS n(payload)")


class Statements:
    """The statements for one outbox and, where there is one, its dead-letter table."""

    def __init__(self, outbox: Table, dlq: Table | None = None) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._dlq = None if dlq is None else quoted_name(dlq.name, dlq.schema)
        self._lock_class = lock_class(self._outbox)
        self.read = self._read()
        self.look = self._look()
        self.claim = self._claim()
        self.claim_suspect = self._claim_suspect()
        self.renew = self._renew()
        self.release = self._release()
        self.delete = self._delete()
        self.delete_batch = self._delete_batch()
        self.lock = self._lock()
        self.delete_and_insert = self._delete_and_insert()
        self.retry = self._retry()
        self.bury = None if self._dlq is None else self._bury()
        self.next_due = self._next_due()
        self.stats = self._stats()

    def _read(self) -> Statement:
        return Statement(f"""SELECT {ROW} FROM {self._outbox} o
 WHERE $1::text IS NULL OR o.queue = $1::text ORDER BY o.id LIMIT $2::bigint""")

    def _look(self) -> dict[str, Statement]:
        statements = {f"The outbox {self._outbox}": Statement(f"SELECT {ROW} FROM {self._outbox} o LIMIT 0")}
        if self._dlq is not None:
            dead = Statement(f"SELECT {DEAD_ROW} FROM {self._dlq} LIMIT 0")
            statements[f"The dead-letter table {self._dlq}"] = dead
        return statements

    def _claim(self) -> Statement:
        # Nothing is sorted above the locks, so a row is locked when it is taken and no row is locked for nothing.
        return Statement(f"""WITH ready AS (
  SELECT o.id FROM unnest($3::text[], $4::bigint[], $5::float8[], $6::bigint[]) AS q(queue, quota, at, id)
   CROSS JOIN LATERAL (
    SELECT o.id FROM {self._outbox} o
     WHERE o.queue = q.queue AND o.entity_key IS NULL AND o.next_attempt_at <= now() AND o.acquired_token IS NULL
       AND (o.next_attempt_at, o.id) >= (to_timestamp(q.at), q.id)
     ORDER BY o.next_attempt_at, o.id LIMIT q.quota FOR UPDATE SKIP LOCKED) o
   LIMIT $7::bigint)
UPDATE {self._outbox} o SET {LEASE}
 WHERE o.id = ANY (ARRAY(SELECT ready.id FROM ready)) RETURNING {CLAIMED_ROW}""")

    def _claim_suspect(self) -> Statement:
        # Up to where claims have come: what was claimed lies before that, and the backlog behind it is not read. The
        # longest expired first, so that one which kills its process every time does not keep the others from theirs.
        # The conditions stand twice: the search reads a snapshot, the lock checks the newest version.
        return Statement(f"""WITH seen AS (
  SELECT o.id FROM unnest($3::text[], $4::float8[], $5::bigint[]) AS q(queue, at, id)
   CROSS JOIN LATERAL (
    SELECT o.id FROM {self._outbox} o
     WHERE o.queue = q.queue AND o.entity_key IS NULL AND o.next_attempt_at <= now()
       AND (o.next_attempt_at, o.id) <= (to_timestamp(q.at), q.id)
       AND o.acquired_token IS NOT NULL AND o.lease_expires_at <= now()
     ORDER BY o.next_attempt_at, o.id LIMIT {SUSPECTS_COMPARED}) o),
one AS (
  SELECT o.id FROM {self._outbox} o
   WHERE o.id = ANY (ARRAY(SELECT seen.id FROM seen))
     AND o.acquired_token IS NOT NULL AND o.lease_expires_at <= now()
   ORDER BY o.lease_expires_at, o.id LIMIT 1 FOR UPDATE SKIP LOCKED)
UPDATE {self._outbox} o SET {LEASE}
 WHERE o.id = ANY (ARRAY(SELECT one.id FROM one)) RETURNING {CLAIMED_ROW}""")

    def _renew(self) -> Statement:
        # SKIP LOCKED: a row that somebody holds locked must not keep the others from being renewed in time.
        return Statement(f"""WITH mine AS MATERIALIZED (
  SELECT o.id FROM {self._outbox} o WHERE o.id = ANY ($1::bigint[]) AND o.acquired_token = ANY ($2::uuid[])
     FOR UPDATE SKIP LOCKED)
UPDATE {self._outbox} o SET lease_expires_at = now() + make_interval(secs => $3::float8)
  FROM unnest($1::bigint[], $2::uuid[]) AS l(id, token)
 WHERE o.id = ANY (ARRAY(SELECT mine.id FROM mine)) AND o.id = l.id AND o.acquired_token = l.token
RETURNING l.id, l.token""")

    def _release(self) -> Statement:
        # A suspect keeps a token, whose lease is over: that is what makes it one. Another one, so that we let go of it.
        return Statement(f"""UPDATE {self._outbox} o SET acquired_at = NULL, deliveries_count = o.deliveries_count - 1,
       acquired_token = CASE WHEN l.suspect THEN gen_random_uuid() END,
       lease_expires_at = CASE WHEN l.suspect THEN now() ELSE '-infinity' END
  FROM unnest($1::bigint[], $2::uuid[], $3::bool[]) AS l(id, token, suspect)
 WHERE {HELD} RETURNING l.id, l.token""")

    def _delete(self) -> Statement:
        return Statement(f"""DELETE FROM {self._outbox} o USING unnest($1::bigint[], $2::uuid[]) AS l(id, token)
 WHERE {HELD} RETURNING l.id, l.token""")

    def _delete_batch(self) -> Statement:
        # Most rows come here, and one array of numbers is sooner read than a row for each of them.
        return Statement(f"""WITH gone AS (
  DELETE FROM {self._outbox} o USING unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY AS l(id, token, n)
   WHERE {HELD} RETURNING l.n)
SELECT array_agg(g.n) FROM gone g""")

    def _lock(self) -> Statement:
        return Statement(f"""SELECT o.id FROM {self._outbox} o, unnest($1::bigint[], $2::uuid[]) AS l(id, token)
 WHERE {HELD} FOR UPDATE OF o""")

    def _delete_and_insert(self) -> Statement:
        # Rows come in groups of a known size: a group is deleted, and its outputs inserted, if and only if all of its
        # leases hold.
        return Statement(f"""WITH held AS MATERIALIZED (
  SELECT o.id, l.token, l.grp, l.size
    FROM {self._outbox} o, unnest($1::bigint[], $2::uuid[], $3::int[], $4::int[]) AS l(id, token, grp, size)
   WHERE {HELD} FOR UPDATE OF o),
whole AS MATERIALIZED (SELECT h.grp FROM held h GROUP BY h.grp HAVING count(*) = max(h.size)),
gone AS (
  DELETE FROM {self._outbox} o USING held h JOIN whole w USING (grp)
   WHERE o.id = ANY ($1::bigint[]) AND o.id = h.id RETURNING h.id, h.token, grp),
done AS MATERIALIZED (SELECT DISTINCT g.grp FROM gone g),
{self.insert_outputs("done", "grp", first=5, kind="int")}
SELECT g.id, g.token FROM gone g""")

    def insert_outputs(self, done: str, column: str, *, first: int, kind: str) -> str:
        """Write the parts of a statement that insert rows for those that another part has deleted.

        The locks and the sort read all of what was deleted, so all rows are gone (a timer may set itself anew) and all
        stripes locked before the first id is drawn. The rows come as arrays, from parameter `first` on.
        """
        stripe = lock_stripe("r.queue", "r.key")
        kinds = (kind, "text", "text", "bytea", "text", "text", "float8", "float8")
        arrays = ", ".join(f"${n}::{each}[]" for n, each in enumerate(kinds, start=first))
        return f"""input AS MATERIALIZED (
  SELECT r.* FROM {done} d
    JOIN unnest({arrays})
         WITH ORDINALITY AS r(of, queue, key, payload, headers, timer_id, delay, due, n) ON r.of = d.{column}),
locked AS MATERIALIZED (
  SELECT count(pg_advisory_xact_lock({self._lock_class}, s.stripe)) AS n
    FROM (SELECT DISTINCT {stripe} AS stripe FROM input r WHERE r.key IS NOT NULL ORDER BY 1) s),
made AS (
  INSERT INTO {self._outbox} (queue, entity_key, payload, headers, timer_id, next_attempt_at)
  SELECT r.queue, r.key, r.payload, r.headers::jsonb, r.timer_id,
         coalesce(to_timestamp(r.due), now() + make_interval(secs => r.delay), now())
    FROM locked CROSS JOIN input r ORDER BY r.n
  ON CONFLICT (queue, timer_id) WHERE timer_id IS NOT NULL DO NOTHING)"""

    def _retry(self) -> Statement:
        return Statement(f"""UPDATE {self._outbox} o SET {UNLEASE},
       next_attempt_at = now() + make_interval(secs => l.delay), attempts_count = l.attempts,
       first_attempt_at = coalesce(to_timestamp(l.first_at), o.first_attempt_at, now()),
       last_attempt_at = coalesce(to_timestamp(l.last_at), now())
  FROM unnest($1::bigint[], $2::uuid[], $3::float8[], $4::bigint[], $5::float8[], $6::float8[])
       AS l(id, token, delay, attempts, first_at, last_at)
 WHERE {HELD} RETURNING l.id, l.token""")

    def _bury(self) -> Statement:
        # The texts join after the rows are locked: a hash that spilled to disk would not keep the order of ids.
        return Statement(f"""WITH gone AS (
  DELETE FROM {self._outbox} o USING unnest($1::bigint[], $2::uuid[]) AS l(id, token)
   WHERE {HELD} RETURNING o.id, o.acquired_token, o.queue, o.entity_key, o.payload, o.headers, o.timer_id,
         o.attempts_count, o.deliveries_count, o.created_at, o.first_attempt_at, o.last_attempt_at),
kept AS (
  INSERT INTO {self._dlq} ({DEAD_ROW})
  SELECT g.id, g.queue, g.entity_key, g.payload, {sql_without_cause("g.headers")}, g.timer_id,
         coalesce(l.attempts, g.attempts_count), g.deliveries_count, g.created_at,
         coalesce(to_timestamp(l.first_at), g.first_attempt_at),
         coalesce(to_timestamp(l.last_at), g.last_attempt_at), l.reason, l.exception
    FROM gone g
    JOIN unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::bigint[], $6::float8[], $7::float8[])
         AS l(id, token, reason, exception, attempts, first_at, last_at) ON l.id = g.id AND l.token = g.acquired_token)
SELECT g.id, g.acquired_token FROM gone g""")

    def _next_due(self) -> Statement:
        # From the mark on, like a claim: what lies before it is a sweep's to find.
        return Statement(f"""SELECT min(o.at) - {epoch("now()")}
  FROM unnest($1::text[], $2::float8[], $3::bigint[]) AS q(queue, at, id)
 CROSS JOIN LATERAL (
  SELECT {epoch("o.next_attempt_at")} AS at FROM {self._outbox} o
   WHERE o.queue = q.queue AND o.entity_key IS NULL AND o.acquired_token IS NULL
     AND (o.next_attempt_at, o.id) >= (to_timestamp(q.at), q.id)
   ORDER BY o.next_attempt_at, o.id LIMIT 1) o""")

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
told AS (
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
    FROM told t GROUP BY t.queue),
dead(queue, dead) AS ({dead})
SELECT coalesce(l.queue, d.queue), coalesce(l.ready, 0), coalesce(l.scheduled, 0), coalesce(l.in_flight, 0),
       coalesce(l.expired, 0), coalesce(l.blocked, 0), coalesce(d.dead, 0), coalesce(l.blocked_keys, 0),
       coalesce(l.parked_keys, 0), {epoch("now()")} - l.due, {epoch("now()")} - l.created,
       {epoch("now()")} - l.late
  FROM live l FULL JOIN dead d USING (queue) ORDER BY 1""")
