"""The figures of a run, counted in SQL: the planned events, and what the kill repeated."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_QUERY = """
WITH attempts AS (
    SELECT attempt, count(*) - 1 AS again, least(count(*) - 1, count(cut_off_at)) AS again_after_kill
      FROM deliveries
     GROUP BY queue, message_id, attempt
),
repeated AS (
    SELECT min(later.started_at - cut.cut_off_at) AS after
      FROM deliveries cut JOIN deliveries later USING (queue, message_id, attempt)
     WHERE cut.cut_off_at IS NOT NULL AND later.started_at > cut.cut_off_at
     GROUP BY queue, message_id, attempt
)
SELECT (SELECT count(*) FROM orders) AS committed,
       (SELECT count(*) FROM confirmations) AS confirmed,
       (SELECT count(DISTINCT order_number) FROM parcels) AS packed,
       (SELECT count(*) FROM orders JOIN accounts USING (customer) WHERE entry <= booked) AS charged,
       (SELECT count(*) FROM accounts) AS accounts,
       (SELECT count(*) FROM (
           SELECT customer FROM deliveries JOIN orders ON number = order_number WHERE queue = 'accounts'
            GROUP BY customer HAVING count(DISTINCT worker) > 1) AS shared) AS accounts_shared,
       (SELECT count(DISTINCT outbox_id) FROM statements) AS relayed,
       (SELECT count(*) - count(DISTINCT outbox_id) FROM statements) AS relayed_again,
       (SELECT count(*) FROM reminders) AS reminded,
       (SELECT count(*) FROM orders WHERE paid) AS taken_back,
       (SELECT count(*) FROM attempts WHERE attempt > 1) AS retries,
       (SELECT count(*) FROM outbox_dlq WHERE failure_reason = 'retry_terminal') AS given_up,
       (SELECT count(*) FROM outbox_dlq WHERE failure_reason = 'rejected') AS rejected,
       (SELECT count(*) FROM deliveries WHERE cut_off_at IS NOT NULL) AS in_hand,
       (SELECT coalesce(sum(again_after_kill), 0)::int FROM attempts) AS repeated_by_kill,
       (SELECT extract(epoch FROM percentile_disc(0.5) WITHIN GROUP (ORDER BY after))::float8 FROM repeated)
           AS kill_to_repeat,
       (SELECT coalesce(sum(again - again_after_kill), 0)::int FROM attempts) AS repeated_otherwise,
       (SELECT count(*) - count(DISTINCT order_number) FROM parcels) AS packed_again
"""


@dataclass(frozen=True)
class Figures:
    """Orders, messages and attempts, counted."""

    committed: int
    confirmed: int
    packed: int
    charged: int
    accounts: int
    accounts_shared: int  # their charges were handled by several workers, one after the other
    # Read from Kafka, and read once more.
    relayed: int
    relayed_again: int
    reminded: int
    taken_back: int
    retries: int
    given_up: int
    rejected: int
    # Given to a handler of the worker that was killed, and not settled.
    in_hand: int
    # The same attempt at the same message, begun once more.
    repeated_by_kill: int
    kill_to_repeat: float | None  # seconds, the median
    repeated_otherwise: int
    packed_again: int


async def count_figures(connection: AsyncConnection) -> Figures:
    """Count everything."""
    row = (await connection.execute(text(_QUERY))).mappings().one()
    return Figures(**row)
