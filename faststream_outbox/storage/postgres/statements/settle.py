"""The statements that settle rows, and the SQL of retry, burial and parking, which runs and operators use too."""

from typing import Any, Final

from sqlalchemy import Table

from faststream_outbox.storage.outcomes import Dead, Retry, clean_exception_text, epoch_or_none
from faststream_outbox.storage.parking import sql_with_cause, sql_with_failure, sql_without_cause
from faststream_outbox.storage.postgres.statements.insert import insert_outputs
from faststream_outbox.storage.postgres.statements.statement import LEASES, UNLEASE, Columns, Statement, held
from faststream_outbox.storage.schema.tables import quoted_name

# What a row under its own lease, and a row of a run, are found by.
OF_LEASE: Final = {"id": "bigint", "token": "uuid"}
OF_RUN: Final = {"id": "bigint", "head": "bigint"}

_ATTEMPT: Final = {"attempts": "bigint", "first_at": "float8", "last_at": "float8"}
RETRY: Final = {"delay": "float8", "failure": "text", **_ATTEMPT}
FAILURE: Final = {"reason": "text", "exception": "text", **_ATTEMPT}

RETRIED: Final = Columns("retried", **OF_LEASE, **RETRY)
BURIED: Final = Columns("buried", **OF_LEASE, **FAILURE)
GROUPED: Final = Columns("grouped", **OF_LEASE, grp="bigint", size="bigint")


def retry_values(retry: Retry) -> tuple[Any, ...]:
    """Return the values of the columns `RETRY`."""
    return (retry.bounded_delay, clean_exception_text(retry.failure), *_attempt_values(retry))


def failure_values(dead: Dead) -> tuple[Any, ...]:
    """Return the values of the columns `FAILURE`."""
    return (dead.reason, clean_exception_text(dead.last_exception), *_attempt_values(dead))


def _attempt_values(outcome: Retry | Dead) -> tuple[Any, ...]:
    return outcome.attempts_count, epoch_or_none(outcome.first_attempt_at), epoch_or_none(outcome.last_attempt_at)


# What a retry sets on a row `o`, by the columns `RETRY` of `l`.
SET_RETRY: Final = f"""{UNLEASE},
       next_attempt_at = now() + make_interval(secs => l.delay), attempts_count = l.attempts,
       first_attempt_at = coalesce(to_timestamp(l.first_at), o.first_attempt_at, now()),
       last_attempt_at = coalesce(to_timestamp(l.last_at), now()),
       headers = {sql_with_failure("o.headers", "l.failure")}"""

# The columns of the dead-letter table.
DEAD_ROW: Final = """original_id, queue, entity_key, payload, headers, timer_id, attempts_count, deliveries_count,
         created_at, first_attempt_at, last_attempt_at, failure_reason, last_exception"""


def set_parked(cause: str) -> str:
    """Return what parking sets on a row `o`: no lease, never due, and the cause among its headers."""
    return f"{UNLEASE}, next_attempt_at = 'infinity', headers = {sql_with_cause('o.headers', cause)}"


def returning_dead(deliveries: str = "o.deliveries_count") -> str:
    """Return what the deletion of a dead row `o` returns for `insert_dead`."""
    return f"""RETURNING o.id, o.acquired_token, o.queue, o.entity_key, o.payload, o.headers, o.timer_id,
         o.attempts_count, {deliveries} AS deliveries_count, o.created_at, o.first_attempt_at, o.last_attempt_at"""


def insert_dead(dlq: str, deleted: str, failures: str) -> str:
    """Return the part of a statement that inserts deleted rows, `g`, into the dead-letter table.

    `failures` joins the columns `FAILURE` as `l`. It joins them here, after the rows are locked, because the texts may
    make a hash spill to disk, and a hash that spilled would not keep the order of ids for the locks.
    """
    return f"""kept AS (
  INSERT INTO {dlq} ({DEAD_ROW})
  SELECT g.id, g.queue, g.entity_key, g.payload, {sql_without_cause("g.headers")}, g.timer_id,
         coalesce(l.attempts, g.attempts_count), g.deliveries_count, g.created_at,
         coalesce(to_timestamp(l.first_at), g.first_attempt_at),
         coalesce(to_timestamp(l.last_at), g.last_attempt_at), l.reason, l.exception
    FROM {deleted} g {failures})"""


class SettleStatements:
    """The statements that settle rows under their own lease, for one outbox and, if there is one, its dead letters.

    The statement for runs could settle these rows too, each as a run of one. But it locks the rows before it changes
    them: in batches of 100 that takes Postgres twice the time for acks, 1.5 times for retries and 1.25 times for dead
    letters, and 57 bytes of log more per row.
    """

    def __init__(self, outbox: Table, dlq: Table | None = None) -> None:
        self._outbox = quoted_name(outbox.name, outbox.schema)
        self.delete = self._delete()
        self.delete_batch = self._delete_batch()
        self.lock = self._lock()
        self.delete_and_insert = self._delete_and_insert()
        self.retry = self._retry()
        self.bury = None if dlq is None else self._bury(quoted_name(dlq.name, dlq.schema))

    def _delete(self) -> Statement:
        return Statement(f"""DELETE FROM {self._outbox} o USING {LEASES.unnest("l")}
 WHERE {held(LEASES)} RETURNING l.id, l.token""")

    def _delete_batch(self) -> Statement:
        # Most rows are settled here, and one array of numbers is read faster than a record for each row.
        return Statement(f"""WITH gone AS (
  DELETE FROM {self._outbox} o USING {LEASES.unnest("l", numbered=True)}
   WHERE {held(LEASES)} RETURNING l.n)
SELECT array_agg(g.n) FROM gone g""")

    def _lock(self) -> Statement:
        return Statement(f"""SELECT o.id FROM {self._outbox} o, {LEASES.unnest("l")}
 WHERE {held(LEASES)} FOR UPDATE OF o""")

    def _delete_and_insert(self) -> Statement:
        # Rows come in groups of a known size: a group is deleted, and its outputs are inserted, only if all of its
        # leases hold.
        return Statement(f"""WITH held AS MATERIALIZED (
  SELECT o.id, l.token, l.grp, l.size FROM {self._outbox} o, {GROUPED.unnest("l")}
   WHERE {held(GROUPED)} FOR UPDATE OF o),
whole AS MATERIALIZED (SELECT h.grp FROM held h GROUP BY h.grp HAVING count(*) = max(h.size)),
gone AS (
  DELETE FROM {self._outbox} o USING held h JOIN whole w USING (grp)
   WHERE o.id = ANY ({GROUPED["id"]}) AND o.id = h.id RETURNING h.id, h.token, grp),
done AS MATERIALIZED (SELECT DISTINCT g.grp FROM gone g),
{insert_outputs(self._outbox, "done", "grp")}
SELECT g.id, g.token FROM gone g""")

    def _retry(self) -> Statement:
        return Statement(f"""UPDATE {self._outbox} o SET {SET_RETRY}
  FROM {RETRIED.unnest("l")}
 WHERE {held(RETRIED)} RETURNING l.id, l.token""")

    def _bury(self, dlq: str) -> Statement:
        failures = f"JOIN {BURIED.unnest('l')} ON l.id = g.id AND l.token = g.acquired_token"
        return Statement(f"""WITH gone AS (
  DELETE FROM {self._outbox} o USING {BURIED.unnest("l", "id", "token")}
   WHERE {held(BURIED)} {returning_dead()}),
{insert_dead(dlq, "gone", failures)}
SELECT g.id, g.acquired_token FROM gone g""")
