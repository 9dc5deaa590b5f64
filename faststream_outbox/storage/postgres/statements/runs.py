"""The statements that claim and settle rows with a key.

The lease of a key is on its head, the row with the lowest id. Rows before the head only disappear and never appear (see
`lock_stripe`), so a head stays the head until it is deleted. (A replay of dead letters, which inserts before a head,
deletes that head and inserts it again: see `replay.py`.) The conditions of a claim are on the locked row, so
Postgres checks them again on its newest version. A settle first locks the head under its token: that is the fence for
all rows that the lease covers.

A claim walks from head to head and leases the heads it wants. The strategies differ only in the walk.
"""

from itertools import product, starmap
from typing import Final, NamedTuple

from sqlalchemy import Table

from faststream_outbox.storage.ordering.key_cursor import FIRST_ID, LAST_ID
from faststream_outbox.storage.postgres.statements.insert import insert_outputs
from faststream_outbox.storage.postgres.statements.settle import (
    FAILURE,
    OF_RUN,
    RETRY,
    SET_RETRY,
    insert_dead,
    returning_dead,
    set_parked,
)
from faststream_outbox.storage.postgres.statements.statement import (
    COME_BACK,
    COMES_BACK,
    DELIVERED,
    LEASE,
    LEASES,
    OVER,
    RELEASE_CLAIM,
    ROW,
    SIZE,
    Columns,
    Statement,
    epoch,
    held,
    within_bytes,
)
from faststream_outbox.storage.schema.tables import quoted_name

# The batches of a settle; each row names the head whose lease covers it.
DONE: Final = Columns("done", **OF_RUN)
RETRIED: Final = Columns("retried", **OF_RUN, **RETRY)
BURIED: Final = Columns("buried", **OF_RUN, **FAILURE)
PARKED: Final = Columns("parked", **OF_RUN, **FAILURE)
# The rows to which the leases of their heads pass.
NEXT: Final = Columns("next", **OF_RUN)

# What a walk found: how many heads, the key of the last one, how many were wanted, in how many seconds the next of the
# others is due, whether some were suspects; and the time.
_SUMMARY: Final = f"""count(*), (array_agg(w.key ORDER BY w.n DESC))[1], coalesce(sum(w.wanted::int), 0),
       {epoch("min(w.due) FILTER (WHERE w.mine AND NOT w.wanted)")} - {epoch("now()")},
       coalesce(bool_or(w.mine AND w.over), false), {epoch("now()")}"""

# How many of the wanted heads were still free; those too that are left out because the claim is full.
_LOCKED: Final = "(SELECT count(*) FROM free)"

# What a claim may lease: rows that are due and free or, if suspects are wanted, whose lease ran out.
_WANTED: Final = """o.next_attempt_at <= now() AND CASE WHEN :suspects::bool
             THEN o.acquired_token IS NOT NULL AND o.lease_expires_at <= now() ELSE o.acquired_token IS NULL END"""

# The claim has counted the delivery of the head; those of the rows behind it are counted when they are settled.
_DELIVERIES: Final = f"CASE WHEN o.id = l.head THEN o.deliveries_count ELSE {DELIVERED} END"


class RunKind(NamedTuple):
    """What the settle of a run has besides deletions: outputs to insert, and a lease that passes to the next row."""

    outputs: bool
    passes: bool


def _covered(rows: Columns) -> str:
    """Return the condition for the rows `l` of a batch; like `held`, it probes the index with the whole array."""
    return f"o.id = ANY ({rows['id']}) AND o.id = l.id"


class RunStatements:
    """The statements that claim and settle runs of keys, for one outbox."""

    def __init__(self, outbox: Table, dlq: Table | None = None) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self._dlq = None if dlq is None else quoted_name(dlq.name, dlq.schema)
        # Public: a program that wants to hold a key from outside locks this name.
        self._lock_name = ".".join(part for part in (outbox.schema, outbox.name) if part).replace("'", "''")
        self.claim = self._claim()
        self.claim_shards = self._claim(mine="hashtext(o.entity_key) & :shard_mask::int = ANY (:shards::int[])")
        self.lock_keys = self._lock_keys()
        self.queues_with_keys = self._queues_with_keys()
        self.claim_locked = self._claim_locked()
        self.recover = self._recover()
        self.give_back = self._give_back()
        self.settles = {kind: self._settle(kind) for kind in starmap(RunKind, product((False, True), repeat=2))}

    def _walk(self, mine: str = "true", wanted: str = _WANTED) -> str:
        """Return a walk from head to head that counts those that are wanted, and `mine` to claim."""

        def head(after: str) -> str:
            # One probe of the index: the next key's first row.
            return f"""SELECT o.entity_key AS key, o.id, {mine} AS mine, {mine} AND {wanted} AS wanted,
           o.next_attempt_at <= now() AND {OVER} AS over, greatest(o.next_attempt_at, o.lease_expires_at) AS due
      FROM {self._outbox} o
     WHERE o.queue = :queue::text AND o.entity_key IS NOT NULL AND (o.entity_key, o.id) > ({after})
     ORDER BY o.entity_key, o.id LIMIT 1"""

        return f"""WITH RECURSIVE walk AS (
  SELECT x.*, 1 AS n, x.wanted::int AS found FROM ({head(":after_key::text, :after_id::bigint")}) x
  UNION ALL
  SELECT x.*, w.n + 1, w.found + x.wanted::int FROM walk w CROSS JOIN LATERAL ({head(f"w.key, {LAST_ID}")}) x
   WHERE w.n < :visits::int AND w.found < :keys::int)"""

    def _of_key(self, columns: str, ids: str, limit: str) -> str:
        """Return the first of those rows of the key of `h` that have these ids."""
        return f"""
    SELECT {columns} FROM {self._outbox} f
     WHERE f.queue = :queue::text AND f.entity_key = h.entity_key AND f.entity_key IS NOT NULL AND {ids}
     ORDER BY f.queue, f.entity_key, f.id LIMIT {limit}"""

    def _lease(self, heads: str, condition: str = "true") -> str:
        """Return the parts that lease those heads that are still free, and return them with the rows behind them.

        A suspect comes alone. The process that lost it may have held the rows behind it too, and one of those may have
        killed the process: they get an `acquired_at` without a token, and each comes alone once it is the head.
        Whole runs come, the oldest head first, while `:max_rows` and `:max_bytes` allow; only their heads are leased.
        """
        of_key = self._of_key
        fresh = "NOT :suspects::bool AND h.deliveries_count = 0 AND h.acquired_at IS NULL"
        run = of_key("*", "f.id >= h.id", f"CASE WHEN {fresh} THEN :rows_per_key::int ELSE 1 END")
        behind = of_key("f.id", "f.id > h.id", "CASE WHEN :suspects::bool THEN :rows_per_key::int - 1 ELSE 0 END")
        runs = (
            f"SELECT h.id AS head, o.*, {SIZE} AS size FROM free h CROSS JOIN LATERAL ({run}) o LIMIT :max_rows::bigint"
        )
        return f"""free AS MATERIALIZED (
  SELECT o.id, o.entity_key, o.deliveries_count, o.acquired_at FROM {self._outbox} o
   WHERE o.id = ANY ({heads}) AND {_WANTED} AND {condition}
     FOR UPDATE OF o SKIP LOCKED),
chosen AS MATERIALIZED {within_bytes(f"({runs})")},
leased AS (
  UPDATE {self._outbox} o SET {LEASE} WHERE o.id = ANY (ARRAY(SELECT c.id FROM chosen c WHERE c.id = c.head))
RETURNING o.id AS head, {ROW}),
handed AS (
  SELECT * FROM leased
  UNION ALL
  SELECT o.head, {ROW} FROM chosen o WHERE o.id > o.head),
marked AS (
  UPDATE {self._outbox} o SET acquired_at = now() WHERE o.id = ANY (ARRAY(
    SELECT f.id FROM free h CROSS JOIN LATERAL ({behind} FOR UPDATE SKIP LOCKED) f)))"""

    def _claim(self, mine: str = "true") -> Statement:
        return Statement(f"""{self._walk(mine)},
{self._lease("ARRAY(SELECT w.id FROM walk w WHERE w.wanted)")}
SELECT s.*, {_LOCKED}, r.* FROM (SELECT {_SUMMARY} FROM walk w) s LEFT JOIN handed r ON true""")

    def _recover(self) -> Statement:
        # The process that died may have held the rows behind a head too, and one of those may have killed it: they get
        # an `acquired_at`, as behind a suspect, so each comes alone of its key.
        return Statement(f"""{self._walk(wanted=COMES_BACK)},
back AS MATERIALIZED (
  SELECT o.id, o.entity_key FROM {self._outbox} o
   WHERE o.id = ANY (ARRAY(SELECT w.id FROM walk w WHERE w.wanted)) AND {COMES_BACK} FOR UPDATE OF o SKIP LOCKED),
changed AS (
  UPDATE {self._outbox} o SET {COME_BACK} WHERE o.id = ANY (ARRAY(SELECT b.id FROM back b))),
marked AS (
  UPDATE {self._outbox} o SET acquired_at = now() WHERE o.id = ANY (ARRAY(
    SELECT f.id FROM back h CROSS JOIN LATERAL ({self._of_key("f.id", "f.id > h.id", ":rows_per_key::int - 1")}
       FOR UPDATE SKIP LOCKED) f)))
SELECT count(*) FROM back""")

    def _give_back(self) -> Statement:
        return Statement(f"""{self._walk(wanted="o.acquired_token IS NOT DISTINCT FROM :token::uuid")}
UPDATE {self._outbox} o SET {RELEASE_CLAIM}
 WHERE o.id = ANY (ARRAY(SELECT w.id FROM walk w WHERE w.wanted)) AND o.acquired_token = :token::uuid RETURNING 1""")

    def _queues_with_keys(self) -> Statement:
        # One probe of the index for each queue.
        return Statement(f"""SELECT q.queue FROM unnest(:queues::text[]) AS q(queue)
 CROSS JOIN LATERAL (
  SELECT o.id FROM {self._outbox} o
   WHERE o.queue = q.queue AND o.entity_key IS NOT NULL ORDER BY o.entity_key, o.id LIMIT 1) o""")

    def _lock_keys(self) -> Statement:
        # A statement's snapshot is older than any lock that it takes, so a second statement leases.
        lock = f"pg_try_advisory_xact_lock(hashtext('{self._lock_name}'), hashtext(:queue::text || ':' || w.key))"
        locked = f"array_agg(w.id ORDER BY w.id) FILTER (WHERE CASE WHEN w.wanted THEN {lock} ELSE false END)"
        return Statement(f"{self._walk()}\nSELECT {_SUMMARY}, {locked} FROM walk w")

    def _claim_locked(self) -> Statement:
        # The heads were found by the statement before. A replay may have put rows before them since, and then has
        # inserted them again under the same ids.
        first = f"""SELECT f.id FROM {self._outbox} f
     WHERE f.entity_key IS NOT NULL AND (f.queue, f.entity_key, f.id) >= (:queue::text, o.entity_key, {FIRST_ID})
     ORDER BY f.queue, f.entity_key, f.id LIMIT 1"""
        return Statement(f"""WITH {self._lease(":heads::bigint[]", f"o.id = ({first})")}
SELECT {_LOCKED}, r.* FROM (SELECT) s LEFT JOIN handed r ON true""")

    def _settle(self, kind: RunKind) -> Statement:
        # Only a statement with outputs has an INSERT: Postgres asks for that right even if no row is inserted.
        return Statement(f"""WITH own AS MATERIALIZED (
  SELECT o.id, l.token, o.lease_expires_at FROM {self._outbox} o, {LEASES.unnest("l")}
   WHERE {held(LEASES)} FOR UPDATE OF o),
gone AS (
  DELETE FROM {self._outbox} o USING {DONE.unnest("l")} JOIN own ON own.id = l.head
   WHERE {_covered(DONE)} RETURNING o.id),
again AS (
  UPDATE {self._outbox} o SET {SET_RETRY}, deliveries_count = {_DELIVERIES}
    FROM {RETRIED.unnest("l")} JOIN own ON own.id = l.head
   WHERE {_covered(RETRIED)} RETURNING o.id),
{insert_outputs(self._outbox, "gone", "id") + "," if kind.outputs else ""}
{self._pass() if kind.passes else ""}{self._bury()}parked AS (
  UPDATE {self._outbox} o SET {self._set_parked()}, deliveries_count = {_DELIVERIES}
    FROM {PARKED.unnest("l")} JOIN own ON own.id = l.head
   WHERE {_covered(PARKED)} RETURNING o.id)
SELECT own.id, own.token FROM own""")

    def _pass(self) -> str:
        return f"""passed AS (
  UPDATE {self._outbox} o SET acquired_at = now(), deliveries_count = {DELIVERED},
         lease_expires_at = own.lease_expires_at, acquired_token = own.token
    FROM {NEXT.unnest("l")} JOIN own ON own.id = l.head
   WHERE {_covered(NEXT)}),
"""

    def _bury(self) -> str:
        if self._dlq is None:
            return ""
        failures = f"JOIN {BURIED.unnest('l')} ON l.id = g.id"
        return f"""dead AS (
  DELETE FROM {self._outbox} o USING {BURIED.unnest("l", "id", "head")} JOIN own ON own.id = l.head
   WHERE {_covered(BURIED)} {returning_dead(_DELIVERIES)}),
{insert_dead(self._dlq, "dead", failures)},
"""

    @staticmethod
    def _set_parked() -> str:
        cause = f"jsonb_build_object('reason', l.reason, 'exception', l.exception, 'parked_at', {epoch('now()')})"
        return f"""{set_parked(cause)}, attempts_count = coalesce(l.attempts, o.attempts_count),
         first_attempt_at = coalesce(to_timestamp(l.first_at), o.first_attempt_at),
         last_attempt_at = coalesce(to_timestamp(l.last_at), o.last_attempt_at)"""
