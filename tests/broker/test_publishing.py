"""Publishing through the broker: in the caller's transaction, refused before it is touched, told after it."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from faststream_outbox import OutboxBroker, OutboxResponse, TestOutboxBroker, make_outbox_table
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.waiting import until, until_empty

HOUR = timedelta(hours=1)

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"queue": ""}, ValueError, "queue is empty"),
    ({"queue": "q" * 256}, ValueError, "256 characters"),
    ({"queue": "a\x00b"}, ValueError, "NUL"),
    ({"queue": 7}, TypeError, "queue is a str"),
    ({"timer_id": "t" * 256}, ValueError, "timer_id has 256 characters"),
    ({"timer_id": ""}, ValueError, "timer_id is empty"),
    ({"headers": {"a": "\x00"}}, ValueError, "NUL"),
    ({"headers": {"a": "\ud800"}}, ValueError, "surrogate"),
    ({"headers": {"a": float("nan")}}, ValueError, "cannot be stored as JSON"),
    ({"headers": {"a": {1, 2}}}, ValueError, "cannot be stored as JSON"),
    ({"headers": {1: "a"}}, TypeError, "name is a str"),
    ({"headers": {"content-type": "text/csv"}}, ValueError, "content-type"),
    ({"headers": {"correlation_id": "a"}, "correlation_id": "b"}, ValueError, "correlation_id"),
    ({"correlation_id": "a\x00"}, ValueError, "NUL"),
    ({"activate_in": HOUR, "activate_at": datetime.now(UTC)}, ValueError, "not both"),
    ({"activate_at": datetime(2026, 1, 1)}, ValueError, "time zone"),  # noqa: DTZ001 - that is what is refused
    ({"activate_at": datetime.min.replace(tzinfo=UTC)}, ValueError, "stands for no instant"),
    ({"activate_in": -HOUR}, ValueError, "activate_in"),
    ({"activate_in": 5}, TypeError, "timedelta"),
    ({"timer_conflict": "replace", "timer_id": "t"}, ValueError, "timer_conflict"),
    ({"timer_conflict": "extend"}, ValueError, "timer_id"),
    ({"session": object()}, TypeError, "async_sessionmaker"),
    ({"session": None}, TypeError, "async_sessionmaker"),
]


@pytest.mark.parametrize(("wrong", "error", "words"), WRONG, ids=[str(n) for n in range(len(WRONG))])
async def test_wrong_arguments_leave_the_transaction_alone(
    postgres: PostgresBackend, wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        await session.execute(text("CREATE TABLE proof AS SELECT 1"))
        with pytest.raises(error, match=words):
            await broker.publish({"a": 1}, **{"queue": "q", "session": session, **wrong})
        assert (await session.execute(text("SELECT count(*) FROM proof"))).scalar() == 1
    assert await postgres.rows() == []


@pytest.mark.parametrize(("wrong", "error", "words"), WRONG[:-2], ids=[str(n) for n in range(len(WRONG) - 2)])
async def test_the_memory_store_refuses_the_same(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()))
    async with TestOutboxBroker(broker) as test_broker:
        with pytest.raises(error, match=words):
            await test_broker.publish({"a": 1}, **{"queue": "q", **wrong})
        assert test_broker.fake_client.rows == []


async def test_sessions_of_the_wrong_kind(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    broker = broker_on(postgres)
    engine = create_engine(outbox_postgres.url("psycopg"))
    with Session(engine) as session:
        with pytest.raises(TypeError, match="publish_sync"):
            await broker.publish(1, queue="q", session=session)  # type: ignore[arg-type] # that is the point
        with pytest.raises(TypeError, match="publish_sync"):
            await broker.publisher("q").publish(1, session=session)
        with pytest.raises(TypeError, match="publish_sync"):
            await broker.publish_batch(queue="q", session=session)  # type: ignore[arg-type] # same
        with pytest.raises(TypeError, match="publish_sync"):
            OutboxResponse(1, queue="q", session=session)
    async with postgres.sessions() as other:
        OutboxResponse(1, queue="q", session=other)
        with pytest.raises(TypeError, match="use await"):
            broker.publish_sync(1, queue="q", session=other)  # type: ignore[arg-type] # same
    engine.dispose()


NO_SESSIONS = ["session", async_sessionmaker(), sessionmaker(), object()]


@pytest.mark.parametrize("wrong", NO_SESSIONS, ids=lambda wrong: type(wrong).__name__)
async def test_what_is_no_session_is_refused_without_a_message_too(postgres: PostgresBackend, wrong: Any) -> None:
    broker, words = broker_on(postgres), f"not {type(wrong).__name__}.*async_sessionmaker"
    with pytest.raises(TypeError, match=words):
        OutboxResponse(1, queue="q", session=wrong)
    with pytest.raises(TypeError, match=words):
        await broker.publish_batch(queue="q", session=wrong)
    with pytest.raises(TypeError, match="not NoneType"):
        await broker.publish_batch(queue="q")
    async with TestOutboxBroker(broker) as test_broker:
        assert await test_broker.publish_batch(queue="q") == []
        with pytest.raises(TypeError, match=words):
            await test_broker.publish_batch(queue="q", session=wrong)


async def test_a_batch_without_messages_sends_nothing(postgres: PostgresBackend) -> None:
    broker, sent = broker_on(postgres), list[str]()
    event.listen(postgres.engine.sync_engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    async with postgres.sessions() as session:
        assert await broker.publish_batch(queue="q", session=session) == []
        wrongs: list[dict[str, Any]] = [{"queue": ""}, {"queue": "q", "keys": ["a"]}, {"queue": "q", "headers": [1]}]
        for wrong in wrongs:
            with pytest.raises((TypeError, ValueError)):
                await broker.publish_batch(session=session, **wrong)
        assert not session.in_transaction()
    assert sent == []


async def test_a_rollback_takes_the_message_along(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.sessions() as session, session.begin():
        kept = await broker.publish("kept", queue="q", session=session)
        savepoint = await session.begin_nested()
        await broker.publish("lost", queue="q", session=session)
        await savepoint.rollback()
        async with session.begin_nested():
            kept_too = await broker.publish("kept too", queue="q", session=session)
    async with postgres.sessions() as session:
        await broker.publish("lost", queue="q", session=session)  # nobody commits
    rows = await postgres.rows()
    assert [(row.id, row.payload) for row in rows] == [(kept, b"kept"), (kept_too, b"kept too")]


async def test_every_kind_of_session(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.engine.begin() as connection:
        await broker.publish(1, queue="q", session=connection)
    async with postgres.engine.connect() as connection:
        autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await broker.publish(2, queue="q", session=autocommit)
    scoped = async_scoped_session(async_sessionmaker(postgres.engine), scopefunc=asyncio.current_task)
    async with scoped() as session, session.begin():
        await broker.publish(3, queue="q", session=scoped)
    await scoped.remove()
    async with postgres.transaction() as session:
        assert isinstance(session, AsyncSession)
        await broker.publisher("q").publish(4, session=session)
    assert [row.payload for row in await postgres.rows()] == [b"1", b"2", b"3", b"4"]


async def test_synchronous_sessions_wake_the_subscriber(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    broker, bodies = broker_on(postgres), list[int]()

    @broker.subscriber("q", min_fetch_interval=300, max_fetch_interval=300)  # nobody polls
    async def handle(body: int) -> None:
        bodies.append(body)

    engine = create_engine(outbox_postgres.url("psycopg"))

    def flask() -> None:
        with Session(engine) as session, session.begin():
            broker.publish_sync(1, queue="q", session=session)
        with engine.begin() as connection:
            broker.publish_sync(2, queue="q", session=connection)
        registry = scoped_session(sessionmaker(engine))
        with registry.begin():
            broker.publish_sync(3, queue="q", session=registry)
        registry.remove()

    async with started(broker):
        await asyncio.to_thread(flask)
        await until(lambda: len(bodies) == 3)
    assert sorted(bodies) == [1, 2, 3]
    engine.dispose()


async def test_publishing_from_a_thread_without_a_loop(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    broker = OutboxBroker(outbox_table=postgres.outbox_table)
    engine = create_engine(outbox_postgres.url("psycopg"))
    ids: list[int | None] = []

    def script() -> None:
        with Session(engine) as session, session.begin():
            ids.append(broker.publish_sync({"a": 1}, queue="q", session=session, timer_id="t"))
            ids.append(broker.publish_sync({"a": 1}, queue="q", session=session, timer_id="t"))

    thread = threading.Thread(target=script)
    thread.start()
    await asyncio.to_thread(thread.join, 30)
    [row] = await postgres.rows()
    assert ids == [row.id, None]
    engine.dispose()


async def test_batches(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        assert await broker.publish_batch(queue="q", session=session) == []
        ids = await broker.publish_batch(None, b"", "a", 1, queue="q", session=session, headers={"h": 1})
        with pytest.raises(ValueError, match="2 entries for 1"):
            await broker.publish_batch(1, queue="q", session=session, keys=["a", "b"])
        keyed = await broker.publish_batch(1, 2, queue="k", session=session, keys=["a", None])
    rows = await postgres.rows()
    assert [row.id for row in rows] == ids + keyed
    assert [row.payload for row in rows] == [b"", b"", b"a", b"1", b"1", b"2"]
    assert [row.entity_key for row in rows] == [None] * 4 + ["a", None]
    assert rows[0].headers == {"h": 1}


async def test_one_statement_per_publish(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    sent: list[str] = []
    event.listen(postgres.engine.sync_engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    async with postgres.transaction() as session:
        await broker.publish(1, queue="q", session=session)
        assert len(sent) == 1
        await broker.publish_batch(1, 2, 3, queue="q", session=session)
        assert len(sent) == 2


async def test_headers_reach_the_handler(postgres: PostgresBackend) -> None:
    broker, seen = broker_on(postgres), dict[str, Any]()

    @broker.subscriber("q")
    async def handle(body: dict[str, int], message: OutboxMessage) -> None:
        seen.update(body=body, headers=message.headers, message_id=message.message_id, cid=message.correlation_id)

    async with started(broker):
        async with postgres.transaction() as session:
            row_id = await broker.publish({"a": 1}, queue="q", session=session, headers={"x": [1, {"y": None}]})
        await until(lambda: seen)
    assert seen == {
        "body": {"a": 1},
        "headers": {"x": [1, {"y": None}], "content-type": "application/json"},
        "message_id": str(row_id),
        "cid": str(row_id),
    }


async def test_an_answer_is_written_by_the_statement_that_settles(postgres: PostgresBackend) -> None:
    broker, answers = broker_on(postgres), list[tuple[str, Any]]()

    @broker.publisher("next", headers={"from": "publisher"})
    @broker.subscriber("q", propagate_inbound_headers=True)
    async def handle(body: int) -> int:
        return body + 1

    @broker.subscriber("responding")
    async def respond(body: int) -> OutboxResponse:
        return OutboxResponse(body, queue="next", headers={"own": 1}, timer_id="t")

    @broker.subscriber(["next", "replies"])
    async def collect(message: OutboxMessage) -> None:
        answers.append((message.raw_message.queue, await message.decode()))
        assert message.correlation_id == "c"
        if message.raw_message.queue == "next" and await message.decode() == 2:
            assert {"inbound", "from"} <= message.headers.keys()

    @broker.subscriber("asked")
    async def answer(body: int) -> str:
        return f"re: {body}"

    async with started(broker):
        async with postgres.transaction() as session:
            options: dict[str, Any] = {"session": session, "correlation_id": "c"}
            await broker.publish(1, queue="q", headers={"inbound": 1}, **options)
            await broker.publish(5, queue="responding", **options)
            await broker.publish(7, queue="asked", reply_to="replies", **options)
        await until(lambda: len(answers) == 3)
        await until_empty(postgres)
    assert sorted(answers, key=str) == [("next", 2), ("next", 5), ("replies", "re: 7")]
    assert await postgres.dead_letters() == []


async def test_a_response_with_a_session_is_part_of_its_transaction(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q")
    async def handle(_body: int, message: OutboxMessage) -> OutboxResponse:
        del message
        return OutboxResponse("in the session", queue="next", session=session)

    async with postgres.sessions() as session, started(broker):
        await session.begin()
        await publish(broker, postgres, 1)
        await until_empty(postgres)  # settled, and the answer is still the session's
        await session.commit()
    assert [row.payload for row in await postgres.rows() if row.queue == "next"] == [b"in the session"]


async def test_a_broker_without_an_engine_only_publishes(postgres: PostgresBackend) -> None:
    broker = OutboxBroker(outbox_table=postgres.outbox_table)
    async with broker, postgres.transaction() as session:
        await broker.publish(1, queue="q", session=session)
    assert len(await postgres.rows()) == 1
    assert not await broker.ping()

    @broker.subscriber("q")
    async def handle(_body: int) -> None: ...

    with pytest.raises(RuntimeError, match="OutboxBroker\\(engine"):
        await broker.start()
    await broker.stop()


async def test_a_pool_that_is_too_small_is_refused(outbox_postgres: Database, driver: str) -> None:
    engine = create_async_engine(outbox_postgres.url(driver), pool_size=4, max_overflow=0)
    broker = OutboxBroker(engine, outbox_table=make_outbox_table(MetaData()))
    for queue in ("a", "b"):

        @broker.subscriber(queue, max_workers=50)
        async def handle(_body: int) -> None: ...

    with pytest.raises(RuntimeError, match="pool_size=5"):
        await broker.start()
    await broker.stop()
    await engine.dispose()


async def test_what_no_statement_takes_is_refused_before_it_is_sent(postgres: PostgresBackend) -> None:
    """An error of the database would abort the caller's transaction."""
    broker = broker_on(postgres)
    half = bytes(300_000_000)
    async with postgres.transaction() as session:
        with pytest.raises(ValueError, match=r"500,000,001 bytes.* publish where it is"):
            await broker.publish(bytes(500_000_001), "q", session=session)
        with pytest.raises(ValueError, match=r"600,000,000 bytes.* several batches"):
            await broker.publish_batch(half, half, queue="q", session=session)
        await broker.publish(b"small", "q", session=session)
    assert [row.payload for row in await postgres.rows()] == [b"small"]
