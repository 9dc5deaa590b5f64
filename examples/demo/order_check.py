"""The check of the order, in SQL: the charges of each customer are booked one by one, by any worker."""

# Each delivery of a charge, with the delivery before it on the same account. A delivery that ran when its worker was
# killed ended at that time. A delivery without a recorded end counts as still running.
BOOKINGS = """
WITH bookings AS (
    SELECT number, customer, entry, message_id, attempt, worker, deliveries.id, started_at, cut_off_at,
           coalesce(ended_at, cut_off_at, 'infinity') AS over_at
      FROM deliveries JOIN orders ON number = order_number
     WHERE queue = 'accounts'
), steps AS (
    SELECT *,
           lag(entry, 1, 0) OVER account AS entry_before,
           lag(worker) OVER account AS worker_before,
           lag(cut_off_at) OVER account IS NOT NULL AS cut_off_before,
           max(over_at) OVER (account ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS free_at
      FROM bookings
    WINDOW account AS (PARTITION BY customer ORDER BY started_at, id)
)
"""

ORDER_CHECKS = {
    # After a charge comes the next one, or the same again. After an interrupted one, another worker may go back.
    "Charges out of order": """
        SELECT DISTINCT number FROM steps
         WHERE NOT (entry IN (entry_before, entry_before + 1)
                    OR (cut_off_before AND worker <> worker_before AND entry < entry_before))
        """,
    "Two at once on one account": "SELECT DISTINCT number FROM steps WHERE started_at < free_at",
    # Only the kill repeats an attempt, for the messages in hand. After a failed attempt comes the next attempt.
    "Booked again without a cause": """
        SELECT DISTINCT number FROM bookings b
         WHERE EXISTS (SELECT FROM bookings earlier
                        WHERE earlier.message_id = b.message_id AND earlier.attempt >= b.attempt
                          AND (earlier.started_at, earlier.id) < (b.started_at, b.id)
                          AND earlier.cut_off_at IS NULL)
        """,
    # A kill may cause a repeat in Kafka, but no charge is there before all earlier ones.
    "Statements out of order": """
        SELECT order_number FROM (
            SELECT order_number, entry, row_number() OVER (PARTITION BY customer ORDER BY min(id)) AS place
              FROM statements GROUP BY customer, entry, order_number
        ) AS arrivals
         WHERE entry <> place
        """,
    "Accounts with a wrong sum": """
        SELECT max(number) FROM accounts JOIN orders USING (customer)
         WHERE entry <= booked
         GROUP BY customer, booked, accounts.cents
        HAVING accounts.cents <> sum(orders.cents) OR count(*) <> booked
        """,
}
