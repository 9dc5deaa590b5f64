"""The statements for rows with a key.

The lease of a key lives on its head, the row with the lowest id. Earlier rows only disappear, never appear (see
`insert_keyed`), so a head stays the head until it is deleted; and the conditions of a claim stand on the locked row, so
Postgres checks them again on its newest version. Whoever settles locks the head under its token first: that is the
fence for all rows that its lease covers.

A claim is a walk from head to head, and a lease of those that it found. The strategies differ in the walk only.
"""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.ordering.key_cursor import LAST_ID
from faststream_outbox.storage.parking import sql_with_cause, sql_without_cause
from faststream_outbox.storage.postgres.statements.rows import (
    DEAD_ROW,
    DELIVERED,
    HELD,
    LEASE,
    ROW,
    UNLEASE,
    Statement,
    Statements,
    epoch,
)
from faststream_outbox.storage.schema.tables import quoted_name

# Where a walk's parameters stand: in the statement that also leases, behind the token and the seconds of the lease.
_WALK_ONLY: Final = 1
_WALK_AND_LEASE: Final = 3

# What a walk met: how many heads, the key of the last one, how many were wanted, in how many seconds the next one of
# the others is due, whether some were suspects; and the time.
_SUMMARY: Final = f"""count(*), (array_agg(w.key ORDER BY w.n DESC))[1], coalesce(sum(w.wanted::int), 0),
       {epoch("min(w.due) FILTER (WHERE w.mine AND NOT w.wanted)")} - {epoch("now()")},
       coalesce(bool_or(w.mine AND NOT w.free AND w.due <= now()), false), {epoch("now()")}"""

# The claim has counted the delivery of the head; those of the rows behind it are counted when they are settled.
_DELIVERIES: Final = f"CASE WHEN o.id = l.head THEN o.deliveries_count ELSE {DELIVERED} END"


def _wanted(suspects: str) -> str:
    """Say what a claim may take: of the rows that are due the free ones, or those whose lease ran out."""
    return f"""o.next_attempt_at <= now() AND CASE WHEN {suspects}::bool
             THEN o.acquired_token IS NOT NULL AND o.lease_expires_at <= now() ELSE o.acquired_token IS NULL END"""


class RunStatements:
    """The statements for the keys of one outbox."""

    def __init__(self, outbox: Table, dlq: Table | None, statements: Statements) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._dlq = None if dlq is None else quoted_name(dlq.name, dlq.schema)
        # Whoever wants to hold a key from outside writes this name.
        self._lock_name = ".".join(part for part in (outbox.schema, outbox.name) if part).replace("'", "''")
        self.keeps_dead = dlq is not None
        self._statements = statements
        self.claim = self._claim()
        self.claim_shards = self._claim(mine="hashtext(o.entity_key) & $10::int = ANY ($11::int[])")
        self.lock_keys = self._lock_keys()
        self.claim_locked = self._claim_locked()
        self.settle = self._settle()

    def _walk(self, first: int, mine: str) -> str:
        """Go from head to head, of which some are wanted: those that are due, free (or suspect), and ours to look at.

        Six parameters: the queue, the key and id to begin behind, how many heads are wanted and how many may be looked
        at, and whether suspects are wanted.
        """
        queue, key, row_id, keys, visits, suspects = (f"${first + n}" for n in range(6))

        def head(after: str) -> str:
            # One probe of the index: the next key's first row.
            return f"""SELECT o.entity_key AS key, o.id, o.acquired_token IS NULL AS free, {mine} AS mine,
           {mine} AND {_wanted(suspects)} AS wanted, greatest(o.next_attempt_at, o.lease_expires_at) AS due
      FROM {self._outbox} o
     WHERE o.queue = {queue}::text AND o.entity_key IS NOT NULL AND (o.entity_key, o.id) > ({after})
     ORDER BY o.entity_key, o.id LIMIT 1"""

        return f"""WITH RECURSIVE walk AS (
  SELECT x.*, 1 AS n, x.wanted::int AS found FROM ({head(f"{key}::text, {row_id}::bigint")}) x
  UNION ALL
  SELECT x.*, w.n + 1, w.found + x.wanted::int FROM walk w CROSS JOIN LATERAL ({head(f"w.key, {LAST_ID}")}) x
   WHERE w.n < {visits}::int AND w.found < {keys}::int)"""

    def _lease(self, heads: str, queue: str, suspects: str, rows_per_key: str) -> str:
        """Lease those of the heads that nobody has taken meanwhile, and hand them out with the rows behind them.

        A suspect comes alone. The rows behind it may have been in the hands of whoever died, too, and one of them may
        have been why: `acquired_at` without a token says so, and each of them comes alone when it is the head.
        """

        def behind(columns: str, limit: str) -> str:
            return f"""
    SELECT {columns} FROM {self._outbox} f
     WHERE f.queue = {queue}::text AND f.entity_key = h.entity_key AND f.entity_key IS NOT NULL AND f.id > h.id
     ORDER BY f.queue, f.entity_key, f.id LIMIT CASE WHEN {limit} THEN {rows_per_key}::int - 1 ELSE 0 END"""

        fresh = f"NOT {suspects}::bool AND h.deliveries_count = 0 AND h.acquired_at IS NULL"
        # Timers are handed out as heads only, whose lock tells whoever cancels one that it is in flight.
        return f"""heads AS MATERIALIZED (
  SELECT o.id, o.entity_key, o.deliveries_count, o.acquired_at FROM {self._outbox} o
   WHERE o.id = ANY ({heads}) AND {_wanted(suspects)}
     FOR UPDATE OF o SKIP LOCKED),
leased AS (
  UPDATE {self._outbox} o SET {LEASE} WHERE o.id = ANY (ARRAY(SELECT h.id FROM heads h)) RETURNING o.id AS head, {ROW}),
handed AS (
  SELECT * FROM leased
  UNION ALL
  SELECT h.id, {ROW} FROM heads h CROSS JOIN LATERAL ({behind("*", fresh)}) o),
marked AS (
  UPDATE {self._outbox} o SET acquired_at = now() WHERE o.id = ANY (ARRAY(
    SELECT f.id FROM heads h CROSS JOIN LATERAL ({behind("f.id", f"{suspects}::bool")} FOR UPDATE SKIP LOCKED) f)))"""

    def _claim(self, mine: str = "true") -> Statement:
        heads = "ARRAY(SELECT w.id FROM walk w WHERE w.wanted)"
        return Statement(f"""{self._walk(_WALK_AND_LEASE, mine)},
{self._lease(heads, queue="$3", suspects="$8", rows_per_key="$9")}
SELECT s.*, r.* FROM (SELECT {_SUMMARY} FROM walk w) s LEFT JOIN handed r ON true""")

    def _lock_keys(self) -> Statement:
        # A statement's snapshot is older than any lock that it takes, so it is the next one that leases.
        lock = f"pg_try_advisory_xact_lock(hashtext('{self._lock_name}'), hashtext($1::text || ':' || w.key))"
        locked = f"array_agg(w.id ORDER BY w.id) FILTER (WHERE CASE WHEN w.wanted THEN {lock} ELSE false END)"
        return Statement(f"{self._walk(_WALK_ONLY, 'true')}\nSELECT {_SUMMARY}, {locked} FROM walk w")

    def _claim_locked(self) -> Statement:
        lease = self._lease("$6::bigint[]", queue="$3", suspects="$4", rows_per_key="$5")
        return Statement(f"WITH {lease}\nSELECT r.* FROM handed r")

    def _settle(self) -> Statement:
        # $1, $2: heads and tokens. $3, $4: rows that are done, and the head of each. $5 to $10: rows to be tried again.
        # $11 to $18: outputs, each of a done row. $19 to $25: dead rows, where they are kept. The last: parked rows.
        return Statement(f"""WITH own AS MATERIALIZED (
  SELECT o.id, l.token FROM {self._outbox} o, unnest($1::bigint[], $2::uuid[]) AS l(id, token)
   WHERE {HELD} FOR UPDATE OF o),
gone AS (
  DELETE FROM {self._outbox} o USING unnest($3::bigint[], $4::bigint[]) AS d(id, head) JOIN own ON own.id = d.head
   WHERE o.id = ANY ($3::bigint[]) AND o.id = d.id RETURNING o.id),
again AS (
  UPDATE {self._outbox} o SET {UNLEASE}, deliveries_count = {_DELIVERIES},
         next_attempt_at = now() + make_interval(secs => l.delay), attempts_count = l.attempts,
         first_attempt_at = coalesce(to_timestamp(l.first_at), o.first_attempt_at, now()),
         last_attempt_at = coalesce(to_timestamp(l.last_at), now())
    FROM unnest($5::bigint[], $6::bigint[], $7::float8[], $8::bigint[], $9::float8[], $10::float8[])
         AS l(id, head, delay, attempts, first_at, last_at) JOIN own ON own.id = l.head
   WHERE o.id = ANY ($5::bigint[]) AND o.id = l.id RETURNING o.id),
{self._statements.insert_outputs("gone", "id", first=11, kind="bigint")}{self._bury()}{self._park()}
SELECT own.id, own.token FROM own""")

    def _bury(self) -> str:
        if self._dlq is None:
            return ""
        return f""",
dead AS (
  DELETE FROM {self._outbox} o USING unnest($19::bigint[], $20::bigint[]) AS l(id, head) JOIN own ON own.id = l.head
   WHERE o.id = ANY ($19::bigint[]) AND o.id = l.id RETURNING o.*, {_DELIVERIES} AS deliveries),
kept AS (
  INSERT INTO {self._dlq} ({DEAD_ROW})
  SELECT g.id, g.queue, g.entity_key, g.payload, {sql_without_cause("g.headers")}, g.timer_id,
         coalesce(l.attempts, g.attempts_count), g.deliveries, g.created_at,
         coalesce(to_timestamp(l.first_at), g.first_attempt_at),
         coalesce(to_timestamp(l.last_at), g.last_attempt_at), l.reason, l.exception
    FROM dead g
    JOIN unnest($19::bigint[], $21::text[], $22::text[], $23::bigint[], $24::float8[], $25::float8[])
         AS l(id, reason, exception, attempts, first_at, last_at) ON l.id = g.id)"""

    def _park(self) -> str:
        first = 19 if self._dlq is None else 26
        kinds = ("bigint", "bigint", "text", "text", "bigint", "float8", "float8")
        arrays = ", ".join(f"${n}::{each}[]" for n, each in enumerate(kinds, start=first))
        cause = f"jsonb_build_object('reason', l.reason, 'exception', l.exception, 'parked_at', {epoch('now()')})"
        return f""",
parked AS (
  UPDATE {self._outbox} o SET {UNLEASE}, deliveries_count = {_DELIVERIES},
         next_attempt_at = 'infinity', headers = {sql_with_cause("o.headers", cause)},
         attempts_count = coalesce(l.attempts, o.attempts_count),
         first_attempt_at = coalesce(to_timestamp(l.first_at), o.first_attempt_at),
         last_attempt_at = coalesce(to_timestamp(l.last_at), o.last_attempt_at)
    FROM unnest({arrays})
         AS l(id, head, reason, exception, attempts, first_at, last_at) JOIN own ON own.id = l.head
   WHERE o.id = ANY (${first}::bigint[]) AND o.id = l.id RETURNING o.id)"""
