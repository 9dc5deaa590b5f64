"""The figures of a run, counted in SQL: what happened that was meant to happen, and what the crash repeated."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_QUERY = """
WITH attempts AS (
    SELECT queue, attempt, count(*) AS deliveries, count(DISTINCT life) AS lives
      FROM deliveries
     GROUP BY queue, message_id, attempt
)
SELECT (SELECT count(*) FROM orders) AS committed,
       (SELECT count(*) FROM confirmations) AS confirmed,
       (SELECT count(DISTINCT order_number) FROM parcels) AS packed,
       (SELECT count(*) FROM reminders) AS reminded,
       (SELECT count(*) FROM orders WHERE paid) AS taken_back,
       (SELECT count(*) FROM attempts WHERE attempt > 1) AS retries,
       (SELECT count(*) FROM outbox_dlq WHERE failure_reason = 'retry_terminal') AS given_up,
       (SELECT count(*) FROM outbox_dlq WHERE failure_reason = 'rejected') AS rejected,
       (SELECT coalesce(sum(lives - 1), 0)::int FROM attempts) AS repeated_by_kill,
       (SELECT coalesce(sum(deliveries - lives), 0)::int FROM attempts) AS repeated_otherwise,
       (SELECT count(*) - count(DISTINCT order_number) FROM parcels) AS packed_again
"""


@dataclass(frozen=True)
class Figures:
    """Orders, messages and attempts, counted."""

    committed: int
    confirmed: int
    packed: int
    reminded: int
    taken_back: int
    retries: int
    given_up: int
    rejected: int
    # The same attempt at the same message, begun once more: by the next app, or by the same one.
    repeated_by_kill: int
    repeated_otherwise: int
    packed_again: int


async def count_figures(connection: AsyncConnection) -> Figures:
    """Count everything."""
    row = (await connection.execute(text(_QUERY))).mappings().one()
    return Figures(**row)
