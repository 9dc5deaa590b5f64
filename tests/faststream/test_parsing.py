"""Parsers, decoders and codecs: on the broker, a router, a subscriber, a handler."""

from collections.abc import Callable
from typing import Any

import pytest

from faststream_outbox import OutboxRouter
from faststream_outbox._faststream import DefaultCodec
from faststream_outbox.annotations import OutboxMessage
from faststream_outbox.message import OutboxMessage as Message
from tests.faststream.environments import Inbox, World, soon

Noting = Callable[[Any, Any], Any]


def noting(name: str, inbox: Inbox) -> Noting:
    async def note(message: Any, original: Any) -> Any:
        inbox.put(name)
        return await original(message)

    return note


async def test_the_nearest_one_is_used(world: World, inbox: Inbox) -> None:
    broker = world.broker(parser=noting("broker parses", inbox), decoder=noting("broker decodes", inbox))
    router = OutboxRouter(parser=noting("router parses", inbox), decoder=noting("router decodes", inbox))

    @broker.subscriber("plain")
    @router.subscriber("routed")
    @router.subscriber("own", parser=noting("subscriber parses", inbox), decoder=noting("subscriber decodes", inbox))
    async def handle(body: str) -> None:
        inbox.put(body)

    broker.include_router(router)
    async with world.running(broker):
        for queue, name in (("plain", "broker"), ("routed", "router"), ("own", "subscriber")):
            await world.publish(broker.publish, queue, queue=queue)
            assert await inbox.take(3) == [f"{name} parses", f"{name} decodes", queue]
            await world.drained()


async def test_one_handler_of_several_may_have_its_own(world: World, inbox: Inbox) -> None:
    broker = world.broker()
    subscriber = broker.subscriber("orders")

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def handle_json(_body: Any) -> None:
        inbox.put("json")

    @subscriber(parser=noting("parses", inbox), decoder=noting("decodes", inbox))
    async def handle_rest(_body: Any) -> None:
        inbox.put("rest")

    async with world.running(broker):
        await world.publish(broker.publish, {"a": 1}, queue="orders")
        assert await inbox.next() == "json"
        await world.publish(broker.publish, b"a", queue="orders")
        assert await inbox.take(3) == ["parses", "decodes", "rest"]


async def test_they_may_be_plain_functions_without_the_original(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    def parse(row: Any) -> Message:
        return Message(row, row.payload[::-1], message_id="mine", correlation_id="mine")

    def decode(message: Any) -> str:
        text: str = message.body.decode()
        return text.upper()

    @broker.subscriber("orders", parser=parse, decoder=decode)
    async def handle(body: str, message: OutboxMessage) -> None:
        inbox.put((body, message.message_id))

    async with world.running(broker):
        await world.publish(broker.publish, b"abc", queue="orders")
        assert await inbox.next() == ("CBA", "mine")
        await world.drained()


async def test_an_unreadable_message_is_not_lost(looping: World, inbox: Inbox) -> None:
    broker = looping.broker()

    async def parse(row: Any, _original: Any) -> Any:
        inbox.put("parsed")
        raise ValueError(row)

    @broker.subscriber("orders", parser=parse)
    async def handle(body: str) -> None: ...

    async with looping.running(broker):
        await looping.publish(broker.publish, "a", queue="orders")
        assert await inbox.next() == "parsed"
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


async def test_a_codec_of_the_broker(world: World, inbox: Inbox) -> None:
    broker = world.broker(codec=Rot13())

    @broker.publisher("done")
    @broker.subscriber("orders")
    async def handle(body: dict[str, int]) -> dict[str, int]:
        return body

    @broker.subscriber("done")
    async def collect(body: dict[str, int], message: OutboxMessage) -> None:
        inbox.put((body, message.raw_message.payload))

    async with world.running(broker):
        await world.publish(broker.publish, {"n": 1}, queue="orders")
        assert await inbox.next() == ({"n": 1}, b'}1:"n"{')


async def test_a_codec_of_one_subscriber(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("orders", codec=Rot13())
    async def handle(body: str) -> None:
        inbox.put(body)

    async with world.running(broker):
        await world.publish(broker.publish, "abc", queue="orders")
        assert await inbox.next() == "cba"


async def test_a_codec_and_a_decoder_exclude_each_other(world: World, inbox: Inbox) -> None:
    broker = world.broker()

    @broker.subscriber("orders", codec=Rot13(), decoder=noting("decodes", inbox))
    async def handle(body: str) -> None: ...

    with pytest.raises(ValueError, match="codec"):
        async with world.running(broker):
            pass


async def test_messages_taken_by_hand_are_decoded_too(looping: World, inbox: Inbox) -> None:
    broker = looping.broker()
    subscriber = broker.subscriber("orders", decoder=noting("decodes", inbox))
    async with looping.running(broker):
        await looping.publish(broker.publish, "a", queue="orders")
        message = await soon(subscriber.get_one(timeout=20))
        assert message is not None
        assert inbox.empty
        assert await message.decode() == "a"
        assert await inbox.next() == "decodes"
        await message.ack()
