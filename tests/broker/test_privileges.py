"""A consumer with the rights that the documentation names, and no others."""

import asyncio
import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from faststream_outbox import HashShards, NoRetry, OutboxBroker, Relay
from faststream_outbox.annotations import OutboxSession
from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.relay.memory_target import Memory
from tests.waiting import until, until_empty

RIGHTS = re.compile(r"`([A-Z, ]+) ON (\w+)`")


@asynccontextmanager
async def connecting(
    postgres: PostgresBackend, outbox_postgres: Database, *, publishes: bool
) -> AsyncIterator[AsyncEngine]:
    """Make an engine whose connections have the role of a consumer."""
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    rights = RIGHTS.findall(page[page.index("A consumer needs") :])
    assert {table for _, table in rights} == {"outbox", "outbox_dlq", "outbox_shards"}
    role = f"consumer_{uuid4().hex}"
    await postgres.run(f"CREATE ROLE {role}")
    if not publishes:
        rights.remove(("INSERT", "outbox"))
    for right, table in rights:
        await postgres.run(f"GRANT {right} ON {table} TO {role}")
    driver = postgres.engine.dialect.driver
    arguments = {"server_settings": {"role": role}} if driver == "asyncpg" else {"options": f"-c role={role}"}
    engine = create_async_engine(outbox_postgres.url(driver), connect_args=arguments)
    yield engine
    await engine.dispose()
    await postgres.run(f"DROP OWNED BY {role}")
    await postgres.run(f"DROP ROLE {role}")


@pytest.fixture
async def consumer(postgres: PostgresBackend, outbox_postgres: Database) -> AsyncIterator[AsyncEngine]:
    """A consumer whose handlers publish."""
    async with connecting(postgres, outbox_postgres, publishes=True) as engine:
        yield engine


@pytest.fixture
async def silent_consumer(postgres: PostgresBackend, outbox_postgres: Database) -> AsyncIterator[AsyncEngine]:
    """A consumer whose handlers publish nothing."""
    async with connecting(postgres, outbox_postgres, publishes=False) as engine:
        yield engine


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


KEYED = 5


@pytest.mark.parametrize("kind", ["one by one", "slow last", "parked", "batches", "sessions", "relay"])
async def test_keys_need_no_right_to_insert(postgres: PostgresBackend, silent_consumer: AsyncEngine, kind: str) -> None:
    """The statement that settles a key holds an INSERT only where there is something to insert."""
    records, handled = Records(), list[int]()
    broker = OutboxBroker(
        silent_consumer, outbox_table=postgres.outbox_table, dlq_table=postgres.dlq_table, logger=records.logger
    )
    producer = broker_on(postgres)
    async with postgres.transaction() as session:
        await producer.publish_batch(*range(KEYED), queue="q", session=session, keys=["k"] * KEYED)
    target = Memory()
    if kind == "relay":
        async with Relay(broker, to=target, routes={"q": "there"}):
            await until_empty(postgres)
        handled = list(map(int, target.sent))
    else:
        subscribe(broker, kind, handled)
        async with started(broker):
            if kind == "parked":
                await until_parked(postgres)
            else:
                await until_empty(postgres)
    assert handled == list(range(KEYED))
    failures = [record for record in records.records if getattr(record, "event", "").endswith(("_failed", "_lost"))]
    assert failures == []


def subscribe(broker: OutboxBroker, kind: str, handled: list[int]) -> None:
    """Add a subscriber that appends what it handles."""
    if kind == "batches":

        @broker.subscriber("q", batch=True)
        async def handle_all(numbers: list[int]) -> None:
            handled.extend(numbers)

    elif kind == "sessions":

        @broker.subscriber("q")
        async def handle_in_transaction(number: int, session: OutboxSession) -> None:
            await session.execute(text("SELECT 1"))
            handled.append(number)

    else:

        @broker.subscriber("q", retry_strategy=NoRetry(), on_dead="park")
        async def handle(number: int) -> None:
            handled.append(number)
            if number == KEYED - 1:
                await asyncio.sleep(0.5 if kind == "slow last" else 0)
                if kind == "parked":
                    raise ValueError


async def until_parked(postgres: PostgresBackend) -> None:
    """Wait until only the row that failed is left, parked."""
    await until(postgres.rows, lambda rows: [row.next_attempt_epoch for row in rows] == [math.inf])
