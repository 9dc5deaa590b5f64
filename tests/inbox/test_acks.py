"""An ack that a handler gives by itself is heard after the commit, or not at all."""

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
from tests.inbox.inbox_app import Desk
from tests.waiting import until_empty


@pytest.mark.parametrize("policy", [AckPolicy.MANUAL, AckPolicy.NACK_ON_ERROR])
async def test_a_handler_that_acks_and_then_fails_gets_the_message_again(desk: Desk, policy: AckPolicy) -> None:
    broker = desk.broker()
    calls: list[str] = []

    @desk.subscriber(broker, desk.inbox(), ack_policy=policy)
    async def handle(body: str, session: InboxSession, message: OutboxMessage) -> None:
        calls.append(body)
        await desk.write(session, body)
        await message.ack()
        if len(calls) == 1:
            raise ValueError(body)

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    assert calls == ["a", "a"]
    assert (await desk.written(), await desk.seen()) == (["a"], [("desk", "1")])
    assert await desk.postgres.dead_letters() == []


async def test_one_that_acks_and_is_cancelled_gets_the_message_again(desk: Desk) -> None:
    broker = desk.broker(graceful_timeout=0.1)
    acked = asyncio.Event()

    @desk.subscriber(broker, desk.inbox(), ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, session: InboxSession, message: OutboxMessage) -> None:
        await desk.write(session, body)
        await message.ack()
        acked.set()
        await asyncio.Event().wait()

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await acked.wait()
    assert (await desk.written(), await desk.seen()) == ([], [])
    assert len(await desk.postgres.rows()) == 1


async def test_a_commit_that_fails_takes_the_ack_with_it(desk: Desk) -> None:
    await desk.postgres.run("ALTER TABLE effects ADD UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
    await desk.postgres.run("INSERT INTO effects (what) VALUES ('a')")
    broker = desk.broker()
    calls: list[str] = []

    @desk.subscriber(broker, desk.inbox(), ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, session: InboxSession, message: OutboxMessage) -> None:
        calls.append(body)
        await desk.write(session, body if len(calls) == 1 else "b")
        await message.ack()

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    assert await desk.written() == ["a", "b"]
    assert await desk.seen() == [("desk", "1")]


@pytest.mark.parametrize("ending", [None, AckMessage()])
async def test_the_broker_hears_after_the_commit(desk: Desk, ending: Exception | None) -> None:
    heard: list[object] = []

    class Listen(BaseMiddleware):
        """Outside the inbox: what it wraps here, the inbox calls when it is done."""

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            ack = msg.ack

            async def listen() -> None:
                heard.append(await desk.seen())
                await ack()

            msg.ack = listen
            return await call_next(msg)

    broker = RabbitBroker(middlewares=[Listen, desk.inbox()])

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL)
    async def handle(message: RabbitMessage) -> None:
        await message.ack()
        await message.ack()
        assert not heard
        if ending:
            raise ending

    async with TestRabbitBroker(broker):
        with contextlib.suppress(AckMessage):
            await broker.publish("a", queue="q", message_id="1")
    assert heard == [[("desk", "1")]]


@pytest.mark.parametrize("verdict", ["nack", "reject"])
async def test_a_refusal_counts_although_a_middleware_passes_on_a_copy(desk: Desk, verdict: str) -> None:
    class Copy(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            return await call_next(copy.copy(msg))

    broker = desk.broker(middlewares=[Copy])

    @desk.subscriber(broker, desk.inbox(), ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, session: InboxSession, message: OutboxMessage) -> None:
        await desk.write(session, body)
        await message.ack()
        await getattr(message, verdict)()

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    assert (await desk.written(), await desk.seen()) == ([], [])


@pytest.mark.parametrize("inside", [False, True])
async def test_an_error_that_a_middleware_deals_with(desk: Desk, inside: bool) -> None:
    """Outside the inbox it is one of the handler's, inside it is none."""
    forgive = ExceptionMiddleware()

    @forgive.add_handler(ValueError, publish=True)
    def forgiven(_: ValueError) -> None: ...

    inbox = desk.inbox()
    broker = desk.broker(middlewares=[inbox, forgive] if inside else [forgive, inbox])

    @broker.subscriber("q")
    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)
        raise ValueError(body)

    await desk.send(broker, "a", message_id="1")
    async with started(broker):
        await until_empty(desk.postgres)
    assert await desk.written() == (["a"] if inside else [])
    assert len(await desk.seen()) == inside
    assert await desk.postgres.dead_letters() == []
