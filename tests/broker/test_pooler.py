"""Brokers behind a pooler in transaction mode, connected as the documentation says."""

import asyncio
import shutil
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from faststream_outbox import OutboxBroker
from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, started, until
from tests.pooler import pooling

pytestmark = pytest.mark.skipif(not shutil.which("pgbouncer"), reason="pgbouncer is not installed")

ARGUMENTS: dict[str, dict[str, Any]] = {
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__",
    },
    "psycopg": {"prepare_threshold": None},
}


async def test_a_broker_behind_a_pooler_polls_and_delivers_all(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    driver = postgres.engine.dialect.driver
    records, handled = Records(), set[int]()
    async with pooling(outbox_postgres) as port:
        url = make_url(outbox_postgres.url(driver)).set(port=port, host="127.0.0.1")
        pooled = create_async_engine(url, pool_size=20, connect_args=ARGUMENTS[driver])
        broker = OutboxBroker(
            pooled, outbox_table=postgres.outbox_table, dlq_table=postgres.dlq_table, logger=records.logger
        )

        @broker.subscriber("q", max_workers=4, max_fetch_interval=1)
        async def handle(number: int) -> None:
            handled.add(number)

        sessions = async_sessionmaker(pooled)

        async def publish(number: int) -> None:
            async with sessions() as session, session.begin():
                await broker.publish(number, queue="q", session=session)

        async with started(broker):
            for first in range(0, 100, 10):
                await asyncio.gather(*(publish(first + number) for number in range(10)))
            await until(lambda: len(handled) == 100)
            await until(lambda: records.named("listen_lost"))
        await pooled.dispose()
    assert not records.named("claim_failed")
    assert not records.named("settle_failed")


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
