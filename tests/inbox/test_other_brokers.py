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
from tests.inbox.inbox_app import InboxApp


async def deliver(app: InboxApp, broker: Any, test_broker: Any, subscriber: Any, **message: Any) -> None:
    """Publish the same message twice, as a relay may."""

    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)

    subscriber(handle)
    async with test_broker(broker):
        for _ in range(2):
            await broker.publish("a", **message)


async def test_kafka(app: InboxApp) -> None:
    router = KafkaRouter(middlewares=[app.inbox()])
    broker = KafkaBroker()
    subscriber = router.subscriber("q", ack_policy=AckPolicy.NACK_ON_ERROR)

    @subscriber
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)

    broker.include_router(router)
    async with TestKafkaBroker(broker):
        for _ in range(2):
            await broker.publish("a", topic="q", headers={"outbox_id": "1"})
        with pytest.raises(LookupError, match="no id that stays the same"):
            await broker.publish("b", topic="q")
    assert (await app.written(), await app.seen()) == (["a"], [("billing", "1")])


async def test_kafka_that_acks_first(app: InboxApp) -> None:
    broker = KafkaBroker(middlewares=[app.inbox()])
    with pytest.raises(RuntimeError, match="acks a message before it is handled"):
        await deliver(app, broker, TestKafkaBroker, broker.subscriber("q"), topic="q", headers={"outbox_id": "1"})
    assert (await app.written(), await app.seen()) == ([], [])


async def test_confluent(app: InboxApp) -> None:
    broker = ConfluentBroker(middlewares=[app.inbox()])
    subscriber = broker.subscriber("q", group_id="billing", ack_policy=AckPolicy.NACK_ON_ERROR)
    await deliver(app, broker, TestConfluentBroker, subscriber, topic="q", headers={"message_id": "1"})
    assert (await app.written(), await app.seen()) == (["a"], [("billing", "1")])


async def test_batches_are_refused(app: InboxApp) -> None:
    kafka = KafkaBroker(middlewares=[app.inbox()])
    subscriber = kafka.subscriber("q", batch=True, ack_policy=AckPolicy.NACK_ON_ERROR)
    with pytest.raises(RuntimeError, match="this is a batch"):
        await deliver(app, kafka, TestKafkaBroker, subscriber, topic="q", headers={"outbox_id": "1"})
    redis = RedisBroker(middlewares=[app.inbox()])
    batch = redis.subscriber(stream=StreamSub("q", batch=True))
    with pytest.raises(RuntimeError, match="this is a batch"):
        await deliver(app, redis, TestRedisBroker, batch, stream="q", headers={"outbox_id": "1"})
    assert (await app.written(), await app.seen()) == ([], [])


async def test_rabbit(app: InboxApp) -> None:
    broker = RabbitBroker(middlewares=[app.inbox()])
    await deliver(app, broker, TestRabbitBroker, broker.subscriber("q"), queue="q", message_id="1")
    assert (await app.written(), await app.seen()) == (["a"], [("billing", "1")])


async def test_nats(app: InboxApp) -> None:
    broker = NatsBroker(middlewares=[app.inbox()])
    await deliver(app, broker, TestNatsBroker, broker.subscriber("q"), subject="q", headers={"message_id": "1"})
    assert (await app.written(), await app.seen()) == (["a"], [("billing", "1")])


async def test_redis(app: InboxApp) -> None:
    broker = RedisBroker(middlewares=[app.inbox()])
    await deliver(app, broker, TestRedisBroker, broker.subscriber(stream="q"), stream="q", headers={"message_id": "1"})
    assert (await app.written(), await app.seen()) == (["a"], [("billing", "1")])


async def test_an_answer_is_published_before_the_commit_and_not_for_a_duplicate(app: InboxApp) -> None:
    broker = RabbitBroker()
    answers: list[str] = []

    @broker.subscriber("answers")
    async def answered(body: str) -> None:
        answers.append(body)
        assert await app.seen() == [], "a crash here has it answered again, and not never"

    # A broker of its own: the answers are none of the inbox's business.
    consumer = RabbitBroker(middlewares=[app.inbox()])

    @consumer.subscriber("q")
    @broker.publisher("answers")
    async def handle(body: str, session: InboxSession) -> str:
        await app.write(session, body)
        return body

    async with TestRabbitBroker(broker), TestRabbitBroker(consumer):
        for _ in range(2):
            await consumer.publish("a", queue="q", message_id="1")
    assert answers == await app.written() == ["a"]
