"""The inbox on servers of other brokers: whatever they deliver again is handled once."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from faststream.nats import NatsBroker

from faststream_outbox.annotations import InboxSession
from tests.inbox.inbox_app import InboxApp
from tests.inbox.streams import STREAMS, Stream
from tests.servers.nats import Nats
from tests.servers.plugin import need
from tests.waiting import until


class Line:
    """A stream, and a consumer with an inbox at its end."""

    def __init__(self, name: str, stream: Stream, url: str, app: InboxApp) -> None:
        self.name, self.stream, self.url, self.app = name, stream, url, app
        self.broker = stream.broker(url, logger=app.records.logger)

    def subscribe(self, handler: Callable[..., Any]) -> None:
        self.stream.subscribe(self.broker, self.app.inbox(), handler)

    async def send(self, *message_ids: str) -> None:
        for message_id in message_ids:
            await self.stream.publish(self.broker, message_id, message_id)

    async def consume(self) -> None:
        """Consume until the server waits for no ack."""
        await self.broker.start()
        await until(lambda: self.stream.unacked(self.broker), lambda found: not found, seconds=60)

    def skipped(self) -> set[str]:
        """Return the ids that were skipped at least once: a slow machine lets the server deliver more often."""
        return {record.inbox_id for record in self.app.records.named("inbox_skipped")}


@pytest.fixture(params=STREAMS)
async def line(request: pytest.FixtureRequest, app: InboxApp) -> AsyncIterator[Line]:
    stream = STREAMS[request.param]
    need(stream.server, request)
    async with stream.server() as server:
        line = Line(request.param, stream, server.url, app)
        await stream.create(line.broker)
        yield line
        await line.broker.stop()


async def test_what_the_sender_sends_twice_is_handled_once(line: Line) -> None:
    calls: list[str] = []

    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await line.app.write(session, body)

    line.subscribe(handle)
    await line.send("1", "2", "1", "2", "1")
    await line.consume()
    assert sorted(calls) == sorted(await line.app.written()) == ["1", "2"]
    assert line.skipped() == {"1", "2"}


async def test_what_was_committed_by_a_process_that_died_before_its_ack_is_skipped(line: Line) -> None:
    await line.send("1")
    database = line.app.engine.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.inbox.killed_consumer", database, line.name, line.url
    )
    async with asyncio.timeout(60):
        assert await process.wait() == -signal.SIGKILL
    assert await line.stream.unacked(line.broker) == 1, "the server has not acked of it"
    assert await line.app.written() == ["1"]
    calls: list[str] = []

    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await line.app.write(session, body)

    line.subscribe(handle)
    await line.consume()
    assert (calls, line.skipped(), await line.app.written()) == ([], {"1"}, ["1"])


async def test_a_handler_that_fails_gets_the_message_again_and_handles_it_once(line: Line) -> None:
    calls: list[str] = []

    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await line.app.write(session, f"{body}, try {len(calls)}")
        if len(calls) < 3:
            raise ValueError(body)

    line.subscribe(handle)
    await line.send("1")
    await line.consume()
    assert await line.app.written() == ["1, try 3"]
    assert (len(calls), await line.app.seen()) == (3, [("billing", "1")])


async def test_what_comes_again_while_it_is_still_being_handled_waits(line: Line) -> None:
    """As it does when a handler takes longer than the server is willing to wait for its ack."""
    calls: list[str] = []

    async def handle(body: str, session: InboxSession) -> None:
        calls.append(body)
        await line.app.write(session, body)
        await line.app.waits_for_another()

    line.subscribe(handle)
    await line.send("1")
    await line.consume()
    await until(lambda: line.skipped() == {"1"})
    assert calls == await line.app.written() == ["1"]


async def test_a_duplicate_on_core_nats_which_knows_no_acks(app: InboxApp, nats_server: Nats) -> None:
    done = asyncio.Event()
    broker = NatsBroker(nats_server.url, middlewares=[app.inbox()], logger=app.records.logger)

    @broker.subscriber("q")
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)
        if body == "last":
            done.set()

    await broker.start()
    for body, message_id in (("a", "1"), ("a", "1"), ("last", "2")):
        await broker.publish(body, "q", headers={"message_id": message_id})
    async with asyncio.timeout(30):
        await done.wait()
    await broker.stop()
    assert await app.written() == ["a", "last"]
    assert len(app.records.named("inbox_skipped")) == 1
    assert [record.getMessage() for record in app.records.records if record.levelname in {"ERROR", "CRITICAL"}] == []
