"""Order begins at the producer: the ids of a key follow its commits, and would not without the lock."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox import OutboxBroker
from faststream_outbox.storage import PostgresStore
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.order.broken_statements import no_producer_lock
from tests.waiting import until

Publish = Callable[[OutboxBroker, AsyncSession, str], Awaitable[None]]

_WAITING = text(
    "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
    "WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted"
)


async def publish_one(broker: OutboxBroker, session: AsyncSession, body: str) -> None:
    await broker.publish(body, queue="q", session=session, key="k")


async def publish_many(broker: OutboxBroker, session: AsyncSession, body: str) -> None:
    await broker.publish_batch(f"{body} 1", f"{body} 2", queue="q", session=session, keys=["k", "other"])


async def commits_and_ids(
    broker: OutboxBroker, postgres: PostgresBackend, publish: Publish
) -> tuple[list[str], list[str]]:
    """Publish in two transactions, of which the one that drew its id first commits last, if it can."""
    committed: list[str] = []

    async def second() -> None:
        async with AsyncSession(postgres.engine) as session:
            await publish(broker, session, "second")
            await session.commit()
            committed.append("second")

    async with AsyncSession(postgres.engine) as session:
        await publish(broker, session, "first")
        other = asyncio.create_task(second())
        async with asyncio.timeout(20), AsyncSession(postgres.engine) as watch:
            await until(lambda: watch.scalar(_WAITING), lambda found: other.done() or found)
        await session.commit()
        committed.append("first")
    await other
    async with AsyncSession(postgres.engine) as session:
        statement = f"SELECT payload FROM {postgres.outbox_table.name} WHERE entity_key = 'k' ORDER BY id"
        by_id = [bytes(payload).decode().split()[0] for payload in await session.scalars(text(statement))]
    return committed, by_id


@pytest.mark.parametrize("publish", [publish_one, publish_many])
async def test_the_ids_of_a_key_follow_its_commits(postgres: PostgresBackend, publish: Publish) -> None:
    committed, by_id = await commits_and_ids(broker_on(postgres), postgres, publish)
    assert committed == by_id == ["first", "second"]


@pytest.mark.parametrize("publish", [publish_one, publish_many])
async def test_without_the_lock_they_do_not(postgres: PostgresBackend, publish: Publish) -> None:
    broker = broker_on(postgres)
    store = broker.client.store
    assert isinstance(store, PostgresStore)
    no_producer_lock(store)
    committed, by_id = await commits_and_ids(broker, postgres, publish)
    assert committed == ["second", "first"]
    assert by_id == ["first", "second"]
