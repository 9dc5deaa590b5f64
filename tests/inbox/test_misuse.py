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
from tests.inbox.inbox_app import InboxApp
from tests.waiting import until_empty


async def fate(app: InboxApp, use: Callable[[AsyncSession], Awaitable[object]]) -> str:
    """Handle one message; return how it died, or an empty text."""
    broker = app.broker()

    @app.subscriber(broker, app.inbox(), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)
        await use(session)

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    return "".join(str(letter.last_exception) for letter in await app.postgres.dead_letters())


async def test_a_handler_does_not_commit(app: InboxApp) -> None:
    assert "remove session.commit()" in await fate(app, lambda session: session.commit())
    assert (await app.written(), await app.seen()) == ([], [])


async def test_nor_does_it_through_the_connection(app: InboxApp) -> None:
    """The record would stay although the handler fails, and the message be skipped when it comes again."""

    async def use(session: AsyncSession) -> None:
        connection = await session.connection()
        await connection.commit()

    async def use_and_go_on(session: AsyncSession) -> None:
        with pytest.raises(RuntimeError, match="This session is committed when"):
            await use(session)

    assert "remove session.commit()" in await fate(app, use)
    await fate(app, use_and_go_on)
    assert (await app.written(), await app.seen()) == ([], [])
    assert len(await app.postgres.dead_letters()) == 2


async def test_a_savepoint_that_is_left_open_is_committed_with_the_rest(app: InboxApp) -> None:
    async def use(session: AsyncSession) -> None:
        await session.begin_nested()
        await app.write(session, "b")

    assert await fate(app, use) == ""
    assert await app.written() == ["a", "b"]


async def test_a_savepoint_is_fine(app: InboxApp) -> None:
    async def use(session: AsyncSession) -> None:
        async with session.begin_nested():
            await app.write(session, "b")
        with pytest.raises(DBAPIError):
            async with session.begin_nested():
                await session.execute(text("SELECT 1/0"))

    assert await fate(app, use) == ""
    assert (await app.written(), await app.seen()) == (["a", "b"], [("billing", "1")])


@pytest.mark.parametrize("end", ["rollback", "close"])
async def test_a_handler_that_ends_the_transaction_has_not_handled_the_message(app: InboxApp, end: str) -> None:
    assert "failed or was ended in the handler" in await fate(app, lambda session: getattr(session, end)())
    assert (await app.written(), await app.seen()) == ([], [])


async def test_what_is_written_after_a_rollback_is_not_kept_without_the_record(app: InboxApp) -> None:
    async def use(session: AsyncSession) -> None:
        await session.rollback()
        await app.write(session, "b")

    assert "failed or was ended in the handler" in await fate(app, use)
    assert (await app.written(), await app.seen()) == ([], [])


async def test_an_error_of_the_database_that_was_swallowed(app: InboxApp) -> None:
    """Postgres answers a COMMIT of such a transaction with a quiet rollback."""

    async def use(session: AsyncSession) -> None:
        with pytest.raises(DBAPIError):
            await session.execute(text("SELECT 1/0"))

    assert "failed or was ended in the handler" in await fate(app, use)
    assert (await app.written(), await app.seen()) == ([], [])


async def test_a_session_is_of_no_use_afterwards(app: InboxApp) -> None:
    kept: list[AsyncSession] = []

    async def use(session: AsyncSession) -> None:
        kept.append(session)

    assert await fate(app, use) == ""
    with pytest.raises(InvalidRequestError, match="closed"):
        await kept[0].execute(text("SELECT 1"))


async def test_answers_that_would_come_after_the_commit_are_refused(app: InboxApp) -> None:
    broker = app.broker()

    @broker.publisher("next")
    @app.subscriber(broker, app.inbox(), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession) -> str:
        await app.write(session, body)
        return body

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    [letter] = await app.postgres.dead_letters()
    assert "session=session" in str(letter.last_exception)
    assert (await app.written(), await app.seen()) == ([], [])


async def test_two_subscribers_of_one_inbox(app: InboxApp) -> None:
    broker, inbox = app.broker(), app.inbox()
    for queue in ("a", "b"):

        @app.subscriber(broker, inbox, queue, ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def handle(body: str) -> None: ...

    async with started(broker):
        await app.send(broker, "1", message_id="1", queue="a")
        await until_empty(app.postgres)
        await app.send(broker, "1", message_id="1", queue="b")
        await until_empty(app.postgres)
    [letter] = await app.postgres.dead_letters()
    assert letter.queue == "b"
    assert "inbox.named" in str(letter.last_exception)


async def test_the_next_broker_may_have_the_inbox_of_one_that_is_stopped(app: InboxApp) -> None:
    inbox = app.inbox()
    brokers = [app.broker(), app.broker()]
    for number, broker in enumerate(brokers):

        @app.subscriber(broker, inbox)
        async def handle(body: str, session: InboxSession) -> None:
            await app.write(session, body)

        await app.send(broker, str(number), message_id=str(number))
        async with started(broker):
            await until_empty(app.postgres)
    assert await app.written() == ["0", "1"]


async def test_two_inboxes_for_one_message(app: InboxApp) -> None:
    broker = app.broker(middlewares=[app.inbox()])

    @app.subscriber(broker, app.inbox("other"), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str) -> None: ...

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    [letter] = await app.postgres.dead_letters()
    assert "Two inboxes" in str(letter.last_exception)
    assert await app.seen() == []


async def test_messages_taken_one_by_one_have_no_handler(app: InboxApp) -> None:
    broker = app.broker(middlewares=[app.inbox()])
    subscriber = broker.subscriber("q")
    await publish(broker, app.postgres, "a")
    async with started(broker):
        with pytest.raises(RuntimeError, match="needs a handler"):
            async with asyncio.timeout(30):
                await subscriber.get_one(timeout=60)
    assert await app.seen() == []
    assert len(await app.postgres.rows()) == 1


async def test_a_session_without_an_inbox(app: InboxApp) -> None:
    broker = app.broker()

    @broker.subscriber("q", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    [letter] = await app.postgres.dead_letters()
    assert "its broker has no inbox" in str(letter.last_exception)


async def test_two_sessions_for_one_message(app: InboxApp) -> None:
    broker = app.broker()

    @app.subscriber(broker, app.inbox(), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, session: InboxSession, other: OutboxSession) -> None:
        await app.write(session, body)
        await app.write(other, body)

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    [letter] = await app.postgres.dead_letters()
    assert "committed after the inbox's" in str(letter.last_exception)
    assert (await app.written(), await app.seen()) == ([], [])


async def test_a_batch_of_rows(app: InboxApp) -> None:
    broker = app.broker()

    @app.subscriber(broker, app.inbox(), ack_policy=AckPolicy.REJECT_ON_ERROR, batch=True)
    async def handle(bodies: list[str], session: InboxSession) -> None:
        await app.write(session, bodies[0])

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    [letter] = await app.postgres.dead_letters()
    assert "this is a batch" in str(letter.last_exception)
    assert (await app.written(), await app.seen()) == ([], [])


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"consumer": ""}, ValueError, "consumer is empty"),
    ({"consumer": 1}, TypeError, "consumer is a str"),
    ({"consumer": "x" * 256}, ValueError, "the column holds 255"),
    ({"retention": 7}, TypeError, "retention must be a timedelta"),
    ({"retention": timedelta(0)}, ValueError, "retention is .*: give more than 0"),
    ({"retention": timedelta.max}, ValueError, "retention is .*: give more than 0"),
    ({"clean_interval": 7}, TypeError, "clean_interval must be a timedelta"),
    ({"message_id": "id"}, TypeError, "message_id must be a function"),
    ({"table": "outbox_inbox"}, TypeError, r"made by make_inbox_table\(metadata\)"),
    ({"table": make_outbox_table(MetaData())}, ValueError, "lacks consumer, message_id, seen_at"),
]


@pytest.mark.parametrize(("wrong", "error", "words"), WRONG)
async def test_wrong_arguments(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    engine = create_async_engine("postgresql+asyncpg://localhost/nowhere")
    with pytest.raises(error, match=words):
        Inbox(engine, **{"table": make_inbox_table(MetaData()), "consumer": "billing", **wrong})


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
            Inbox(wrong, table=table, consumer="billing")  # type: ignore[arg-type]  # that is the point


async def test_a_sessionmaker_of_ones_own(app: InboxApp) -> None:
    class MySession(AsyncSession): ...

    broker = app.broker()
    kinds: list[type] = []
    inbox = Inbox(async_sessionmaker(app.engine, class_=MySession), table=app.inbox_table, consumer="billing")

    @app.subscriber(broker, inbox)
    async def handle(body: str, session: InboxSession) -> None:
        kinds.append(type(session))
        await app.write(session, body)

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    assert kinds == [MySession]
    assert await app.written() == ["a"]
