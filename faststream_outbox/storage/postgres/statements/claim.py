"""The statements that claim rows without a key, renew or release their leases, and say when the next row is due."""

from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.contract import MOST_FREE_BEFORE
from faststream_outbox.storage.ordering.key_cursor import LAST_ID
from faststream_outbox.storage.postgres.statements.statement import (
    COME_BACK,
    COMES_BACK,
    LEASE,
    LEASES,
    RELEASE,
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

# A claim of a suspect compares the first 1,000 suspects of a queue, and takes the one whose lease expired first.
SUSPECTS_COMPARED: Final = 1000
# How many rows of a queue one recovery changes at most.
RECOVERED_TOGETHER: Final = 1000

# The columns of a row that was just claimed: the claimer knows its token.
_CLAIMED_ROW: Final = ROW.replace("o.acquired_token", "NULL::uuid")
# The same, with the number of rows that were ready in the token's place: it says whether `max_bytes` left some out.
_CLAIMED_OF_READY: Final = ROW.replace("o.acquired_token", "(SELECT count(*) FROM ready)")
# Queues in the order in which they are claimed: how many rows each gives at most, and the position to start from.
QUOTAS: Final = Columns("claim", queue="text", quota="bigint", at="float8", id="bigint")
# Queues, each with a position to start from or to end at.
POSITIONS: Final = Columns("position", queue="text", at="float8", id="bigint")
RELEASED: Final = Columns("released", id="bigint", token="uuid", suspect="bool")  # noqa: S106 - a type, no password


class ClaimStatements:
    """The statements that lease rows without a key, for one outbox."""

    def __init__(self, outbox: Table) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self.claim = self._claim()
        self.claim_suspect = self._claim_suspect()
        self.recover = self._recover()
        self.renew = self._renew()
        self.leave_running = self._leave_running()
        self.release = self._release()
        self.give_back = self._give_back()
        self.next_due = self._next_due()

    def _claim(self) -> Statement:
        # No sort comes after the locks: it would lock rows that the LIMIT then drops.
        return Statement(f"""WITH ready AS MATERIALIZED (
  SELECT o.id, o.size FROM {QUOTAS.unnest("q")}
   CROSS JOIN LATERAL (
    SELECT o.id, {SIZE} AS size FROM {self._outbox} o
     WHERE o.queue = q.queue AND o.entity_key IS NULL AND o.next_attempt_at <= now() AND o.acquired_token IS NULL
       AND (o.next_attempt_at, o.id) >= (to_timestamp(q.at), q.id)
     ORDER BY o.next_attempt_at, o.id LIMIT q.quota FOR UPDATE SKIP LOCKED) o
   LIMIT :limit::bigint)
UPDATE {self._outbox} o SET {LEASE}
 WHERE o.id = ANY (ARRAY(SELECT r.id FROM {within_bytes("ready")} r)) RETURNING {_CLAIMED_OF_READY}""")

    def _claim_suspect(self) -> Statement:
        # Read up to where claims have come: every claimed row lies before that, and the backlog behind is not read.
        # The lease that expired first comes first: a row that kills its process each time does not hold up the others.
        # The conditions stand twice: the search reads a snapshot, the lock checks the newest version.
        return Statement(f"""WITH seen AS (
  SELECT o.id FROM {POSITIONS.unnest("q")}
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
 WHERE o.id = ANY (ARRAY(SELECT one.id FROM one)) RETURNING {_CLAIMED_ROW}""")

    def _recover(self) -> Statement:
        # It reads as far as a claim of a suspect does, for the same reasons.
        return Statement(f"""WITH seen AS (
  SELECT o.id FROM {POSITIONS.unnest("q")}
   CROSS JOIN LATERAL (
    SELECT o.id FROM {self._outbox} o
     WHERE o.queue = q.queue AND o.entity_key IS NULL AND o.next_attempt_at <= now()
       AND (o.next_attempt_at, o.id) <= (to_timestamp(q.at), q.id) AND {COMES_BACK}
     ORDER BY o.next_attempt_at, o.id LIMIT {RECOVERED_TOGETHER}) o),
back AS MATERIALIZED (
  SELECT o.id FROM {self._outbox} o
   WHERE o.id = ANY (ARRAY(SELECT seen.id FROM seen)) AND {COMES_BACK} FOR UPDATE SKIP LOCKED)
UPDATE {self._outbox} o SET {COME_BACK} WHERE o.id = ANY (ARRAY(SELECT back.id FROM back)) RETURNING 1""")

    def _renew(self) -> Statement:
        # SKIP LOCKED: one row that another transaction has locked must not delay the renewal of the others.
        return Statement(f"""WITH mine AS MATERIALIZED (
  SELECT o.id FROM {self._outbox} o WHERE o.id = ANY ({LEASES["id"]}) AND o.acquired_token = ANY ({LEASES["token"]})
     FOR UPDATE SKIP LOCKED)
UPDATE {self._outbox} o SET lease_expires_at = now() + make_interval(secs => :lease_seconds::float8)
  FROM {LEASES.unnest("l")}
 WHERE o.id = ANY (ARRAY(SELECT mine.id FROM mine)) AND o.id = l.id AND o.acquired_token = l.token
RETURNING l.id, l.token""")

    def _leave_running(self) -> Statement:
        # Claimed in the future: no node concludes from its watch that such a lease is over (see `OVER`).
        return Statement(f"""UPDATE {self._outbox} o SET acquired_at = o.lease_expires_at FROM {LEASES.unnest("l")}
 WHERE {held(LEASES)} RETURNING 1""")

    def _release(self) -> Statement:
        return Statement(f"""UPDATE {self._outbox} o SET {RELEASE},
       next_attempt_at = CASE WHEN :delay::float8 > 0 THEN now() + make_interval(secs => :delay::float8)
                         ELSE o.next_attempt_at END
  FROM {RELEASED.unnest("l")}
 WHERE {held(RELEASED)} RETURNING l.id, l.token""")

    def _give_back(self) -> Statement:
        # No index has the token. A claim takes the first rows that are free, so few free rows lie before its own: the
        # search ends behind some of them, and not at the end of the backlog.
        from_start = f"""FROM {self._outbox} o
     WHERE o.queue = q.queue AND o.entity_key IS NULL AND o.next_attempt_at <= now()
       AND (o.next_attempt_at, o.id) >= (to_timestamp(q.at), q.id)"""
        in_order = "ORDER BY o.next_attempt_at, o.id"
        return Statement(f"""WITH seen AS MATERIALIZED (
  SELECT o.id FROM {POSITIONS.unnest("q")}
  LEFT JOIN LATERAL (
    SELECT o.next_attempt_at AS at, o.id {from_start} AND o.acquired_token IS NULL
     {in_order} OFFSET {MOST_FREE_BEFORE} LIMIT 1) f ON true
 CROSS JOIN LATERAL (
    SELECT o.id {from_start} AND o.acquired_token = :token::uuid
       AND (o.next_attempt_at, o.id) <= (coalesce(f.at, 'infinity'), coalesce(f.id, {LAST_ID})) {in_order}) o)
UPDATE {self._outbox} o SET {RELEASE_CLAIM}
 WHERE o.id = ANY (ARRAY(SELECT seen.id FROM seen)) AND o.acquired_token = :token::uuid RETURNING 1""")

    def _next_due(self) -> Statement:
        # From the watermark on, as a claim does: rows before it are left to the sweep.
        return Statement(f"""SELECT min(o.at) - {epoch("now()")}
  FROM {POSITIONS.unnest("q")}
 CROSS JOIN LATERAL (
  SELECT {epoch("o.next_attempt_at")} AS at FROM {self._outbox} o
   WHERE o.queue = q.queue AND o.entity_key IS NULL AND o.acquired_token IS NULL
     AND (o.next_attempt_at, o.id) >= (to_timestamp(q.at), q.id)
   ORDER BY o.next_attempt_at, o.id LIMIT 1) o""")
