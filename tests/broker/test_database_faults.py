"""A database that goes away, changes or lies under a running broker: nothing is lost, and delivery goes on."""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import ConstantRetry, NoRetry, OutboxBroker
from faststream_outbox.annotations import OutboxSession
from faststream_outbox.embedded import Database, EmbeddedPostgres
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, publish, started
from tests.pooler import pooling
from tests.waiting import until, until_empty

EAGER: dict[str, Any] = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2}


async def test_a_missing_table_is_told_and_may_yet_come(postgres: PostgresBackend) -> None:
    await postgres.run("DROP TABLE outbox")
    records, handled = Records(), list[int]()
    broker = broker_on(postgres, records)

    @broker.subscriber("q", **EAGER)
    async def handle(number: int) -> None:
        handled.append(number)

    async with started(broker):
        [record] = records.named("outbox_unreadable")
        assert record.getMessage().startswith('The outbox "outbox" cannot be read: ')
        await until(lambda: len(records.named("claim_failed")) > 1)
        for each in (record, *records.named("claim_failed")):  # the text says everything: no traceback behind it
            assert "`await broker.validate_schema()` (extra `validate`) lists what is missing" in each.getMessage()
            assert each.exc_info is None
        assert not await broker.ping()
        assert len(records.named("claim_failed")) < 20  # no tight loop
        await postgres.create()
        await publish(broker, postgres, 1)
        await until(lambda: handled)
        await until(lambda: records.named("recovered"))
        assert await broker.ping()


async def test_a_missing_column_is_told(postgres: PostgresBackend) -> None:
    await postgres.run("ALTER TABLE outbox DROP COLUMN lease_expires_at")
    records = Records()
    broker = broker_on(postgres, records)

    @broker.subscriber("q", **EAGER)
    async def handle(_number: int) -> None: ...

    async with started(broker):
        [record] = records.named("outbox_unreadable")
        assert "lease_expires_at" in record.getMessage()
        assert not await broker.ping()


async def test_a_drifted_dead_letter_table_keeps_the_rows(postgres: PostgresBackend) -> None:
    await postgres.run("ALTER TABLE outbox_dlq RENAME COLUMN last_exception TO gone")
    records = Records()
    broker = broker_on(postgres, records)

    @broker.subscriber("q", retry_strategy=NoRetry(), **EAGER)
    async def handle(number: int) -> None:
        if number:
            raise ValueError

    async with started(broker):
        assert "last_exception" in records.named("outbox_unreadable")[0].getMessage()
        await publish(broker, postgres, 0, 1, 0)
        await until(lambda: records.named("settle_failed"))
        await until_one_left(postgres)
        await postgres.run("ALTER TABLE outbox_dlq RENAME COLUMN gone TO last_exception")
        await until_empty(postgres)
    [letter] = await postgres.dead_letters()
    assert letter.payload == b"1"


async def until_one_left(postgres: PostgresBackend) -> None:
    await until(postgres.rows, lambda found: len(found) == 1)


async def test_connections_killed_at_random(postgres: PostgresBackend) -> None:
    broker, handled = broker_on(postgres), Counter[int]()

    @broker.subscriber("q", max_workers=4, **EAGER)
    async def handle(number: int) -> None:
        handled[number] += 1
        await asyncio.sleep(0.001)

    published = 0
    async with started(broker):
        for _ in range(15):
            try:
                await publish(broker, postgres, *range(published, published + 40))
            except (InterfaceError, OperationalError, DBAPIError):
                pass  # the killed one was the publisher's, and whether it committed shows below
            else:
                published += 40
            await kill_one(postgres)
            await asyncio.sleep(0.05)
        await until_empty_again(postgres)
        await until_pings(broker)
    assert {number for number in range(published) if not handled[number]} == set()


async def until_empty_again(postgres: PostgresBackend) -> None:
    """Wait for the last row, on connections of which some were killed while they were pooled."""
    while True:
        try:
            return await until_empty(postgres)
        except DBAPIError:
            continue


async def kill_one(postgres: PostgresBackend) -> None:
    """End one of the connections, whichever it is: of the claimer, the settler, LISTEN or the pool."""
    statement = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"""
    for _ in range(5):
        try:
            await postgres.run(statement)
        except DBAPIError:
            continue  # it had been killed itself, while it was pooled
        return


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_server_that_crashes_twice_under_load(driver: str) -> None:
    handled: Counter[int] = Counter()
    async with EmbeddedPostgres(fast=True) as server:
        engine = create_async_engine(server.url(driver), pool_size=10)
        postgres = PostgresBackend(engine)
        await postgres.create()
        broker = broker_on(postgres)

        @broker.subscriber("q", max_workers=4, lease_ttl_seconds=2, **EAGER)
        async def handle(number: int) -> None:
            handled[number] += 1
            await asyncio.sleep(0.002)

        async with started(broker):
            for first in (0, 200):
                await publish(broker, postgres, *range(first, first + 200))
                await until(partial(some_of, handled, first))
                await asyncio.to_thread(server.stop, "immediate")
                assert not await broker.ping(timeout=2)
                await asyncio.to_thread(server.start)
            await until_empty_again(postgres)
            await until_pings(broker)
        await engine.dispose()
    assert sorted(handled) == list(range(400))


def some_of(handled: Counter[int], first: int) -> bool:
    return len(handled) > first + 20


async def until_pings(broker: OutboxBroker) -> None:
    await until(broker.ping)


@pytest.mark.usefixtures("pgbouncer")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_pooler_in_transaction_mode(outbox_postgres: Database, driver: str) -> None:
    # What the documentation tells users of a pooler to do: no prepared statements.
    arguments: dict[str, Any] = {"prepare_threshold": None}
    if driver == "asyncpg":
        arguments = {"statement_cache_size": 0, "prepared_statement_cache_size": 0, "prepared_statement_name_func": str}
    records, handled = Records(), Counter[int]()
    async with pooling(outbox_postgres) as port:
        url = make_url(outbox_postgres.url(driver)).set(host="127.0.0.1", port=port)
        engine = create_async_engine(url, connect_args=arguments)
        postgres = PostgresBackend(engine)
        await postgres.create()
        broker = broker_on(postgres, records)

        @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.01), **EAGER)
        async def handle(number: int) -> None:
            handled[number] += 1
            if number % 10 == 0 and handled[number] == 1:
                raise ValueError

        async with started(broker):
            for first in range(0, 200, 50):
                await publish(broker, postgres, *range(first, first + 50))
            await until_empty(postgres)
            await until(lambda: records.named("listen_lost"))
            assert await broker.ping()
        await engine.dispose()
    assert handled == {number: 2 if number % 10 == 0 else 1 for number in range(200)}


@pytest.mark.parametrize("offset", [-600, 600])
async def test_a_worker_whose_clock_is_wrong(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """Schedules, leases and the bound on all retries follow the database's clock."""
    real = time.time

    class WrongDatetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override] # the clock that is wrong
            return datetime.fromtimestamp(real() + offset, tz)

    monkeypatch.setattr(time, "time", lambda: real() + offset)
    for module in (
        "faststream_outbox.storage.rows",
        "faststream_outbox.retry",
        "faststream_outbox.subscriber.judge",
    ):
        monkeypatch.setattr(f"{module}.datetime", WrongDatetime, raising=False)
    broker, attempts = broker_on(postgres), list[int]()
    bounded = ConstantRetry(delay_seconds=0.2, max_total_delay_seconds=0.5)

    @broker.subscriber("q", retry_strategy=bounded)
    async def handle(_number: int) -> None:
        attempts.append(1)
        raise ValueError

    async with started(broker):
        await publish(broker, postgres, 1)
        await until_empty(postgres)
    [letter] = await postgres.dead_letters()
    assert 2 <= len(attempts) <= 3
    assert letter.last_attempt_at is not None
    now = await postgres.one("SELECT now()")
    assert isinstance(now, datetime)
    assert abs((now - letter.last_attempt_at).total_seconds()) < 60
    assert letter.last_attempt_at.tzinfo is not None
    assert letter.last_attempt_at.astimezone(UTC) <= now


async def test_a_long_outage_burns_no_attempts() -> None:
    async with EmbeddedPostgres(fast=True) as server:
        engine = create_async_engine(server.url("asyncpg"), pool_size=10)
        postgres = PostgresBackend(engine)
        await postgres.create()
        broker, deliveries = broker_on(postgres), list[int]()

        @broker.subscriber("q", **EAGER)
        async def handle(_number: int) -> None:
            deliveries.append(1)

        async with started(broker):
            await asyncio.to_thread(server.stop, "immediate")
            await asyncio.sleep(3)
            await asyncio.to_thread(server.start)
            await publish_when_back(broker, postgres)
            await until_empty(postgres)
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM outbox_dlq"))).scalar() == 0
        await engine.dispose()
    assert deliveries == [1]


async def test_an_outage_in_the_middle_of_transactions_burns_no_attempts(driver: str) -> None:
    """Some handlers have written when the server dies, and others begin while it is not there."""
    async with EmbeddedPostgres(fast=True) as server:
        engine = create_async_engine(server.url(driver), pool_size=10)
        postgres = PostgresBackend(engine)
        await postgres.create()
        await postgres.run("CREATE TABLE effects (number int)")
        broker, calls, gate = broker_on(postgres), list[int](), asyncio.Event()

        @broker.subscriber("q", max_workers=2, retry_strategy=NoRetry(), **EAGER)
        async def handle(number: int, session: OutboxSession) -> None:
            calls.append(number)
            await session.execute(text("INSERT INTO effects VALUES (:number)"), {"number": number})
            await gate.wait()

        await publish(broker, postgres, *range(10))
        async with started(broker):
            await until(lambda: len(calls) == 2)
            await asyncio.to_thread(server.stop, "immediate")
            gate.set()
            await until(lambda: len(calls) > 2)
            await asyncio.to_thread(server.start)
            await until(lambda: is_empty(postgres))
        assert await postgres.dead_letters() == []
        assert await postgres.run("SELECT number FROM effects ORDER BY number") == [(number,) for number in range(10)]
        await engine.dispose()


async def is_empty(postgres: PostgresBackend) -> bool:
    try:
        return await postgres.rows() == []
    except (DBAPIError, OSError):
        return False


async def publish_when_back(broker: OutboxBroker, postgres: PostgresBackend) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                return await publish(broker, postgres, 1)
            except (DBAPIError, OSError):
                await asyncio.sleep(0.1)
