"""Collected messages: written by one statement before the commit, dropped with what is rolled back."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from faststream import BaseMiddleware
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, registry, scoped_session, sessionmaker

from faststream_outbox import OutboxBroker, OutboxResponse, TestOutboxBroker, make_outbox_table
from faststream_outbox.annotations import OutboxSession
from faststream_outbox.embedded import Database
from faststream_outbox.storage import MemoryStore
from faststream_outbox.testing import fake_session
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started
from tests.broker.test_publishing import WRONG
from tests.waiting import until

HOUR = timedelta(hours=1)


def statements_of(postgres: PostgresBackend) -> list[str]:
    sent: list[str] = []
    event.listen(postgres.engine.sync_engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    return sent


async def bodies(postgres: PostgresBackend) -> list[Any]:
    return [json.loads(row.payload) for row in await postgres.rows()]


async def test_one_statement_inserts_all_before_the_commit(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        outbox = broker.collect(session)
        sent = statements_of(postgres)
        first = outbox.publish(1, queue="q", headers={"a": "b"}, correlation_id="c")
        second = outbox.publish(2, "other", key="k", activate_in=HOUR)
        assert sent == []
        with pytest.raises(RuntimeError, match="has not committed yet"):
            _ = first.id
        await session.execute(text("SELECT 1"))
    assert [statement.split()[0] for statement in sent] == ["SELECT", "WITH"]
    one, two = await postgres.rows()
    assert (first.id, second.id) == (one.id, two.id)
    assert (one.queue, one.payload, one.headers) == (
        "q",
        b"1",
        {"a": "b", "content-type": "application/json", "correlation_id": "c"},
    )
    assert (two.queue, two.entity_key) == ("other", "k")
    assert two.next_attempt_epoch - two.created_epoch == pytest.approx(3600)


class Note:
    id: int


registry().map_imperatively(Note, Table("notes", MetaData(), Column("id", Integer, primary_key=True)))


async def test_rows_come_after_the_changes_of_the_session(postgres: PostgresBackend) -> None:
    await postgres.run("CREATE TABLE notes (id int PRIMARY KEY)")
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        broker.collect(session).publish(1, queue="q", key="k")
        note = Note()
        note.id = 2
        session.add(note)
        sent = statements_of(postgres)
    assert ["notes" in statement for statement in sent] == [True, False]


async def test_a_rollback_drops_them_and_the_session_goes_on(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.sessions() as session:
        outbox = broker.collect(session)
        dropped = outbox.publish("dropped", queue="q")
        assert session.in_transaction()
        await session.rollback()
        outbox.publish("kept", queue="q")
        await session.commit()
        outbox.publish("kept too", queue="q")
        await session.commit()
        outbox.publish("closed", queue="q")
    async with postgres.sessions() as again:
        await again.commit()
    await session.commit()
    with pytest.raises(RuntimeError, match="rolled back"):
        _ = dropped.id
    assert [row.payload for row in await postgres.rows()] == [b"kept", b"kept too"]


async def test_a_savepoint_takes_its_own_with_it(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        outbox = broker.collect(session)
        outbox.publish(1, queue="q")
        async with session.begin_nested():
            outbox.publish(2, queue="q")
            inner = await session.begin_nested()
            outbox.publish("inner", queue="q")
            await inner.rollback()
            outbox.publish(3, queue="q")
        outer = await session.begin_nested()
        outbox.publish("outer", queue="q")
        async with session.begin_nested():
            outbox.publish("released inside", queue="q")
        await outer.rollback()
        outbox.publish(4, queue="q")
        sent = statements_of(postgres)
    assert len(sent) == 1
    assert await bodies(postgres) == [1, 2, 3, 4]


async def test_a_savepoint_that_was_open_before(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        savepoint = await session.begin_nested()
        outbox = broker.collect(session)
        outbox.publish("dropped", queue="q")
        await savepoint.rollback()
        outbox.publish("kept", queue="q")
    assert [row.payload for row in await postgres.rows()] == [b"kept"]


@pytest.mark.parametrize("commit", ["session", "context"])
async def test_a_commit_around_an_open_savepoint_writes_them(postgres: PostgresBackend, commit: str) -> None:
    broker = broker_on(postgres)
    async with postgres.sessions() as session:
        outbox = broker.collect(session)

        async def work() -> None:
            outbox.publish(1, queue="q")
            await session.begin_nested()
            outbox.publish(2, queue="q")

        if commit == "session":
            await work()
            await session.commit()
        else:
            async with session.begin():
                await work()
    assert await bodies(postgres) == [1, 2]


async def test_the_rollback_of_a_savepoint_in_which_they_were_written_keeps_those_of_before(
    postgres: PostgresBackend,
) -> None:
    broker = broker_on(postgres)
    async with postgres.sessions() as session:
        outbox = broker.collect(session)
        messages = [outbox.publish(number, queue="before") for number in range(2)]
        around = await session.begin_nested()
        inner = await session.begin_nested()
        await session.begin_nested()
        await inner.commit()  # with an open savepoint in it, which looks like a commit of the session
        for number in range(2):
            outbox.publish(number, queue="taken back")
        await around.rollback()
        await session.commit()
    rows = await postgres.rows()
    assert [row.queue for row in rows] == ["before", "before"]
    assert [message.id for message in messages] == [row.id for row in rows]


async def test_two_collectors_share_a_statement_and_two_brokers_do_not(postgres: PostgresBackend) -> None:
    other = PostgresBackend(postgres.engine, table_name="another")
    await other.create()
    broker, foreign = broker_on(postgres), broker_on(other)
    async with postgres.transaction() as session:
        foreign_outbox, outbox, twin = foreign.collect(session), broker.collect(session), broker.collect(session)
        outbox.publish(1, queue="q", key="k")
        foreign_outbox.publish("foreign", queue="q", key="k")
        twin.publish(2, queue="q", key="k")
        sent = statements_of(postgres)
    # In the order of the tables, whichever published first.
    assert ["another" in statement for statement in sent] == [True, False]
    assert await bodies(postgres) == [1, 2]
    assert [row.payload for row in await other.rows()] == [b"foreign"]


async def test_transactions_that_publish_for_the_same_keys_do_not_deadlock(postgres: PostgresBackend) -> None:
    broker, keys = broker_on(postgres), [f"key {number}" for number in range(8)]

    async def transaction(order: list[str]) -> None:
        async with postgres.transaction() as session:
            outbox = broker.collect(session)
            for key in order:
                outbox.publish(key, queue="q", key=key)
                await session.execute(text("SELECT 1"))

    await asyncio.gather(*(transaction(order) for order in [keys, keys[::-1]] * 6))
    assert len(await postgres.rows()) == 12 * len(keys)


@pytest.mark.parametrize("how", ["publish", "publish_batch", "publish_sync", "publisher", "middleware"])
async def test_a_message_comes_after_those_that_its_transaction_has_collected_for_its_key(
    postgres: PostgresBackend, how: str
) -> None:
    broker = broker_on(postgres, middlewares=[BaseMiddleware] if how == "middleware" else [])

    async def publish_now(session: AsyncSession, body: int) -> None:
        match how:
            case "publish_batch":
                await broker.publish_batch(body, 0, queue="q", keys=["k", None], session=session)
            case "publish_sync":
                await session.run_sync(lambda sync: broker.publish_sync(body, queue="q", key="k", session=sync))
            case "publisher":
                await broker.publisher("q").publish(body, key="k", session=session)
            case _:
                await broker.publish(body, queue="q", key="k", session=session)

    async with postgres.transaction() as session:
        outbox = broker.collect(session)
        outbox.publish(1, queue="q", key="k")
        await publish_now(session, 2)
        await publish_now(session, 3)
        outbox.publish(4, queue="q", key="k", timer_id="t")
        outbox.publish(5, queue="q", key="k")
        await publish_now(session, 6)
        outbox.publish(7, queue="q", key="k")
    assert [json.loads(row.payload) for row in await postgres.rows() if row.entity_key] == [1, 2, 3, 4, 5, 6, 7]


async def test_a_message_of_another_key_queue_or_table_leaves_collected_ones_to_the_commit(
    postgres: PostgresBackend,
) -> None:
    metadata = MetaData()
    other = OutboxBroker(outbox_table=make_outbox_table(metadata, table_name="other_outbox"))
    async with postgres.engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        outbox = broker.collect(session)
        outbox.publish(1, queue="q", key="k")
        outbox.publish(2, queue="q")
        sent = statements_of(postgres)
        await broker.publish(3, queue="q", session=session)
        await broker.publish(4, queue="q", key="other", session=session)
        await broker.publish(5, queue="other", key="k", session=session)
        await other.publish(6, queue="q", key="k", session=session)
        assert len(sent) == 4
    assert await bodies(postgres) == [3, 4, 5, 1, 2]


async def test_messages_that_were_written_before_another_of_their_key_outlive_the_savepoint_of_that(
    postgres: PostgresBackend,
) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        outbox = broker.collect(session)
        outbox.publish(1, queue="q", key="k")
        savepoint = await session.begin_nested()
        outbox.publish("dropped", queue="q", key="k")
        await broker.publish("dropped", queue="q", key="k", session=session)
        await savepoint.rollback()
        outbox.publish(2, queue="q", key="k")
        async with session.begin_nested():
            await broker.publish(3, queue="q", key="k", session=session)
        outbox.publish(4, queue="q", key="k")
    assert await bodies(postgres) == [1, 2, 3, 4]


async def test_collected_messages_whose_early_insert_fails_are_written_by_the_commit(postgres: PostgresBackend) -> None:
    await postgres.run(f"ALTER TABLE {postgres.table} ADD CHECK (queue <> 'refused')")
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        outbox = broker.collect(session)
        outbox.publish(1, queue="q", key="k")
        savepoint = await session.begin_nested()
        outbox.publish("fails", queue="refused", key="k")
        with pytest.raises(DBAPIError, match="violates check constraint"):
            await broker.publish("not reached", queue="refused", key="k", session=session)
        await savepoint.rollback()
    assert await bodies(postgres) == [1]


async def test_timers(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        await broker.publish("waits", queue="q", session=session, timer_id="old", activate_in=HOUR)
        await broker.publish("waits too", queue="q", session=session, timer_id="moved", activate_in=HOUR)
    async with postgres.transaction() as session:
        outbox = broker.collect(session)
        collected = [
            outbox.publish("plain", queue="q"),
            outbox.publish("old", queue="q", timer_id="old", activate_in=HOUR),
            outbox.publish("moved", queue="q", timer_id="moved", activate_in=2 * HOUR, timer_conflict="extend"),
            outbox.publish("new", queue="q", timer_id="new", activate_in=HOUR),
            outbox.publish("new again", queue="q", timer_id="new", activate_in=HOUR),
            outbox.publish("plain too", queue="q"),
        ]
    rows = {row.payload: row for row in await postgres.rows()}
    ids = [message.id for message in collected]
    assert ids == [rows[b"plain"].id, None, None, rows[b"new"].id, None, rows[b"plain too"].id]
    assert len(rows) == 5
    moved = rows[b"waits too"]
    assert moved.next_attempt_epoch - moved.created_epoch > 7000
    async with postgres.transaction() as session:
        timer = broker.collect(session).publish("old", queue="q", timer_id="old", activate_in=HOUR)
    assert timer.id is None


@pytest.mark.parametrize(("wrong", "error", "words"), WRONG[:-2], ids=[str(n) for n in range(len(WRONG) - 2)])
async def test_wrong_values_fail_at_the_call(
    outbox_postgres: Database, wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()))
    with Session(create_engine(outbox_postgres.url("psycopg"))) as session:
        outbox = broker.collect(session)
        with pytest.raises(error, match=words):
            outbox.publish({"a": 1}, **{"queue": "q", **wrong})
        session.commit()  # there is no table: an INSERT would fail


async def test_more_than_one_statement_takes_is_refused_at_the_call(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faststream_outbox.storage.checks.MAX_PAYLOADS", 10)
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        outbox = broker.collect(session)
        outbox.publish(b"123456", queue="q")
        with pytest.raises(ValueError, match="What this transaction has collected has 12 bytes"):
            outbox.publish(b"123456", queue="q")
        outbox.publish(b"1234", queue="q")
    assert [row.payload for row in await postgres.rows()] == [b"123456", b"1234"]


@pytest.mark.parametrize(
    "wrong", [None, "connection", object(), fake_session()], ids=["none", "text", "object", "mock"]
)
async def test_what_is_no_session_is_refused(postgres: PostgresBackend, wrong: Any) -> None:
    with pytest.raises(TypeError, match="collect takes the AsyncSession or Session"):
        broker_on(postgres).collect(wrong)


async def test_a_connection_is_refused(postgres: PostgresBackend) -> None:
    async with postgres.engine.connect() as connection:
        with pytest.raises(TypeError, match="AsyncConnection"):
            broker_on(postgres).collect(connection)  # type: ignore[arg-type]  # that is the point


async def test_synchronous_and_scoped_sessions(postgres: PostgresBackend, outbox_postgres: Database) -> None:
    broker = broker_on(postgres)
    engine = create_engine(outbox_postgres.url("psycopg"))
    with Session(engine) as session, session.begin():
        message = broker.collect(session).publish("sync", queue="q")
    assert isinstance(message.id, int)
    scoped = scoped_session(sessionmaker(engine))
    broker.collect(scoped).publish("scoped", queue="q")
    scoped.commit()
    scoped.remove()
    async_scoped = async_scoped_session(postgres.sessions, scopefunc=asyncio.current_task)
    broker.collect(async_scoped).publish("async scoped", queue="q")
    await async_scoped.commit()
    await async_scoped.remove()
    engine.dispose()
    assert [row.payload for row in await postgres.rows()] == [b"sync", b"scoped", b"async scoped"]


@pytest.mark.parametrize("middlewares", [[], [BaseMiddleware]], ids=["direct", "with a middleware"])
async def test_a_collector_that_is_kept_gives_each_thread_its_own_session(
    postgres: PostgresBackend, outbox_postgres: Database, middlewares: list[Any]
) -> None:
    engine = create_engine(outbox_postgres.url("psycopg"))
    scoped = scoped_session(sessionmaker(engine))
    outbox = broker_on(postgres, middlewares=middlewares).collect(scoped)
    assert not scoped.registry.has()

    def request(body: str, end: Callable[[], None]) -> None:
        outbox.publish(body, queue="q")
        end()
        scoped.remove()

    await asyncio.to_thread(request, "rolled back", scoped.rollback)
    await asyncio.to_thread(request, "committed", scoped.commit)
    request("in this thread", scoped.commit)
    request("after remove", scoped.commit)
    engine.dispose()
    assert [row.payload for row in await postgres.rows()] == [b"committed", b"in this thread", b"after remove"]


async def test_a_collector_that_is_kept_gives_each_task_its_own_session(postgres: PostgresBackend) -> None:
    scoped = async_scoped_session(postgres.sessions, scopefunc=asyncio.current_task)
    outbox = broker_on(postgres).collect(scoped)

    async def request(body: str, end: Callable[[], Awaitable[None]]) -> None:
        outbox.publish(body, queue="q")
        await end()
        await scoped.remove()

    await asyncio.create_task(request("rolled back", scoped.rollback))
    await asyncio.create_task(request("committed", scoped.commit))
    await request("in this task", scoped.commit)
    assert [row.payload for row in await postgres.rows()] == [b"committed", b"in this task"]


async def test_events_are_taken_from_one_session(postgres: PostgresBackend) -> None:
    scoped = async_scoped_session(postgres.sessions, scopefunc=asyncio.current_task)
    with pytest.raises(ValueError, match=r"collect\(scoped\(\), events=True\)"):
        broker_on(postgres).collect(scoped, events=True)


async def test_a_session_that_begins_nothing_by_itself(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with AsyncSession(postgres.engine, autobegin=False) as session:
        outbox = broker.collect(session)
        with pytest.raises(RuntimeError, match="begins none by itself"):
            outbox.publish(1, queue="q")
        async with session.begin():
            outbox.publish(2, queue="q")
    assert await bodies(postgres) == [2]


async def test_an_insert_that_fails_fails_the_commit(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    await postgres.run("CREATE TABLE notes (id int)")
    await postgres.run(f"ALTER TABLE {postgres.table} ADD CHECK (queue <> 'refused')")
    async with postgres.sessions() as session:
        await session.execute(text("INSERT INTO notes VALUES (1)"))
        broker.collect(session).publish(1, queue="refused")
        with pytest.raises(DBAPIError):
            await session.commit()
        with pytest.raises(DBAPIError):
            await session.commit()  # nothing is committed without it
        await session.rollback()
        broker.collect(session).publish(2, queue="q")
        await session.commit()
    assert await bodies(postgres) == [2]
    assert await postgres.run("SELECT * FROM notes") == []


async def test_nothing_can_be_added_while_the_session_commits(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)
    async with postgres.sessions() as session:
        outbox = broker.collect(session)
        event.listen(session.sync_session, "before_commit", lambda _: outbox.publish("late", queue="q"))
        with pytest.raises(RuntimeError, match="publish before its commit"):
            await session.commit()


class Waiting(BaseMiddleware[Any, Any]):
    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: Any) -> Any:
        await asyncio.sleep(0)
        return await call_next(cmd)


class Doubling(BaseMiddleware[Any, Any]):
    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: Any) -> Any:
        cmd.add_headers({"seen": "yes"})
        cmd.batch_bodies = [body for body in cmd.batch_bodies for _ in range(2) if body != "removed"]
        return await call_next(cmd)


async def test_middlewares_run_at_the_call(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres, middlewares=[Doubling])
    async with postgres.transaction() as session:
        outbox = broker.collect(session)
        message = outbox.publish("body", queue="q")
        removed = outbox.publish("removed", queue="q")
        assert removed.id is None
    first, second = await postgres.rows()
    assert (first.payload, second.payload, message.id) == (b"body", b"body", first.id)
    assert first.headers is not None
    assert first.headers["seen"] == "yes"


async def test_a_middleware_that_waits_is_refused(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres, middlewares=[Waiting])
    async with postgres.transaction() as session:
        with pytest.raises(RuntimeError, match="collect runs middlewares and the codec without an event loop"):
            broker.collect(session).publish(1, queue="q")
    assert await postgres.rows() == []


async def test_subscribers_are_woken_after_the_commit(postgres: PostgresBackend) -> None:
    broker, handled = broker_on(postgres), list[int]()

    @broker.subscriber("q", max_fetch_interval=3600)
    async def handle(number: int) -> None:
        handled.append(number)

    async with started(broker):
        for number in range(4):
            async with postgres.transaction() as session:
                broker.collect(session).publish(number, queue="q")
            await until(lambda expected=number + 1: len(handled) == expected)  # type: ignore[misc]  # a default binds it


async def test_in_the_session_of_a_handler(postgres: PostgresBackend) -> None:
    broker, failures = broker_on(postgres), [ZeroDivisionError()]

    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> None:
        broker.collect(session).publish(number + 1, queue="next")
        if failures:
            raise failures.pop()

    async with started(broker):
        await publish(broker, postgres, 1)
        await until(postgres.rows, lambda rows: [row.queue for row in rows] == ["next"])
    assert failures == []


async def test_the_answer_of_a_handler_comes_after_what_it_has_collected(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q")
    async def handle(number: int, session: OutboxSession) -> OutboxResponse:
        broker.collect(session).publish(number + 1, queue="next", key="k")
        return OutboxResponse(number + 2, queue="next", key="k")

    async with started(broker):
        await publish(broker, postgres, 1)
        rows = await until(postgres.rows, lambda rows: [row.queue for row in rows][:1] == ["next"])
    assert [row.payload for row in rows] == [b"2", b"3"]


async def test_published_is_recorded_for_each_queue(postgres: PostgresBackend) -> None:
    events: list[dict[str, Any]] = []
    broker = broker_on(postgres, metrics_recorder=lambda name, tags: events.append({"name": name, **tags}))
    async with postgres.transaction() as session:
        outbox = broker.collect(session)
        for queue in ("a", "b", "a"):
            outbox.publish(b"12", queue=queue)
    found = [(each["queue"], each["status"], each["count"], each["size_bytes"]) for each in events]
    assert found == [("a", "success", 2, 4), ("b", "success", 1, 2)]


async def test_in_memory_a_real_session_delivers_at_its_commit(postgres: PostgresBackend) -> None:
    broker, handled = broker_on(postgres), list[str]()

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        handled.append(body)

    async with TestOutboxBroker(broker) as test_broker, postgres.sessions() as session:
        outbox = test_broker.collect(session)
        outbox.publish("dropped", queue="q")
        await session.rollback()
        outbox.publish("kept", queue="q")
        assert handled == []
        await session.commit()
        assert handled == ["kept"]


async def test_in_memory_without_a_session_messages_are_delivered_at_once() -> None:
    broker, handled = OutboxBroker(outbox_table=make_outbox_table(MetaData())), list[str]()

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        handled.append(body)

    async with TestOutboxBroker(broker) as test_broker:
        assert isinstance(test_broker.client.store, MemoryStore)
        message = test_broker.collect().publish("none", queue="q")
        test_broker.collect(fake_session()).publish("mock", queue="q")
        assert handled == ["none", "mock"]
        assert isinstance(message.id, int)
