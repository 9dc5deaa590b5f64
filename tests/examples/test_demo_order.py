"""What `make demo` proves of the order: the history of two accounts, and each way to spoil it."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from examples.demo.figures import count_figures
from faststream_outbox.embedded import Database
from tests.examples.demo_tables import found_in, open_books, write

_NOON = "timestamptz '2024-01-01 12:00:00Z'"
_ORDERS = {1, 2, 3, 4, 5, 6}


def delivery(
    number: int, *, worker: int, start: float, end: float | None, cut_off: float | None = None, attempt: int = 1
) -> str:
    """Write that a charge was handled, by the seconds after noon."""
    started, ended, cut = (
        "NULL" if at is None else f"{_NOON} + make_interval(secs => {at})" for at in (start, end, cut_off)
    )
    return (
        "INSERT INTO deliveries (queue, message_id, order_number, attempt, worker, started_at, ended_at, cut_off_at) "
        f"VALUES ('accounts', {10 + number}, {number}, {attempt}, {worker}, {started}, {ended}, {cut});"
    )


def moved(number: int, worker: int, start: float, end: float) -> str:
    """Write that a charge was handled by a worker at another time."""
    return (
        f"UPDATE deliveries SET started_at = {_NOON} + make_interval(secs => {start}), "
        f"ended_at = {_NOON} + make_interval(secs => {end}) "
        f"WHERE queue = 'accounts' AND order_number = {number} AND worker = {worker};"
    )


# Orders 1 to 4 are the charges of customer 1: the second one was tried twice, and worker 1 was killed when it had
# handled the third and was at the fourth. Orders 5 and 6 are those of customer 2, which changed hands without a kill.
_STORY = (
    "INSERT INTO orders (number, cents, fate, paid, customer, entry) SELECT n, 100 * n, 'smooth', false, "
    "CASE WHEN n < 5 THEN 1 ELSE 2 END, CASE WHEN n < 5 THEN n ELSE n - 4 END FROM generate_series(1, 6) AS n;"
    "INSERT INTO accounts (customer, booked, cents) VALUES (1, 4, 1000), (2, 2, 1100);"
    "INSERT INTO confirmations (message_id, order_number) SELECT number, number FROM orders;"
    "INSERT INTO parcels (order_number) SELECT number FROM orders;"
    # Relayed, and the third of customer 1 again with the second before it.
    "INSERT INTO statements (customer, entry, order_number, outbox_id)"
    " SELECT customer, entry, number, 'shop/' || number FROM orders JOIN unnest(ARRAY[1, 5, 2, 3, 2, 3, 4, 6])"
    " WITH ORDINALITY AS arrivals(arrived, place) ON arrived = number ORDER BY place;"
    "INSERT INTO deliveries (queue, message_id, order_number, attempt, worker)"
    " SELECT 'parcels', 20 + number, number, 1, 2 FROM orders;"
    + delivery(1, worker=1, start=0, end=1)
    + delivery(2, worker=1, start=2, end=3)
    + delivery(2, worker=1, start=4, end=5, attempt=2)
    + delivery(3, worker=1, start=6, end=7, cut_off=9)
    + delivery(4, worker=1, start=8, end=None, cut_off=9)
    + delivery(3, worker=2, start=12, end=13)
    + delivery(4, worker=2, start=14, end=15)
    + delivery(5, worker=2, start=0, end=1)
    + delivery(6, worker=3, start=2, end=3)
)


@pytest.fixture
async def books(outbox_postgres: Database) -> AsyncIterator[AsyncConnection]:
    """The accounts of a run in which all went well."""
    async with open_books(outbox_postgres, _STORY) as connection:
        yield connection


async def test_a_history_in_order_has_no_violation(books: AsyncConnection) -> None:
    assert await found_in(books, _ORDERS) == {}


async def test_the_figures_are_those_of_the_history(books: AsyncConnection) -> None:
    figures = await count_figures(books)
    assert (figures.charged, figures.accounts, figures.accounts_shared) == (6, 2, 2)
    assert (figures.retries, figures.in_hand) == (1, 2)
    assert (figures.repeated_by_kill, figures.repeated_otherwise) == (2, 0)
    assert (figures.relayed, figures.relayed_again) == (6, 2)


@pytest.mark.parametrize(
    ("doctoring", "expected"),
    [
        pytest.param(
            "DELETE FROM deliveries WHERE queue = 'accounts' AND order_number = 6",
            {"Charges lost": [6]},
            id="never delivered",
        ),
        pytest.param(
            "DELETE FROM deliveries WHERE queue = 'accounts' AND order_number = 2",
            {"Charges lost": [2], "Charges out of order": [3]},
            id="passed over",
        ),
        pytest.param("DELETE FROM statements WHERE order_number = 6", {"Statements lost": [6]}, id="never relayed"),
        pytest.param(
            "UPDATE statements SET id = -1 WHERE id = (SELECT min(id) FROM statements WHERE order_number = 3)",
            {"Statements out of order": [1, 2, 3]},
            id="relayed before those before it",
        ),
        pytest.param(
            "INSERT INTO statements (customer, entry, order_number, outbox_id) VALUES (2, 3, 7, 'shop/7')",
            {"Delivered although rolled back": [7]},
            id="relayed although rolled back",
        ),
        pytest.param(
            "UPDATE accounts SET booked = 1, cents = 500 WHERE customer = 2",
            {"Charges lost": [6]},
            id="never booked",
        ),
        pytest.param("DELETE FROM accounts WHERE customer = 2", {"Charges lost": [5, 6]}, id="no account"),
        pytest.param(
            "UPDATE accounts SET cents = cents + 1 WHERE customer = 2",
            {"Accounts with a wrong sum": [6]},
            id="booked twice",
        ),
        pytest.param(moved(6, 3, -2, -1), {"Charges out of order": [5, 6]}, id="second before first"),
        pytest.param(
            moved(3, 2, 16, 17),
            {"Charges out of order": [3]},
            id="out of order after the kill",
        ),
        pytest.param(
            delivery(5, worker=2, start=4, end=5),
            {"Charges out of order": [5], "Booked again without a cause": [5]},
            id="back again without a kill",
        ),
        pytest.param(moved(6, 3, 0.5, 3), {"Two at once on one account": [6]}, id="before the one before had ended"),
        pytest.param(moved(3, 2, 8.5, 10), {"Two at once on one account": [3]}, id="before the kill"),
        pytest.param(
            "UPDATE deliveries SET ended_at = NULL WHERE queue = 'accounts' AND order_number = 5",
            {"Charges lost": [5], "Two at once on one account": [6]},
            id="without an end",
        ),
        pytest.param(
            delivery(6, worker=2, start=4, end=5), {"Booked again without a cause": [6]}, id="repeated without a kill"
        ),
        pytest.param(
            "UPDATE deliveries SET cut_off_at = NULL WHERE order_number = 3",
            {"Booked again without a cause": [3]},
            id="repeated although settled before the kill",
        ),
        pytest.param(
            "DELETE FROM deliveries WHERE queue = 'accounts' AND order_number = 6;"
            "UPDATE accounts SET booked = 1, cents = 500 WHERE customer = 2;"
            "INSERT INTO outbox (queue, payload) VALUES ('accounts', '{\"order_number\": 6}')",
            {"Left in the outbox": [6]},
            id="not finished",
        ),
    ],
)
async def test_each_violation_is_found_and_named(
    books: AsyncConnection, doctoring: str, expected: dict[str, list[int]]
) -> None:
    await write(books, doctoring)
    assert await found_in(books, _ORDERS) == expected
