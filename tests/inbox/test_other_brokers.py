"""The inbox on FastStream's other brokers: their own test brokers deliver the messages."""

from typing import Any

import pytest
from faststream import AckPolicy
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.confluent import TestKafkaBroker as TestConfluentBroker
from faststream.kafka import KafkaBroker, KafkaRouter, TestKafkaBroker
from faststream.nats import NatsBroker, TestNatsBroker
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from faststream.redis import RedisBroker, StreamSub, TestRedisBroker

from faststream_outbox.annotations import InboxSession
from tests.inbox.inbox_app import Desk


async def deliver(desk: Desk, broker: Any, test_broker: Any, subscriber: Any, **message: Any) -> None:
    """Publish the same message twice, as a relay may."""

    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)

    subscriber(handle)
    async with test_broker(broker):
        for _ in range(2):
            await broker.publish("a", **message)


async def test_kafka(desk: Desk) -> None:
    router = KafkaRouter(middlewares=[desk.inbox()])
    broker = KafkaBroker()
    subscriber = router.subscriber("q", ack_policy=AckPolicy.NACK_ON_ERROR)

    @subscriber
    async def handle(body: str, session: InboxSession) -> None:
        await desk.write(session, body)

    broker.include_router(router)
    async with TestKafkaBroker(broker):
        for _ in range(2):
            await broker.publish("a", topic="q", headers={"outbox_id": "1"})
        with pytest.raises(LookupError, match="no id that would be the same"):
            await broker.publish("b", topic="q")
    assert (await desk.written(), await desk.seen()) == (["a"], [("desk", "1")])


async def test_kafka_that_acks_first(desk: Desk) -> None:
    broker = KafkaBroker(middlewares=[desk.inbox()])
    with pytest.raises(RuntimeError, match="acks a message before it is handled"):
        await deliver(desk, broker, TestKafkaBroker, broker.subscriber("q"), topic="q", headers={"outbox_id": "1"})
    assert (await desk.written(), await desk.seen()) == ([], [])


async def test_confluent(desk: Desk) -> None:
    broker = ConfluentBroker(middlewares=[desk.inbox()])
    subscriber = broker.subscriber("q", group_id="desk", ack_policy=AckPolicy.NACK_ON_ERROR)
    await deliver(desk, broker, TestConfluentBroker, subscriber, topic="q", headers={"message_id": "1"})
    assert (await desk.written(), await desk.seen()) == (["a"], [("desk", "1")])


async def test_batches_are_refused(desk: Desk) -> None:
    kafka = KafkaBroker(middlewares=[desk.inbox()])
    subscriber = kafka.subscriber("q", batch=True, ack_policy=AckPolicy.NACK_ON_ERROR)
    with pytest.raises(RuntimeError, match="this is a batch"):
        await deliver(desk, kafka, TestKafkaBroker, subscriber, topic="q", headers={"outbox_id": "1"})
    redis = RedisBroker(middlewares=[desk.inbox()])
    batch = redis.subscriber(stream=StreamSub("q", batch=True))
    with pytest.raises(RuntimeError, match="this is a batch"):
        await deliver(desk, redis, TestRedisBroker, batch, stream="q", headers={"outbox_id": "1"})
    assert (await desk.written(), await desk.seen()) == ([], [])


async def test_rabbit(desk: Desk) -> None:
    broker = RabbitBroker(middlewares=[desk.inbox()])
    await deliver(desk, broker, TestRabbitBroker, broker.subscriber("q"), queue="q", message_id="1")
    assert (await desk.written(), await desk.seen()) == (["a"], [("desk", "1")])


async def test_nats(desk: Desk) -> None:
    broker = NatsBroker(middlewares=[desk.inbox()])
    await deliver(desk, broker, TestNatsBroker, broker.subscriber("q"), subject="q", headers={"message_id": "1"})
    assert (await desk.written(), await desk.seen()) == (["a"], [("desk", "1")])


async def test_redis(desk: Desk) -> None:
    broker = RedisBroker(middlewares=[desk.inbox()])
    await deliver(desk, broker, TestRedisBroker, broker.subscriber(stream="q"), stream="q", headers={"message_id": "1"})
    assert (await desk.written(), await desk.seen()) == (["a"], [("desk", "1")])


async def test_an_answer_is_published_before_the_commit_and_not_for_a_duplicate(desk: Desk) -> None:
    broker = RabbitBroker()
    answers: list[str] = []

    @broker.subscriber("answers")
    async def answered(body: str) -> None:
        answers.append(body)
        assert await desk.seen() == [], "a crash here has it answered again, and not never"

    # A broker of its own: the answers are none of the inbox's business.
    consumer = RabbitBroker(middlewares=[desk.inbox()])

    @consumer.subscriber("q")
    @broker.publisher("answers")
    async def handle(body: str, session: InboxSession) -> str:
        await desk.write(session, body)
        return body

    async with TestRabbitBroker(broker), TestRabbitBroker(consumer):
        for _ in range(2):
            await consumer.publish("a", queue="q", message_id="1")
    assert answers == await desk.written() == ["a"]
