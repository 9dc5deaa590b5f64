"""A consumer with the rights that the documentation names, and no others."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox import HashShards, NoRetry, OutboxBroker
from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.waiting import until, until_empty

RIGHTS = re.compile(r"`([A-Z, ]+) ON (\w+)`")


@pytest.fixture
async def consumer(postgres: PostgresBackend, outbox_postgres: Database) -> AsyncIterator[AsyncEngine]:
    """An engine whose connections have the role of a consumer."""
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    rights = RIGHTS.findall(page[page.index("A consumer needs") :])
    assert {table for _, table in rights} == {"outbox", "outbox_dlq", "outbox_shards"}
    role = f"consumer_{uuid4().hex}"
    await postgres.run(f"CREATE ROLE {role}")
    for right, table in rights:
        await postgres.run(f"GRANT {right} ON {table} TO {role}")
    driver = postgres.engine.dialect.driver
    arguments = {"server_settings": {"role": role}} if driver == "asyncpg" else {"options": f"-c role={role}"}
    engine = create_async_engine(outbox_postgres.url(driver), connect_args=arguments)
    yield engine
    await engine.dispose()
    await postgres.run(f"DROP OWNED BY {role}")
    await postgres.run(f"DROP ROLE {role}")


async def test_a_consumer_needs_no_more(postgres: PostgresBackend, consumer: AsyncEngine) -> None:
    records, answers = Records(), list[int]()
    producer = broker_on(postgres)
    broker = OutboxBroker(
        consumer,
        outbox_table=postgres.outbox_table,
        dlq_table=postgres.dlq_table,
        shards_table=postgres.shards_table,
        logger=records.logger,
    )

    @broker.publisher("answers")
    @broker.subscriber("q", retry_strategy=NoRetry(), ordering=HashShards())
    async def handle(number: int) -> int:
        if number < 0:
            raise ValueError
        return number

    @broker.subscriber("answers")
    async def collect(number: int) -> None:
        answers.append(number)

    async with started(broker):
        await publish(producer, postgres, 1, -1)
        async with postgres.transaction() as session:
            await producer.publish(2, queue="q", session=session, key="a")
        await until(lambda: sorted(answers) == [1, 2])
        await until_empty(postgres)
        assert await broker.ping()
        await broker.stats()
    assert len(await postgres.dead_letters()) == 1
    failures = [record for record in records.records if getattr(record, "event", "").endswith(("_failed", "_lost"))]
    assert failures == []
