"""The check at the end of `make demo`: a story in which all went well, and each way to spoil it."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from examples.demo.check import WRONG_ANSWER
from examples.demo.figures import count_figures
from faststream_outbox.embedded import Database
from tests.examples.demo_tables import found_in, open_books, write

# Orders 1 smooth, 2 flaky, 3 poison, 4 forged, 5 unpaid and reminded, 6 paid; 7 was rolled back. A worker was killed
# when it had packed 1 for the first time.
_STORY = """
INSERT INTO orders (number, cents, fate, paid) VALUES
    (1, 100, 'smooth', false), (2, 200, 'flaky', false), (3, 300, 'poison', false), (4, 400, 'forged', false),
    (5, 500, 'unpaid', false), (6, 600, 'paid', true);
INSERT INTO confirmations (message_id, order_number) VALUES (1, 1), (2, 2), (5, 5), (6, 6);
INSERT INTO parcels (order_number) VALUES (1), (1), (2), (5), (6);
INSERT INTO reminders (message_id, order_number) VALUES (15, 5);
INSERT INTO deliveries (queue, message_id, order_number, attempt, worker) VALUES
    ('orders', 1, 1, 1, 1), ('orders', 2, 2, 1, 1), ('orders', 2, 2, 2, 2), ('orders', 3, 3, 1, 1),
    ('orders', 3, 3, 2, 2), ('orders', 3, 3, 3, 2), ('orders', 4, 4, 1, 1), ('orders', 5, 5, 1, 1),
    ('orders', 6, 6, 1, 1), ('parcels', 21, 1, 1, 1), ('parcels', 21, 1, 1, 2), ('parcels', 22, 2, 1, 2),
    ('parcels', 25, 5, 1, 2), ('parcels', 26, 6, 1, 2), ('reminders', 15, 5, 1, 2);
INSERT INTO outbox_dlq (original_id, queue, payload, created_at, failure_reason, attempts_count) VALUES
    (3, 'orders', '{"order_number": 3}', now(), 'retry_terminal', 3),
    (4, 'orders', '{"order_number": 4}', now(), 'rejected', 1);
UPDATE deliveries SET cut_off_at = now() WHERE queue = 'parcels' AND worker = 1;
"""
_BURY = "INSERT INTO outbox_dlq (original_id, queue, payload, created_at, failure_reason, attempts_count) VALUES "


@pytest.fixture
async def books(outbox_postgres: Database) -> AsyncIterator[AsyncConnection]:
    """The tables of a run in which all went well."""
    async with open_books(outbox_postgres, _STORY) as connection:
        yield connection


async def test_a_consistent_story_has_no_violation(books: AsyncConnection) -> None:
    assert await found_in(books, {1, 2, 3, 4, 5, 6}) == {}


async def test_the_figures_are_those_of_the_story(books: AsyncConnection) -> None:
    figures = await count_figures(books)
    assert (figures.committed, figures.confirmed, figures.packed) == (6, 4, 4)
    assert (figures.reminded, figures.taken_back) == (1, 1)
    assert (figures.retries, figures.given_up, figures.rejected) == (3, 1, 1)
    assert (figures.in_hand, figures.repeated_by_kill, figures.repeated_otherwise) == (1, 1, 0)
    assert figures.packed_again == 1
    await write(books, "INSERT INTO deliveries SELECT 99, queue, message_id, 2, 1, 2 FROM deliveries WHERE id = 12")
    assert (await count_figures(books)).repeated_otherwise == 1


@pytest.mark.parametrize(
    ("doctoring", "expected"),
    [
        ("DELETE FROM confirmations WHERE order_number = 2", {"Orders lost": [2]}),
        ("DELETE FROM parcels WHERE order_number = 2", {"Parcels lost": [2]}),
        ("DELETE FROM reminders", {"Reminders lost": [5]}),
        ("UPDATE orders SET paid = false WHERE number = 6", {"Reminders lost": [6]}),
        ("UPDATE orders SET paid = true WHERE number = 5", {"Reminded although taken back": [5]}),
        ("INSERT INTO deliveries VALUES (99, 'orders', 7, 7, 1, 1)", {"Delivered although rolled back": [7]}),
        (
            f"{_BURY} (7, 'orders', '{{\"order_number\": 7}}', now(), 'rejected', 1)",
            {"Delivered although rolled back": [7], "Dead letters without a cause": [7]},
        ),
        ("INSERT INTO confirmations VALUES (9, 1)", {"Confirmed or reminded twice": [1]}),
        ("INSERT INTO reminders VALUES (9, 5)", {"Confirmed or reminded twice": [5]}),
        ("INSERT INTO deliveries VALUES (99, 'parcels', 29, 2, 1, 2)", {"Passed on twice": [2]}),
        ("INSERT INTO parcels (order_number) VALUES (2)", {"Packed more often than delivered": [2]}),
        ("UPDATE outbox_dlq SET attempts_count = 2 WHERE original_id = 3", {"Dead letters without a cause": [3]}),
        (
            f"{_BURY} (8, 'orders', '{{\"order_number\": 4}}', now(), 'rejected', 1)",
            {"Dead letters without a cause": [4]},
        ),
        (
            f"{_BURY} (22, 'parcels', '{{\"order_number\": 2}}', now(), 'retry_terminal', 10)",
            {"Dead letters without a cause": [2]},
        ),
        ("DELETE FROM outbox_dlq WHERE original_id = 3", {"Orders lost": [3], "Dead letters missing": [3]}),
        (
            "INSERT INTO outbox (queue, payload) VALUES ('parcels', '{\"order_number\": 2}')",
            {"Left in the outbox": [2]},
        ),
        (
            "DELETE FROM reminders; INSERT INTO outbox (queue, payload) VALUES ('reminders', '{\"order_number\": 5}')",
            {"Left in the outbox": [5]},
        ),
    ],
)
async def test_each_violation_is_found_and_named(
    books: AsyncConnection, doctoring: str, expected: dict[str, list[int]]
) -> None:
    await write(books, doctoring)
    assert await found_in(books, {1, 2, 3, 4, 5, 6}) == expected


@pytest.mark.parametrize(("accepted", "wrong"), [({1, 2, 3, 4, 5}, [6]), ({1, 2, 3, 4, 5, 6, 7}, [7])])
async def test_a_customer_who_was_told_the_wrong_outcome_is_found(
    books: AsyncConnection, accepted: set[int], wrong: list[int]
) -> None:
    assert await found_in(books, accepted) == {WRONG_ANSWER: wrong}
