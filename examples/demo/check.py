"""The check at the end, in SQL: compare what the shop committed with what the handlers did."""

from collections.abc import Set as AbstractSet

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from examples.demo.handlers import MAX_ATTEMPTS
from examples.demo.order_check import BOOKINGS, ORDER_CHECKS

# The JSON bodies of messages, as tables to join with those of the shop and the app.
_LETTERS = """
WITH waiting AS (
    SELECT queue, (convert_from(payload, 'UTF8')::jsonb ->> 'order_number')::int AS order_number FROM outbox
), dead AS (
    SELECT queue, (convert_from(payload, 'UTF8')::jsonb ->> 'order_number')::int AS order_number,
           failure_reason, attempts_count
      FROM outbox_dlq
)
"""

# Each query returns the orders that violate a rule.
CHECKS = {
    "Orders lost": """
        SELECT number FROM orders
         WHERE number NOT IN (SELECT order_number FROM confirmations)
           AND number NOT IN (SELECT order_number FROM dead)
           AND number NOT IN (SELECT order_number FROM waiting WHERE queue = 'orders')
        """,
    "Parcels lost": """
        SELECT order_number FROM confirmations
         WHERE order_number NOT IN (SELECT order_number FROM parcels)
           AND order_number NOT IN (SELECT order_number FROM waiting WHERE queue IN ('orders', 'parcels'))
        """,
    "Charges lost": """
        SELECT number FROM orders LEFT JOIN accounts USING (customer)
         WHERE orders.customer IS NOT NULL
           AND (entry <= booked AND number IN (SELECT order_number FROM deliveries
                                                WHERE queue = 'accounts' AND ended_at IS NOT NULL)) IS NOT TRUE
           AND number NOT IN (SELECT order_number FROM waiting WHERE queue = 'accounts')
        """,
    "Statements lost": """
        SELECT number FROM orders
         WHERE customer IS NOT NULL
           AND number NOT IN (SELECT order_number FROM statements)
           AND number NOT IN (SELECT order_number FROM waiting WHERE queue = 'statements')
        """,
    "Reminders lost": """
        SELECT number FROM orders
         WHERE fate IN ('unpaid', 'paid') AND NOT paid
           AND number NOT IN (SELECT order_number FROM reminders)
           AND number NOT IN (SELECT order_number FROM waiting WHERE queue = 'reminders')
        """,
    "Reminded although taken back": """
        SELECT number FROM orders
         WHERE paid AND number IN (SELECT order_number FROM deliveries WHERE queue = 'reminders')
        """,
    "Delivered although rolled back": """
        SELECT order_number FROM (
            SELECT order_number FROM deliveries
             UNION SELECT order_number FROM confirmations
             UNION SELECT order_number FROM parcels
             UNION SELECT order_number FROM reminders
             UNION SELECT order_number FROM statements
             UNION SELECT order_number FROM dead
        ) AS seen
         WHERE order_number NOT IN (SELECT number FROM orders)
        """,
    "Confirmed or reminded twice": """
        SELECT order_number FROM confirmations GROUP BY order_number HAVING count(*) > 1
         UNION
        SELECT order_number FROM reminders GROUP BY order_number HAVING count(*) > 1
        """,
    # One message in leads to one message out, even if the app was killed between the two.
    "Passed on twice": """
        SELECT order_number FROM deliveries WHERE queue = 'parcels'
         GROUP BY order_number HAVING count(DISTINCT message_id) > 1
        """,
    "Packed more often than delivered": """
        SELECT order_number FROM parcels
         GROUP BY order_number
        HAVING count(*) > (SELECT count(*) FROM deliveries
                            WHERE queue = 'parcels' AND deliveries.order_number = parcels.order_number)
        """,
    "Dead letters without a cause": f"""
        SELECT order_number FROM dead LEFT JOIN orders ON number = order_number
         WHERE (queue, fate, failure_reason, attempts_count) IN (
                   ('orders', 'poison', 'retry_terminal', {MAX_ATTEMPTS}), ('orders', 'forged', 'rejected', 1)
               ) IS NOT TRUE
         UNION
        SELECT order_number FROM dead GROUP BY order_number HAVING count(*) > 1
        """,  # noqa: S608 - a number of our own
    "Dead letters missing": """
        SELECT number FROM orders
         WHERE fate IN ('poison', 'forged')
           AND number NOT IN (SELECT order_number FROM dead)
           AND number NOT IN (SELECT order_number FROM waiting WHERE queue = 'orders')
        """,
    "Left in the outbox": "SELECT DISTINCT order_number FROM waiting",
}
WRONG_ANSWER = "Customer with a wrong answer"


async def find_violations(connection: AsyncConnection, accepted: AbstractSet[int]) -> dict[str, list[int]]:
    """Return, for each kind of violation, the orders that have it."""
    violations = {}
    for name, query in CHECKS.items():
        violations[name] = sorted(await connection.scalars(text(_LETTERS + query)))
    for name, query in ORDER_CHECKS.items():
        violations[name] = sorted(await connection.scalars(text(BOOKINGS + query)))
    # Compare what the shop answered its customers, which only the shop knows, with its table.
    committed = set(await connection.scalars(text("SELECT number FROM orders")))
    violations[WRONG_ANSWER] = sorted(committed ^ accepted)
    return violations
