"""Publishing through connections of asyncpg and psycopg: in their transaction, in one round trip, with all checks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import MetaData

from faststream_outbox import OutboxBroker, OutboxResponse, TestOutboxBroker, make_outbox_table
from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.broker.test_publishing import WRONG
from tests.waiting import until

HOUR = timedelta(hours=1)
KINDS = ("asyncpg", "pool", "psycopg", "cursor")


@pytest.fixture
def driver() -> str:
    """The driver of the broker's engine, which has nothing to do with the caller's connection."""
    return "asyncpg"


@pytest.fixture(params=KINDS)
async def connection(request: pytest.FixtureRequest, outbox_postgres: Database) -> AsyncIterator[Any]:
    """A driver's connection in autocommit, or what stands for it."""
    dsn = outbox_postgres.dsn
    match request.param:
        case "asyncpg":
            connection = await asyncpg.connect(dsn)
            yield connection
            await connection.close()
        case "pool":
            async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as lent:
                yield lent
        case "psycopg":
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                yield connection
        case "cursor":
            async with (
                await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection,
                connection.cursor(row_factory=psycopg.rows.dict_row) as cursor,
            ):
                yield cursor


def transaction(connection: Any) -> Any:
    return (connection.connection if isinstance(connection, psycopg.AsyncCursor) else connection).transaction()


async def test_messages_come_with_the_commit(postgres: PostgresBackend, connection: Any) -> None:
    broker = broker_on(postgres)
    async with transaction(connection):
        first = await broker.publish({"a": 1}, queue="q", session=connection, headers={"h": "\u00e9 %s"}, key="k")
        batch = await broker.publish_batch(1, 2, queue="q", session=connection)
        keyed = await broker.publish_batch(1, 2, queue="q", session=connection, keys=["a", None])
        publisher = await broker.publisher("q").publish(b"bytes", session=connection)
        assert await postgres.rows() == []
        assert len(await broker.fetch_unprocessed(session=connection)) == 6
    rows = await postgres.rows()
    assert [row.id for row in rows] == [first, *batch, *keyed, publisher]
    assert (rows[0].payload, rows[0].entity_key, rows[3].entity_key) == (b'{"a":1}', "k", "a")
    assert rows[0].headers == {"h": "\u00e9 %s", "content-type": "application/json"}


async def test_a_rollback_takes_them_back(postgres: PostgresBackend, connection: Any) -> None:
    broker = broker_on(postgres)

    async def fail() -> None:
        async with transaction(connection):
            await broker.publish(1, queue="q", session=connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await postgres.rows() == []


async def test_timers(postgres: PostgresBackend, connection: Any) -> None:
    broker = broker_on(postgres)
    timer: Any = {"queue": "q", "timer_id": "t"}
    async with transaction(connection):
        assert await broker.publish(1, **timer, session=connection, activate_in=HOUR) is not None
        assert await broker.publish(1, **timer, session=connection, activate_in=HOUR) is None
        extend: Any = {"activate_in": 2 * HOUR, "timer_conflict": "extend"}
        assert await broker.publish(1, **timer, session=connection, **extend) is None
    [row] = await postgres.rows()
    assert row.next_attempt_epoch - row.created_epoch > 7000
    async with transaction(connection):
        assert await broker.cancel_timer(**timer, session=connection)
        assert not await broker.cancel_timer(**timer, session=connection)
    assert await postgres.rows() == []


async def test_a_connection_without_a_transaction_is_refused(postgres: PostgresBackend, connection: Any) -> None:
    broker = broker_on(postgres)
    for publishing in (
        broker.publish(1, queue="q", session=connection),
        broker.publish_batch(1, 2, queue="q", session=connection),
        broker.cancel_timer(queue="q", timer_id="t", session=connection),
    ):
        with pytest.raises(RuntimeError, match=r"is in no transaction.*async with connection.transaction\(\)"):
            await publishing
    assert await postgres.rows() == []
    assert await broker.fetch_unprocessed(session=connection) == []


async def test_a_connection_that_is_closed_or_released_is_named(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    dsn = outbox_postgres.dsn
    closed, terminated = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    await closed.close()
    terminated.terminate()
    of_psycopg = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await of_psycopg.close()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        async with pool.acquire() as released:
            pass
        for connection in (closed, terminated, of_psycopg, released):
            with pytest.raises(RuntimeError, match="is closed, or went back to its pool"):
                await broker_on(postgres).publish(1, queue="q", session=connection)


@pytest.mark.parametrize(("wrong", "error", "words"), WRONG[:-2], ids=[str(n) for n in range(len(WRONG) - 2)])
async def test_wrong_arguments_leave_the_transaction_alone(
    outbox_postgres: Database, wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()))
    connection = await asyncpg.connect(outbox_postgres.dsn)
    async with connection.transaction():
        with pytest.raises(error, match=words):
            await broker.publish({"a": 1}, **{"queue": "q", "session": connection, **wrong})
        assert await connection.fetchval("SELECT 1") == 1
    await connection.close()


async def test_an_error_of_the_database_is_the_drivers_own(postgres: PostgresBackend, connection: Any) -> None:
    await postgres.run(f"ALTER TABLE {postgres.table} ADD CHECK (queue <> 'refused')")
    broker = broker_on(postgres)

    async def publish() -> None:
        async with transaction(connection):
            await broker.publish(1, queue="refused", session=connection)

    with pytest.raises((asyncpg.CheckViolationError, psycopg.errors.CheckViolation)):
        await publish()


async def test_psycopg_without_autocommit_begins_the_transaction(
    postgres: PostgresBackend, outbox_postgres: Database
) -> None:
    broker = broker_on(postgres)
    async with await psycopg.AsyncConnection.connect(outbox_postgres.dsn) as connection:
        await broker.publish("dropped", queue="q", session=connection)
        await connection.rollback()
        await broker.publish("kept", queue="q", session=connection)
        await connection.commit()
    assert [row.payload for row in await postgres.rows()] == [b"kept"]


async def test_a_pipeline_sends_it_with_what_is_before(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    await postgres.run("CREATE TABLE notes (id int)")
    broker = broker_on(postgres)
    async with (
        await psycopg.AsyncConnection.connect(outbox_postgres.dsn, autocommit=True) as connection,
        connection.pipeline(),
        connection.transaction(),
    ):
        await connection.execute("INSERT INTO notes VALUES (1)")
        row_id = await broker.publish("piped", queue="q", session=connection)
        assert connection.pgconn.pipeline_status == psycopg.pq.PipelineStatus.ON
    [row] = await postgres.rows()
    assert (row.id, row.payload) == (row_id, b"piped")
    assert await postgres.one("SELECT count(*) FROM notes") == 1


# What waits in the pipeline before a message, and whether the message is in a transaction.
QUEUED = [
    (["SELECT 1"], False),
    (["BEGIN", "SELECT 1"], True),
    (["BEGIN", "SELECT 1", "COMMIT"], False),
    (["BEGIN", "COMMIT", "BEGIN"], True),
]


@pytest.mark.parametrize(("queued", "is_open"), QUEUED, ids=["; ".join(queued) for queued, _ in QUEUED])
@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
async def test_a_pipeline_in_autocommit_takes_a_message_only_in_a_transaction(
    postgres: PostgresBackend, outbox_postgres: Database, kind: str, queued: list[str], *, is_open: bool
) -> None:
    broker, refusal = broker_on(postgres), pytest.raises(RuntimeError, match="is in no transaction")

    async def asynchronous() -> None:
        async with await psycopg.AsyncConnection.connect(outbox_postgres.dsn, autocommit=True) as connection:
            async with connection.pipeline():
                for statement in queued:
                    await connection.execute(statement)
                with nullcontext() if is_open else refusal:
                    await broker.publish(1, queue="q", session=connection)
            await connection.execute("ROLLBACK")

    def synchronous() -> None:
        with psycopg.connect(outbox_postgres.dsn, autocommit=True) as connection:
            with connection.pipeline():
                for statement in queued:
                    connection.execute(statement)
                with nullcontext() if is_open else refusal:
                    broker.publish_sync(1, queue="q", session=connection)
            connection.execute("ROLLBACK")

    if kind == "asynchronous":
        await asynchronous()
    else:
        synchronous()
    assert await postgres.rows() == []


async def test_synchronous_connections(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    broker = broker_on(postgres)
    with psycopg.connect(outbox_postgres.dsn, autocommit=True) as connection:
        with pytest.raises(RuntimeError, match=r"with connection.transaction\(\)"):
            broker.publish_sync(1, queue="q", session=connection)
        with connection.transaction(), connection.cursor() as cursor:
            broker.publish_sync("connection", queue="q", session=connection, key="k", headers={"a": 1})
            broker.publish_sync("cursor", queue="q", session=cursor)
        with pytest.raises(TypeError, match=r"use broker\.publish_sync"):
            await broker.publish(1, queue="q", session=connection)  # type: ignore[arg-type]  # that is the point
    rows = await postgres.rows()
    assert [(row.payload, row.entity_key) for row in rows] == [(b"connection", "k"), (b"cursor", None)]


async def test_an_asynchronous_connection_is_refused_by_publish_sync(
    postgres: PostgresBackend, connection: Any
) -> None:
    with pytest.raises(TypeError, match="use await"):
        broker_on(postgres).publish_sync(1, queue="q", session=connection)


async def test_subscribers_are_woken(postgres: PostgresBackend, connection: Any) -> None:
    broker, handled = broker_on(postgres), list[int]()

    @broker.subscriber("q", max_fetch_interval=3600)
    async def handle(number: int) -> None:
        handled.append(number)

    async with started(broker):
        for number in range(4):
            async with transaction(connection):
                await broker.publish(number, queue="q", session=connection)
                await broker.publish(number, queue="q", session=connection)
            await until(lambda expected=2 * number + 2: len(handled) == expected)  # type: ignore[misc]  # a default binds it


async def test_a_transaction_that_stays_open_wakes_them_when_it_ends(
    postgres: PostgresBackend, connection: Any
) -> None:
    broker, handled = broker_on(postgres), list[int]()

    @broker.subscriber("q", max_fetch_interval=3600)
    async def handle(number: int) -> None:
        handled.append(number)

    async with started(broker):
        async with postgres.transaction() as session:
            await broker.publish(0, queue="q", session=session)  # from now on, notifications are collected
        async with transaction(connection):
            await broker.publish(1, queue="q", session=connection)
            await until(lambda: 0 in handled)
            await asyncio.sleep(0.1)  # the first looks find it in its transaction
        await until(lambda: 1 in handled)


async def test_a_response_takes_them_too(connection: Any) -> None:
    OutboxResponse(1, queue="q", session=connection)
    with pytest.raises(TypeError, match="not object"):
        OutboxResponse(1, queue="q", session=object())  # type: ignore[arg-type]  # that is the point


async def test_in_memory_connections_are_accepted_and_ignored(connection: Any) -> None:
    broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()))
    async with TestOutboxBroker(broker) as test_broker:
        await test_broker.publish(1, queue="q", session=connection)
        assert [row.queue for row in test_broker.fake_client.rows] == ["q"]
