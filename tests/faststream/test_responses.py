"""What handlers return, and where it goes."""

from typing import Any

import pytest
from faststream import BaseMiddleware, Context, Response

from faststream_outbox import OutboxResponse
from faststream_outbox.annotations import OutboxMessage
from tests.faststream.environments import Inbox, World


async def test_what_a_handler_returns_goes_to_its_publishers(world: World, inbox: Inbox) -> None:
    broker = world.broker()
    audit = broker.publisher("audit", headers={"from": "publisher"})

    @broker.publisher("before")
    @broker.subscriber("orders")
    @broker.publisher("after")
    @audit
    async def handle(number: int) -> int:
        return number + 1

    @audit
    @broker.subscriber("returns")
    async def take_back(number: int) -> int:
        return -number

    @broker.subscriber(["before", "after", "audit"])
    async def collect(number: int, message: OutboxMessage) -> None:
        inbox.put((message.raw_message.queue, number, message.correlation_id, message.headers.get("from")))

    async with world.running(broker):
        await world.publish(broker.publish, 1, queue="orders", correlation_id="c")
        assert sorted(await inbox.take(3)) == [
            ("after", 2, "c", None),
            ("audit", 2, "c", "publisher"),
            ("before", 2, "c", None),
        ]
        await world.publish(broker.publish, 5, queue="returns", correlation_id="d")
        assert await inbox.next() == ("audit", -5, "d", "publisher")
        await world.drained()


async def test_a_publisher_is_called_by_hand(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("audit")
    async def collect(body: str, message: OutboxMessage) -> None:
        inbox.put((body, message.headers["a"], message.headers["b"]))

    publisher = broker.publisher("audit", headers={"a": 1, "b": 1})
    async with world.running(broker):
        await world.publish(publisher.publish, "x", headers={"b": 2})
        assert await inbox.next() == ("x", 1, 2)
        late = broker.publisher("audit", headers={"a": 3, "b": 3}, persistent=False)
        await world.publish(late.publish, "y")
        assert await inbox.next() == ("y", 3, 3)


async def test_none_is_published_too(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.publisher("done")
    @broker.subscriber("orders")
    async def handle(body: str) -> None: ...

    @broker.subscriber("done")
    async def collect(body: bytes) -> None:
        inbox.put(body)

    async with world.running(broker):
        await world.publish(broker.publish, "a", queue="orders")
        assert await inbox.next() == b""


async def test_reply_to_and_no_reply(world: World, inbox: Inbox) -> None:
    after: Inbox = Inbox()

    class Ended(BaseMiddleware):
        async def after_processed(self, *args: Any) -> bool | None:
            after.put(None)
            return await super().after_processed(*args)

    broker = world.broker(middlewares=[Ended])

    @broker.subscriber("orders")
    async def handle(body: str) -> str:
        return body.upper()

    @broker.subscriber("silent", no_reply=True)
    async def handle_silently(body: str) -> str:
        return body.upper()

    @broker.subscriber("answers")
    async def collect(body: str, message: OutboxMessage) -> None:
        inbox.put((body, message.correlation_id, message.reply_to))

    async with world.running(broker):
        await world.publish(broker.publish, "a", queue="orders", reply_to="answers", correlation_id="c")
        assert await inbox.next() == ("A", "c", "")
        await after.take(2)
        await world.publish(broker.publish, "b", queue="silent", reply_to="answers")
        await after.next()
        await world.drained()
    assert inbox.empty


async def test_a_response_carries_headers_and_correlation_id(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("orders")
    @broker.publisher("done", headers={"a": "publisher", "b": "publisher"})
    async def handle(_body: str) -> Response:
        return Response(1, headers={"b": "response"}, correlation_id="mine")

    @broker.subscriber("done")
    async def collect(body: int, message: OutboxMessage) -> None:
        inbox.put((body, message.headers["a"], message.headers["b"], message.correlation_id))

    async with world.running(broker):
        await world.publish(broker.publish, "a", queue="orders", correlation_id="theirs")
        assert await inbox.next() == (1, "publisher", "response", "mine")


async def test_an_outbox_response_chooses_its_queue(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("orders")
    async def handle(body: str) -> OutboxResponse:
        return OutboxResponse(body, queue="chosen", headers={"h": "1"})

    @broker.subscriber("others")
    @broker.publisher("done")
    async def handle_other(body: str) -> OutboxResponse:
        return OutboxResponse(body, correlation_id="mine")

    @broker.subscriber(["chosen", "done"])
    async def collect(body: str, message: OutboxMessage) -> None:
        inbox.put((message.raw_message.queue, body, message.headers.get("h"), message.correlation_id))

    async with world.running(broker):
        await world.publish(broker.publish, "a", queue="orders", correlation_id="c")
        assert await inbox.next() == ("chosen", "a", "1", "c")
        await world.publish(broker.publish, "b", queue="others", correlation_id="c")
        assert await inbox.next() == ("done", "b", None, "mine")


async def test_inbound_headers_are_passed_on_where_asked(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("orders", propagate_inbound_headers=True)
    @broker.publisher("done")
    async def handle(body: str) -> Response:
        return Response(body, headers={"b": 2})

    @broker.subscriber("done")
    async def collect(headers: dict[str, Any] = Context("message.headers")) -> None:  # noqa: B008
        inbox.put((headers["a"], headers["b"]))

    async with world.running(broker):
        await world.publish(broker.publish, "x", queue="orders", headers={"a": 1, "b": 1})
        assert await inbox.next() == (1, 2)


async def test_a_failed_handler_publishes_nothing(looping: World, inbox: Inbox) -> None:
    broker = looping.broker()

    @broker.subscriber("orders")
    @broker.publisher("done")
    async def handle(body: str, message: OutboxMessage) -> str:
        if message.raw_message.attempts_count == 0:
            await message.nack(delay=0)
            return "early"
        return body

    @broker.subscriber("done")
    async def collect(body: str) -> None:
        inbox.put(body)

    async with looping.running(broker):
        await looping.publish(broker.publish, "a", queue="orders")
        assert await inbox.next() == "a"
        await looping.drained()
    assert inbox.empty


async def test_requests_are_refused_with_the_reason(world: World) -> None:
    broker = world.broker()
    publisher = broker.publisher("orders")
    async with world.running(broker):
        for request in (broker.request, publisher.request):
            with pytest.raises(NotImplementedError, match="reply_to"):
                await request("a")
