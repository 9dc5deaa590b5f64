"""The check at the end, in SQL: compare what the bank accepted with what the handlers did."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# Transfers that failed permanently: their messages are in the dead-letter table, and no money was moved.
_DEAD = """
WITH dead AS (
    SELECT (convert_from(payload, 'UTF8')::jsonb ->> 'transfer_id')::int AS transfer_id
      FROM outbox_dlq WHERE queue = 'transfers'
)
"""

# Each query returns the numbers of what is wrong.
CHECKS = {
    "Cents made or lost": """
        SELECT sum(cents) - sum(opening_cents) FROM accounts HAVING sum(cents) <> sum(opening_cents)
        """,
    "Accounts that differ from the ledger": """
        SELECT id FROM accounts
         WHERE cents - opening_cents <>
               (SELECT coalesce(sum(cents), 0) FROM ledger WHERE target = accounts.id) -
               (SELECT coalesce(sum(cents), 0) FROM ledger WHERE source = accounts.id)
        """,
    "Transfers without a ledger line": """
        SELECT id FROM transfers
         WHERE id NOT IN (SELECT transfer_id FROM ledger) AND id NOT IN (SELECT transfer_id FROM dead)
        """,
    "Transfers with several ledger lines": """
        SELECT transfer_id FROM ledger GROUP BY transfer_id HAVING count(*) > 1
        """,
    "Transfers without a notification": """
        SELECT id FROM transfers
         WHERE id NOT IN (SELECT transfer_id FROM notifications) AND id NOT IN (SELECT transfer_id FROM dead)
        """,
    "Transfers with several notifications": """
        SELECT transfer_id FROM notifications GROUP BY transfer_id HAVING count(*) > 1
        """,
    "Moved although dead or never accepted": """
        SELECT transfer_id FROM (SELECT transfer_id FROM ledger UNION SELECT transfer_id FROM notifications) AS done
         WHERE transfer_id NOT IN (SELECT id FROM transfers) OR transfer_id IN (SELECT transfer_id FROM dead)
        """,
    "Left in the outbox": "SELECT id FROM outbox",
}


async def find_violations(connection: AsyncConnection) -> dict[str, list[int]]:
    """Return, for each kind of violation, the numbers of what is wrong."""
    violations = {}
    for name, query in CHECKS.items():
        violations[name] = sorted(await connection.scalars(text(_DEAD + query)))
    return violations
