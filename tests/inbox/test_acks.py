"""An ack of a handler is sent after the commit, or not at all."""

import asyncio
import contextlib
import copy
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware, ExceptionMiddleware
from faststream.exceptions import AckMessage
from faststream.rabbit import RabbitBroker, RabbitMessage, TestRabbitBroker

from faststream_outbox.annotations import InboxSession, OutboxMessage
from tests.broker.brokers import started
from tests.inbox.inbox_app import InboxApp
from tests.waiting import until_empty


@pytest.mark.parametrize("policy", [AckPolicy.MANUAL, AckPolicy.NACK_ON_ERROR])
async def test_a_handler_that_acks_and_then_fails_gets_the_message_again(app: InboxApp, policy: AckPolicy) -> None:
    broker = app.broker()
    calls: list[str] = []

    @app.subscriber(broker, app.inbox(), ack_policy=policy)
    async def handle(body: str, session: InboxSession, message: OutboxMessage) -> None:
        calls.append(body)
        await app.write(session, body)
        await message.ack()
        if len(calls) == 1:
            raise ValueError(body)

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    assert calls == ["a", "a"]
    assert (await app.written(), await app.seen()) == (["a"], [("billing", "1")])
    assert await app.postgres.dead_letters() == []


async def test_one_that_acks_and_is_cancelled_gets_the_message_again(app: InboxApp) -> None:
    broker = app.broker(graceful_timeout=0.1)
    acked = asyncio.Event()

    @app.subscriber(broker, app.inbox(), ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, session: InboxSession, message: OutboxMessage) -> None:
        await app.write(session, body)
        await message.ack()
        acked.set()
        await asyncio.Event().wait()

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await acked.wait()
    assert (await app.written(), await app.seen()) == ([], [])
    assert len(await app.postgres.rows()) == 1


async def test_a_commit_that_fails_takes_the_ack_with_it(app: InboxApp) -> None:
    await app.postgres.run("ALTER TABLE effects ADD UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
    await app.postgres.run("INSERT INTO effects (what) VALUES ('a')")
    broker = app.broker()
    calls: list[str] = []

    @app.subscriber(broker, app.inbox(), ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, session: InboxSession, message: OutboxMessage) -> None:
        calls.append(body)
        await app.write(session, body if len(calls) == 1 else "b")
        await message.ack()

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    assert await app.written() == ["a", "b"]
    assert await app.seen() == [("billing", "1")]


@pytest.mark.parametrize("ending", [None, AckMessage()])
async def test_the_ack_is_sent_after_the_commit(app: InboxApp, ending: Exception | None) -> None:
    acked: list[object] = []

    class Listen(BaseMiddleware):
        """Outside the inbox: what it wraps here, the inbox calls when it is done."""

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            ack = msg.ack

            async def listen() -> None:
                acked.append(await app.seen())
                await ack()

            msg.ack = listen
            return await call_next(msg)

    broker = RabbitBroker(middlewares=[Listen, app.inbox()])

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL)
    async def handle(message: RabbitMessage) -> None:
        await message.ack()
        await message.ack()
        assert not acked
        if ending:
            raise ending

    async with TestRabbitBroker(broker):
        with contextlib.suppress(AckMessage):
            await broker.publish("a", queue="q", message_id="1")
    assert acked == [[("billing", "1")]]


@pytest.mark.parametrize("verdict", ["nack", "reject"])
async def test_a_refusal_counts_although_a_middleware_passes_on_a_copy(app: InboxApp, verdict: str) -> None:
    class Copy(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            return await call_next(copy.copy(msg))

    broker = app.broker(middlewares=[Copy])

    @app.subscriber(broker, app.inbox(), ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, session: InboxSession, message: OutboxMessage) -> None:
        await app.write(session, body)
        await message.ack()
        await getattr(message, verdict)()

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    assert (await app.written(), await app.seen()) == ([], [])


@pytest.mark.parametrize("inside", [False, True])
async def test_an_error_that_a_middleware_deals_with(app: InboxApp, inside: bool) -> None:
    """Outside the inbox it is one of the handler's, inside it is none."""
    forgive = ExceptionMiddleware()

    @forgive.add_handler(ValueError, publish=True)
    def forgiven(_: ValueError) -> None: ...

    inbox = app.inbox()
    broker = app.broker(middlewares=[inbox, forgive] if inside else [forgive, inbox])

    @broker.subscriber("q")
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)
        raise ValueError(body)

    await app.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(app.postgres)
    assert await app.written() == (["a"] if inside else [])
    assert len(await app.seen()) == inside
    assert await app.postgres.dead_letters() == []
