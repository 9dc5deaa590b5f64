"""What a beginner gets wrong, and what is said of it."""

import asyncio
import threading
import time
from typing import Any

import pytest
from faststream import AckPolicy, FastStream
from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.pool import StaticPool

from faststream_outbox import (
    ConstantRetry,
    OutboxBroker,
    OutboxResponse,
    OutboxRouter,
    TestOutboxBroker,
    make_dlq_table,
    make_outbox_table,
)
from faststream_outbox.embedded import Database
from faststream_outbox.testing import fake_session
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.waiting import until, until_empty

TABLE = make_outbox_table(MetaData())


async def test_a_plain_function_that_outlives_the_drain_keeps_its_row(postgres: PostgresBackend) -> None:
    """Its thread cannot be cancelled, so nobody else may begin with the message meanwhile."""
    broker, begun, go_on = broker_on(postgres, graceful_timeout=0.2), threading.Event(), threading.Event()

    @broker.subscriber("q")
    def handle(_number: int) -> None:
        begun.set()
        go_on.wait(30)

    async with started(broker):
        await publish(broker, postgres, 1)
        await until(begun.is_set)
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0.6)
        [row] = await postgres.rows()
        assert row.acquired_token is not None
        go_on.set()
        await stopping
    [row] = await postgres.rows()
    assert row.acquired_token is not None, "it is left to its lease"


async def test_an_outage_is_told_in_few_words(postgres: PostgresBackend) -> None:
    records = Records()
    engine = create_async_engine("postgresql+asyncpg://nobody:secret@127.0.0.1:1/nothing")
    broker = OutboxBroker(engine, outbox_table=postgres.outbox_table, logger=records.logger)

    @broker.subscriber("q")
    async def handle(_number: int) -> None: ...

    async with started(broker):
        began = time.monotonic()
        while time.monotonic() - began < 3:
            await asyncio.sleep(0.1)
    failures = records.named("claim_failed")
    assert 1 <= len(failures) <= 5
    assert [record.exc_info is not None for record in failures][1:] == [False] * (len(failures) - 1)
    assert failures[0].queue == "q"
    assert "Is the server running" in failures[0].getMessage()
    assert not any("secret" in record.getMessage() for record in records.records)
    [unread] = records.named("outbox_unreadable")
    assert "outbox" in unread.getMessage()


async def test_a_missing_table_is_told_with_what_to_do(postgres: PostgresBackend) -> None:
    await postgres.run("DROP TABLE outbox_dlq")
    records, handled = Records(), list[int]()
    broker = broker_on(postgres, records)

    @broker.subscriber("q")
    async def handle(number: int) -> None:
        handled.append(number)

    async with started(broker):
        [unread] = records.named("outbox_unreadable")
        assert "dead-letter table" in unread.getMessage()
        assert "validate_schema" in unread.getMessage()
        await publish(broker, postgres, 1)
        await until(lambda: handled)


def test_tables_in_each_others_place() -> None:
    metadata = MetaData()
    outbox, dlq = make_outbox_table(metadata), make_dlq_table(metadata)
    with pytest.raises(ValueError, match="outbox_table 'outbox_dlq' lacks"):
        OutboxBroker(outbox_table=dlq, dlq_table=outbox)
    with pytest.raises(ValueError, match="dlq_table 'outbox' lacks original_id"):
        OutboxBroker(outbox_table=outbox, dlq_table=outbox)
    with pytest.raises(ValueError, match=r"lacks queue.*make_outbox_table"):
        OutboxBroker(outbox_table=Table("mine", metadata, Column("id", Integer)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metrics_recorder": 5}, "cannot be called"),
        ({"metrics_recorder": asyncio.sleep}, "is not awaited"),
        ({"graceful_timeout": -1}, "graceful_timeout"),
        ({"graceful_timeout": True}, "graceful_timeout"),
        ({"graceful_timeout": 10**400}, "graceful_timeout"),
    ],
)
def test_options_of_the_broker(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        OutboxBroker(outbox_table=TABLE, **options)


async def test_a_pool_with_one_connection(outbox_postgres: Database) -> None:
    engine = create_async_engine(outbox_postgres.url("asyncpg"), poolclass=StaticPool)
    broker = OutboxBroker(engine, outbox_table=TABLE)

    @broker.subscriber("q")
    async def handle(_number: int) -> None: ...

    with pytest.raises(RuntimeError, match="StaticPool"):
        await broker.start()
    await broker.stop()
    await engine.dispose()


async def test_a_forgotten_verdict_is_told(postgres: PostgresBackend) -> None:
    records = Records()
    broker = broker_on(postgres, records)
    retry = ConstantRetry(delay_seconds=0.01, max_attempts=2)

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL, retry_strategy=retry)
    async def handle(_number: int) -> None: ...

    async with started(broker):
        await publish(broker, postgres, 1)
        await until_empty(postgres)
    assert [record.row_id for record in records.named("no_verdict")] == [1, 1]
    assert "ack(), nack() or reject()" in records.named("no_verdict")[0].getMessage()


async def test_a_response_that_nobody_publishes_is_told(postgres: PostgresBackend) -> None:
    records = Records()
    broker = broker_on(postgres, records)

    @broker.subscriber("q")
    async def handle(number: int) -> OutboxResponse:
        return OutboxResponse(number)

    async with started(broker):
        await publish(broker, postgres, 1)
        await until_empty(postgres)
    assert len(records.named("response_dropped")) == 1


@pytest.mark.parametrize("session", ["nonsense", async_sessionmaker(), 5])
async def test_the_test_broker_refuses_what_is_no_session(session: Any) -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    async with TestOutboxBroker(broker):
        with pytest.raises(TypeError, match="session is the AsyncSession"):
            await broker.publish(1, queue="q", session=session)
        await broker.publish(1, queue="q", session=fake_session())
        await broker.publish(1, queue="q")
        assert len(broker.fake_client.rows) == 2
    with pytest.raises(AttributeError, match="TestOutboxBroker"):
        _ = broker.fake_client


async def test_a_test_broker_of_something_else() -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    with pytest.raises(TypeError, match="needs a broker"):
        TestOutboxBroker()
    with pytest.raises(TypeError, match="not FastStream"):
        TestOutboxBroker(FastStream(broker))  # type: ignore[call-overload] # that is the point
    with pytest.raises(TypeError, match="not OutboxRouter"):
        TestOutboxBroker(OutboxRouter())  # type: ignore[call-overload] # same
    with pytest.raises(ValueError, match="with_real=True"):
        TestOutboxBroker(broker, engine=create_async_engine("postgresql+asyncpg://localhost/app"))
    async with TestOutboxBroker(broker):
        with pytest.raises(RuntimeError, match="already"):
            TestOutboxBroker(broker)


async def test_a_broker_of_a_module_on_the_engine_of_a_test(postgres: PostgresBackend, engine: AsyncEngine) -> None:
    elsewhere = create_async_engine("postgresql+asyncpg://localhost:1/nowhere")
    broker = OutboxBroker(elsewhere, outbox_table=postgres.outbox_table, dlq_table=postgres.dlq_table)
    calls: list[int] = []

    @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.01))
    async def handle(number: int) -> None:
        calls.append(number)
        if len(calls) == 1:
            raise ValueError

    client = broker.client
    async with TestOutboxBroker(broker, with_real=True, engine=engine):
        await broker.publish(1, queue="q")
        await until_empty(postgres)
    assert calls == [1, 1]
    assert broker.client is client
