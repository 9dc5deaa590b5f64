"""Which statement tells others of a message: the INSERT, or one of the broker's own after the commit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import event

from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on


@asynccontextmanager
async def watched(postgres: PostgresBackend) -> AsyncIterator[list[str]]:
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    engine = postgres.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)


async def test_a_connected_broker_notifies_after_the_commit(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with watched(postgres) as statements:
        async with broker, postgres.transaction() as session:
            for _ in range(3):
                await broker.publish(1, queue="q", session=session)
            await session.flush()
            assert not any("pg_notify" in statement for statement in statements)
        # Stopped: what was to be said has been said, once.
        assert sum("pg_notify" in statement for statement in statements) == 1
        assert "INSERT" not in statements[-1]


async def test_otherwise_the_insert_notifies(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with watched(postgres) as statements:
        async with postgres.transaction() as session:
            await broker.publish(1, queue="q", session=session)
        async with broker, postgres.engine.begin() as connection:
            await broker.publish(1, queue="q", session=connection)
    assert ["INSERT" in statement for statement in statements if "pg_notify" in statement] == [True, True]
