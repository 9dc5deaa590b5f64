"""How many connections a broker has open, counted by the server while it works and while it rests."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.waiting import until

COUNTED = "outbox-counted"
CONNECTIONS = f"SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '{COUNTED}%'"
# Longer than a listener is content with having heard itself.
WATCHED_SECONDS = 3.0


@asynccontextmanager
async def counted(postgres: PostgresBackend, database: Database) -> AsyncIterator[PostgresBackend]:
    """The same tables through an engine whose connections can be told from others."""
    driver, name = postgres.engine.dialect.driver, {"application_name": COUNTED}
    arguments: dict[str, Any] = {"server_settings": name} if driver == "asyncpg" else name
    engine = create_async_engine(database.url(driver), pool_size=20, connect_args=arguments)
    yield PostgresBackend(engine)
    await engine.dispose()


async def most_connections(postgres: PostgresBackend) -> int:
    most, end = 0, time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < end:
        count: Any = await postgres.one(CONNECTIONS)
        most = max(most, count)
        await asyncio.sleep(0.01)
    return most


@pytest.mark.parametrize("max_workers", [1, 16])
async def test_a_subscriber_has_two_and_its_broker_one(
    postgres: PostgresBackend, outbox_postgres: Database, max_workers: int
) -> None:
    handled: list[int] = []
    async with counted(postgres, outbox_postgres) as own:
        producer, broker = broker_on(postgres), broker_on(own)

        @broker.publisher("answers")
        @broker.subscriber("q", max_workers=max_workers)
        async def handle(number: int) -> int:
            await asyncio.sleep(0.001)
            handled.append(number)
            return number

        await publish(producer, postgres, *range(1000))
        async with started(broker):
            assert await most_connections(postgres) <= 3, "with a backlog, and answers that are told to others"
            await until(lambda: len(handled) == 1000)
            assert await most_connections(postgres) == 3, "at rest"
            await publish(producer, postgres, *range(1000, 1010))
            assert await most_connections(postgres) == 3, "woken"
            await until(lambda: len(handled) == 1010)


async def test_who_publishes_has_its_sessions_and_one_more(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    async with counted(postgres, outbox_postgres) as own:
        broker = broker_on(own)

        async def publish_now_and_then() -> None:
            while True:
                await publish(broker, own, 1)
                await asyncio.sleep(0.01)

        async with broker:
            publishing = asyncio.create_task(publish_now_and_then())
            most = await most_connections(postgres)
            publishing.cancel()
            await asyncio.wait([publishing])
        assert 1 <= most <= 2
