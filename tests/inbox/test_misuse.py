"""What would break the guarantee is refused aloud, and the message is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy
from sqlalchemy import MetaData, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from faststream_outbox import Inbox, make_inbox_table, make_outbox_table
from faststream_outbox.annotations import InboxSession, OutboxSession
from tests.broker.brokers import publish, started
from tests.inbox.inbox_app import Desk
from tests.waiting import until_empty


async def fate(desk: Desk, use: Callable[[AsyncSession], Awaitable[object]]) -> str:
    """Handle one message; return how it died, or an empty text."""
    broker = desk.broker()

    @desk.subscriber(broker, desk.inbox(), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)
        await use(session)

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    return "".join(str(letter.last_exception) for letter in await desk.postgres.dead_letters())


async def test_a_handler_does_not_commit(desk: Desk) -> None:
    assert "remove session.commit()" in await fate(desk, lambda session: session.commit())
    assert (await desk.written(), await desk.seen()) == ([], [])


async def test_nor_does_it_through_the_connection(desk: Desk) -> None:
    """The record would stay although the handler fails, and the message be skipped when it comes again."""

    async def use(session: AsyncSession) -> None:
        connection = await session.connection()
        await connection.commit()

    async def use_and_go_on(session: AsyncSession) -> None:
        with pytest.raises(RuntimeError, match="This session is committed when"):
            await use(session)

    assert "remove session.commit()" in await fate(desk, use)
    await fate(desk, use_and_go_on)
    assert (await desk.written(), await desk.seen()) == ([], [])
    assert len(await desk.postgres.dead_letters()) == 2


async def test_a_savepoint_that_is_left_open_is_committed_with_the_rest(desk: Desk) -> None:
    async def use(session: AsyncSession) -> None:
        await session.begin_nested()
        await desk.write(session, "b")

    assert await fate(desk, use) == ""
    assert await desk.written() == ["a", "b"]


async def test_a_savepoint_is_fine(desk: Desk) -> None:
    async def use(session: AsyncSession) -> None:
        async with session.begin_nested():
            await desk.write(session, "b")
        with pytest.raises(DBAPIError):
            async with session.begin_nested():
                await session.execute(text("SELECT 1/0"))

    assert await fate(desk, use) == ""
    assert (await desk.written(), await desk.seen()) == (["a", "b"], [("desk", "1")])


@pytest.mark.parametrize("end", ["rollback", "close"])
async def test_a_handler_that_ends_the_transaction_has_not_handled_the_message(desk: Desk, end: str) -> None:
    assert "failed or was ended in the handler" in await fate(desk, lambda session: getattr(session, end)())
    assert (await desk.written(), await desk.seen()) == ([], [])


async def test_what_is_written_after_a_rollback_is_not_kept_without_the_record(desk: Desk) -> None:
    async def use(session: AsyncSession) -> None:
        await session.rollback()
        await desk.write(session, "b")

    assert "failed or was ended in the handler" in await fate(desk, use)
    assert (await desk.written(), await desk.seen()) == ([], [])


async def test_an_error_of_the_database_that_was_swallowed(desk: Desk) -> None:
    """Postgres answers a COMMIT of such a transaction with a quiet rollback."""

    async def use(session: AsyncSession) -> None:
        with pytest.raises(DBAPIError):
            await session.execute(text("SELECT 1/0"))

    assert "failed or was ended in the handler" in await fate(desk, use)
    assert (await desk.written(), await desk.seen()) == ([], [])


async def test_a_session_is_of_no_use_afterwards(desk: Desk) -> None:
    kept: list[AsyncSession] = []

    async def use(session: AsyncSession) -> None:
        kept.append(session)

    assert await fate(desk, use) == ""
    with pytest.raises(InvalidRequestError, match="closed"):
        await kept[0].execute(text("SELECT 1"))


async def test_answers_that_would_come_after_the_commit_are_refused(desk: Desk) -> None:
    broker = desk.broker()

    @broker.publisher("next")
    @desk.subscriber(broker, desk.inbox(), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession) -> str:
        await desk.write(session, body)
        return body

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    [letter] = await desk.postgres.dead_letters()
    assert "session=session" in str(letter.last_exception)
    assert (await desk.written(), await desk.seen()) == ([], [])


async def test_two_subscribers_of_one_inbox(desk: Desk) -> None:
    broker, inbox = desk.broker(), desk.inbox()
    for queue in ("a", "b"):

        @desk.subscriber(broker, inbox, queue, ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def handle(body: str) -> None: ...

    async with started(broker):
        await desk.send(broker, "1", message_id="1", queue="a")
        await until_empty(desk.postgres)
        await desk.send(broker, "1", message_id="1", queue="b")
        await until_empty(desk.postgres)
    [letter] = await desk.postgres.dead_letters()
    assert letter.queue == "b"
    assert "inbox.named" in str(letter.last_exception)


async def test_the_next_broker_may_have_the_inbox_of_one_that_is_stopped(desk: Desk) -> None:
    inbox = desk.inbox()
    brokers = [desk.broker(), desk.broker()]
    for number, broker in enumerate(brokers):

        @desk.subscriber(broker, inbox)
        async def handle(body: str, session: InboxSession) -> None:
            await desk.write(session, body)

        await desk.send(broker, str(number), message_id=str(number))
        async with started(broker):
            await until_empty(desk.postgres)
    assert await desk.written() == ["0", "1"]


async def test_two_inboxes_for_one_message(desk: Desk) -> None:
    broker = desk.broker(middlewares=[desk.inbox()])

    @desk.subscriber(broker, desk.inbox("other"), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str) -> None: ...

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    [letter] = await desk.postgres.dead_letters()
    assert "Two inboxes" in str(letter.last_exception)
    assert await desk.seen() == []


async def test_messages_taken_one_by_one_have_no_handler(desk: Desk) -> None:
    broker = desk.broker(middlewares=[desk.inbox()])
    subscriber = broker.subscriber("q")
    await publish(broker, desk.postgres, "a")
    async with started(broker):
        with pytest.raises(RuntimeError, match="needs a handler"):
            async with asyncio.timeout(30):
                await subscriber.get_one(timeout=20)
    assert await desk.seen() == []
    assert len(await desk.postgres.rows()) == 1


async def test_a_session_without_an_inbox(desk: Desk) -> None:
    broker = desk.broker()

    @broker.subscriber("q", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    [letter] = await desk.postgres.dead_letters()
    assert "no inbox stands before it" in str(letter.last_exception)


async def test_two_sessions_for_one_message(desk: Desk) -> None:
    broker = desk.broker()

    @desk.subscriber(broker, desk.inbox(), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession, other: OutboxSession) -> None:
        await desk.write(session, body)
        await desk.write(other, body)

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    [letter] = await desk.postgres.dead_letters()
    assert "committed after the inbox's" in str(letter.last_exception)
    assert (await desk.written(), await desk.seen()) == ([], [])


async def test_a_batch_of_rows(desk: Desk) -> None:
    broker = desk.broker()

    @desk.subscriber(broker, desk.inbox(), ack_policy=AckPolicy.REJECT_ON_ERROR, batch=True)
    async def handle(bodies: list[str], session: InboxSession) -> None:
        await desk.write(session, bodies[0])

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    [letter] = await desk.postgres.dead_letters()
    assert "this is a batch" in str(letter.last_exception)
    assert (await desk.written(), await desk.seen()) == ([], [])


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"consumer": ""}, ValueError, "consumer is empty"),
    ({"consumer": 1}, TypeError, "consumer is a str"),
    ({"consumer": "x" * 256}, ValueError, "the column holds 255"),
    ({"retention": 7}, TypeError, "retention is a timedelta"),
    ({"retention": timedelta(0)}, ValueError, "retention lies between"),
    ({"retention": timedelta.max}, ValueError, "retention lies between"),
    ({"clean_interval": 7}, TypeError, "clean_interval is a timedelta"),
    ({"message_id": "id"}, TypeError, "message_id is a function"),
    ({"table": "outbox_inbox"}, TypeError, r"made by make_inbox_table\(metadata\)"),
    ({"table": make_outbox_table(MetaData())}, ValueError, "lacks consumer, message_id, seen_at"),
]


@pytest.mark.parametrize(("wrong", "error", "words"), WRONG)
async def test_wrong_arguments(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    engine = create_async_engine("postgresql+asyncpg://localhost/nowhere")
    with pytest.raises(error, match=words):
        Inbox(engine, **{"table": make_inbox_table(MetaData()), "consumer": "desk", **wrong})


async def test_wrong_engines() -> None:
    table = make_inbox_table(MetaData())
    engine = create_async_engine("postgresql+asyncpg://localhost/nowhere")
    sessions = async_sessionmaker(engine)
    for wrong, error, words in (
        (engine.sync_engine, TypeError, "an AsyncEngine or an async_sessionmaker, not Engine"),
        (sessions(), TypeError, "each message has a session of its own"),
        (async_sessionmaker(), ValueError, "no engine"),
        (engine.execution_options(isolation_level="AUTOCOMMIT"), ValueError, "AUTOCOMMIT"),
        (create_async_engine(engine.url, isolation_level="AUTOCOMMIT"), ValueError, "AUTOCOMMIT"),
    ):
        with pytest.raises(error, match=words):
            Inbox(wrong, table=table, consumer="desk")  # type: ignore[arg-type]  # that is the point


async def test_a_sessionmaker_of_ones_own(desk: Desk) -> None:
    class MySession(AsyncSession): ...

    broker = desk.broker()
    kinds: list[type] = []
    inbox = Inbox(async_sessionmaker(desk.engine, class_=MySession), table=desk.inbox_table, consumer="desk")

    @desk.subscriber(broker, inbox)
    async def handle(body: str, session: InboxSession) -> None:
        kinds.append(type(session))
        await desk.write(session, body)

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    assert kinds == [MySession]
    assert await desk.written() == ["a"]
