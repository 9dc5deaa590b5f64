"""`python -m examples.bank`: a day at the bank, and a check that finds what is wrong in its books."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from examples.bank.check import find_violations
from examples.bank.tables import Base
from faststream_outbox.embedded import Database
from tests.examples.programs import told_by

_LINE = "INSERT INTO ledger (transfer_id, source, target, cents) VALUES (1, 1, 2, 30)"


def test_a_day() -> None:
    told = told_by("bank")
    lines = told.splitlines()
    assert sorted(line for line in lines if "attempt" in line) == [
        "transfer 1, attempt 1: 100 cents to 2",
        "transfer 2, attempt 1: 30 cents to 3",
        "transfer 3, attempt 1: 55 cents to 1",
        "transfer 3, attempt 2: 55 cents to 1",
        *(f"transfer 4, attempt {attempt}: 500 cents to 99" for attempt in (1, 2, 3)),
    ]
    assert [line for line in lines if line.startswith("account")] == [
        "account 1: 955 cents",
        "account 2: 1070 cents",
        "account 3: 975 cents",
    ]
    assert "3000 cents in all" in lines
    assert "3 ledger lines, 3 notifications, 1 dead letter" in lines
    assert len([line for line in lines if line.endswith(": none")]) == 8


@pytest.fixture
async def books(outbox_postgres: Database) -> AsyncIterator[AsyncConnection]:
    """The books of a good day: one transfer is done, another one is dead."""
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    async with engine.connect() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await write(
            connection,
            "INSERT INTO accounts VALUES (1, 100, 70), (2, 100, 130);"
            "INSERT INTO transfers (source, target, cents) VALUES (1, 2, 30), (1, 99, 5);"
            f"{_LINE};"
            "INSERT INTO notifications (transfer_id, account_id, text) VALUES (1, 2, '30 cents');"
            "INSERT INTO outbox_dlq (original_id, queue, payload, created_at, failure_reason)"
            """VALUES (9, 'transfers', '{"transfer_id": 2}', now(), 'retry_terminal')""",
        )
        yield connection
    await engine.dispose()


async def write(connection: AsyncConnection, statements: str) -> None:
    for statement in statements.split(";"):
        await connection.execute(text(statement.replace(":", r"\:")))


async def test_a_good_day_has_no_violations(books: AsyncConnection) -> None:
    assert not any((await find_violations(books)).values())


@pytest.mark.parametrize(
    ("doctoring", "expected"),
    [
        (
            "UPDATE accounts SET cents = 131 WHERE id = 2",
            {"Cents made or lost": [1], "Accounts that differ from the ledger": [2]},
        ),
        ("UPDATE accounts SET cents = 100", {"Accounts that differ from the ledger": [1, 2]}),
        (
            "DELETE FROM ledger; UPDATE accounts SET cents = 100",
            {"Transfers without a ledger line": [1]},
        ),
        (
            f"{_LINE};UPDATE accounts SET cents = 40 WHERE id = 1; UPDATE accounts SET cents = 160 WHERE id = 2",
            {"Transfers with several ledger lines": [1]},
        ),
        ("DELETE FROM notifications", {"Transfers without a notification": [1]}),
        (
            "INSERT INTO notifications (transfer_id, account_id, text) VALUES (1, 2, 'again')",
            {"Transfers with several notifications": [1]},
        ),
        (
            "INSERT INTO notifications (transfer_id, account_id, text) VALUES (2, 1, ''), (3, 1, '')",
            {"Moved although dead or never accepted": [2, 3]},
        ),
        ("INSERT INTO outbox (id, queue, payload) VALUES (7, 'notifications', '')", {"Left in the outbox": [7]}),
    ],
)
async def test_each_violation_is_found_and_named(
    books: AsyncConnection, doctoring: str, expected: dict[str, list[int]]
) -> None:
    await write(books, doctoring)
    violations = await find_violations(books)
    assert {name: numbers for name, numbers in violations.items() if numbers} == expected
