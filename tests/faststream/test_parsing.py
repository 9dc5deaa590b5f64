"""Parsers, decoders and codecs: on the broker, a router, a subscriber, a handler."""

from collections.abc import Callable
from typing import Any

import pytest

from faststream_outbox import OutboxRouter
from faststream_outbox._faststream import DefaultCodec
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.message import OutboxMessage as Message
from tests.faststream.environments import Environment, Received, soon

Noting = Callable[[Any, Any], Any]


def noting(name: str, received: Received) -> Noting:
    async def note(message: Any, original: Any) -> Any:
        received.put(name)
        return await original(message)

    return note


async def test_the_nearest_one_is_used(environment: Environment, received: Received) -> None:
    broker = environment.broker(parser=noting("broker parses", received), decoder=noting("broker decodes", received))
    router = OutboxRouter(parser=noting("router parses", received), decoder=noting("router decodes", received))

    @broker.subscriber("plain")
    @router.subscriber("routed")
    @router.subscriber(
        "own", parser=noting("subscriber parses", received), decoder=noting("subscriber decodes", received)
    )
    async def handle(body: str) -> None:
        received.put(body)

    broker.include_router(router)
    async with environment.running(broker):
        for queue, name in (("plain", "broker"), ("routed", "router"), ("own", "subscriber")):
            await environment.publish(broker.publish, queue, queue=queue)
            assert await received.take(3) == [f"{name} parses", f"{name} decodes", queue]
            await environment.drained()


async def test_one_handler_of_several_may_have_its_own(environment: Environment, received: Received) -> None:
    broker = environment.broker()
    subscriber = broker.subscriber("orders")

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def handle_json(_body: Any) -> None:
        received.put("json")

    @subscriber(parser=noting("parses", received), decoder=noting("decodes", received))
    async def handle_rest(_body: Any) -> None:
        received.put("rest")

    async with environment.running(broker):
        await environment.publish(broker.publish, {"a": 1}, queue="orders")
        assert await received.next() == "json"
        await environment.publish(broker.publish, b"a", queue="orders")
        assert await received.take(3) == ["parses", "decodes", "rest"]


async def test_they_may_be_plain_functions_without_the_original(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    def parse(row: Any) -> Message:
        return Message(row, row.payload[::-1], message_id="mine", correlation_id="mine")

    def decode(message: Any) -> str:
        text: str = message.body.decode()
        return text.upper()

    @broker.subscriber("orders", parser=parse, decoder=decode)
    async def handle(body: str, message: OutboxMessage) -> None:
        received.put((body, message.message_id))

    async with environment.running(broker):
        await environment.publish(broker.publish, b"abc", queue="orders")
        assert await received.next() == ("CBA", "mine")
        await environment.drained()


async def test_an_unreadable_message_is_not_lost(looping: Environment, received: Received) -> None:
    broker = looping.broker()

    async def parse(row: Any, _original: Any) -> Any:
        received.put("parsed")
        raise ValueError(row)

    @broker.subscriber("orders", parser=parse)
    async def handle(body: str) -> None: ...

    async with looping.running(broker):
        await looping.publish(broker.publish, "a", queue="orders")
        assert await received.next() == "parsed"
    [row] = await looping.rows()
    assert row.attempts_count == 1


class Rot13(DefaultCodec):
    """Encodes on the way in and decodes on the way out."""

    async def encode(self, msg: Any, serializer: Any = None) -> Any:
        payload, content_type = await super().encode(msg, serializer)
        return payload[::-1], content_type

    async def decode(self, msg: Any) -> Any:
        msg.body = msg.body[::-1]
        return await super().decode(msg)


async def test_a_codec_of_the_broker(environment: Environment, received: Received) -> None:
    broker = environment.broker(codec=Rot13())

    @broker.publisher("done")
    @broker.subscriber("orders")
    async def handle(body: dict[str, int]) -> dict[str, int]:
        return body

    @broker.subscriber("done")
    async def collect(body: dict[str, int], message: OutboxMessage) -> None:
        received.put((body, message.raw_message.payload))

    async with environment.running(broker):
        await environment.publish(broker.publish, {"n": 1}, queue="orders")
        assert await received.next() == ({"n": 1}, b'}1:"n"{')


async def test_a_codec_of_one_subscriber(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    @broker.subscriber("orders", codec=Rot13())
    async def handle(body: str) -> None:
        received.put(body)

    async with environment.running(broker):
        await environment.publish(broker.publish, "abc", queue="orders")
        assert await received.next() == "cba"


async def test_a_codec_and_a_decoder_exclude_each_other(environment: Environment, received: Received) -> None:
    broker = environment.broker()

    @broker.subscriber("orders", codec=Rot13(), decoder=noting("decodes", received))
    async def handle(body: str) -> None: ...

    with pytest.raises(ValueError, match="codec"):
        async with environment.running(broker):
            pass


async def test_messages_taken_by_hand_are_decoded_too(looping: Environment, received: Received) -> None:
    broker = looping.broker()
    subscriber = broker.subscriber("orders", decoder=noting("decodes", received))
    async with looping.running(broker):
        await looping.publish(broker.publish, "a", queue="orders")
        message = await soon(subscriber.get_one(timeout=60))
        assert message is not None
        assert received.empty
        assert await message.decode() == "a"
        assert await received.next() == "decodes"
        await message.ack()
