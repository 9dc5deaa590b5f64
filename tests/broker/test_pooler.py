"""A pooler in transaction mode between a producer and the database."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.pooler import pooling

pytestmark = pytest.mark.usefixtures("pgbouncer")

ARGUMENTS: dict[str, dict[str, Any]] = {
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": str,
    },
    "psycopg": {"prepare_threshold": None},
}


async def test_publishing_through_a_pooler_wakes_a_broker_that_is_connected_directly(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    driver = postgres.engine.dialect.driver
    handled = asyncio.Event()
    async with pooling(outbox_postgres) as port:
        url = make_url(outbox_postgres.url(driver)).set(port=port, host="127.0.0.1")
        pooled = create_async_engine(url, connect_args=ARGUMENTS[driver])
        broker = broker_on(postgres)

        @broker.subscriber("q", min_fetch_interval=60, max_fetch_interval=60)
        async def handle(_number: int) -> None:
            handled.set()

        async with started(broker):
            async with async_sessionmaker(pooled)() as session, session.begin():
                await broker.publish(1, queue="q", session=session)
            await asyncio.wait_for(handled.wait(), 30)
        await pooled.dispose()
