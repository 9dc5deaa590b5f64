"""Which statement tells others of a message: the INSERT, or one of the broker's own after the commit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.wakeup import wakeup
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.observers import NotifiedQueues


@asynccontextmanager
async def watched(postgres: PostgresBackend) -> AsyncIterator[list[str]]:
    """Record the statements that notify."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        values = parameters.values() if isinstance(parameters, dict) else parameters
        # An INSERT has a parameter that says whether it notifies; the broker's own statement always does.
        if "pg_notify" in statement and not any(value is False for value in values):
            statements.append(statement)

    engine = postgres.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)


async def test_a_connected_broker_notifies_after_the_commit_unless_it_was_quiet(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "SPACING", 3600)
    broker = broker_on(postgres)
    async with watched(postgres) as statements:
        async with broker:
            async with postgres.transaction() as session:
                await broker.publish(1, queue="q", session=session)
            assert ["INSERT" in statement for statement in statements] == [True]
            statements.clear()
            async with postgres.transaction() as session:
                for _ in range(3):
                    await broker.publish(1, queue="q", session=session)
                await session.flush()
                assert statements == []
        # Stopped: what was to be said has been said, once.
        assert ["INSERT" in statement for statement in statements] == [False]


async def test_what_a_savepoint_takes_along_is_announced_all_the_same(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "SPACING", 3600)
    broker, notified = broker_on(postgres), NotifiedQueues()
    async with postgres.store.listen(notified), broker:
        async with postgres.transaction() as session:
            savepoint = await session.begin_nested()
            await broker.publish(1, queue="q", session=session)
            await savepoint.rollback()
            await broker.publish(2, queue="q", session=session)
        await notified.until("q")


async def test_what_told_nobody_is_no_reason_to_tell_nobody_of_the_next(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "SPACING", 3600)
    async with postgres.transaction() as session:
        await broker_on(postgres).publish(1, queue="q", session=session, timer_id="t", activate_in=timedelta(hours=1))
    notified = NotifiedQueues()
    async with postgres.store.listen(notified), broker_on(postgres) as broker, postgres.transaction() as session:
        again = await broker.publish(1, queue="q", session=session, timer_id="t", activate_in=timedelta(hours=1))
        assert again is None, "so its INSERT has notified nobody"
        await broker.publish(2, queue="q", session=session)
        await session.commit()
        await notified.until("q")


async def test_an_operator_who_found_nothing_does_not_keep_others_from_hearing(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "SPACING", 3600)
    notified = NotifiedQueues()
    async with postgres.store.listen(notified), broker_on(postgres) as broker, postgres.transaction() as session:
        assert not await broker.release_key(queue="q", key="nobody", session=session)
        await broker.publish(1, queue="q", session=session)
        await session.commit()
        await notified.until("q")


async def test_a_transaction_that_is_prepared_carries_no_notification(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "SPACING", 0)
    broker = broker_on(postgres)
    async with watched(postgres) as statements, broker, AsyncSession(postgres.engine, twophase=True) as session:
        await broker.publish(1, queue="q", session=session)
        await session.flush()
        assert statements == []
        await session.rollback()


async def test_otherwise_the_insert_notifies(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with watched(postgres) as statements:
        async with postgres.transaction() as session:
            await broker.publish(1, queue="q", session=session)
        async with broker, postgres.engine.begin() as connection:
            await broker.publish(1, queue="q", session=connection)
    assert ["INSERT" in statement for statement in statements] == [True, True]
