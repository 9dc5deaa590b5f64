"""A message that Kafka answers by closing the connection, or by an error that does not say why."""

import time
from typing import Any

import pytest

from faststream_outbox.relay import Relay, forwarder
from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets import make_target
from faststream_outbox.relay.targets.base import NotAcceptedError, RefusedError, UnexplainedError
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.relay.endpoints import PARTITIONS
from tests.relay.kafka.load import CLIENTS, Load, both_clients, topic_on
from tests.relay.memory_target import Memory
from tests.servers.kafka_cluster import KafkaBehindProxy
from tests.servers.kafka_mock import KafkaMock
from tests.servers.plugin import Servers
from tests.waiting import until, until_empty

LARGE = 2 * KafkaBehindProxy.LARGEST_REQUEST
# How each client is allowed to send more than that.
ALLOWANCES: dict[str, Any] = {
    "aiokafka": {"max_request_size": 10 * LARGE},
    "confluent": {"config": {"message.max.bytes": 10 * LARGE}},
}


@pytest.fixture
async def kafka(servers: Servers, request: pytest.FixtureRequest) -> KafkaBehindProxy:
    return await servers.up(KafkaBehindProxy, request)


@both_clients
async def test_a_message_larger_than_a_request_may_be_is_refused(
    postgres: PostgresBackend, kafka: KafkaBehindProxy, client: str
) -> None:
    """Kafka closes the connection, which others use too, and the clients send the message again and again."""
    load, topics = Load(postgres), {name: f"{name}-{client}" for name in ("q", "r")}
    for topic in topics.values():
        await kafka.create_topic(topic, PARTITIONS)
    to = CLIENTS[client](kafka.bootstrap_servers, logger=None, **ALLOWANCES[client])
    await load.publish("q")
    await load.publish_one("q", "with a key" + "x" * LARGE, "a")
    await load.publish_one("q", "without a key" + "x" * LARGE, None)
    async with load.relayed(to, topics):
        for queue in topics:
            await load.publish(queue)
        await until_empty(postgres)
    assert {body.rstrip("x") for body in await load.dead()} == {"with a key", "without a key"}
    assert {"closed the connection 3 times in a row" in why for why in (await load.dead()).values()} == {True}
    for queue, topic in topics.items():
        assert await load.violations(queue, topic_on(kafka, topic)) == []


@both_clients
async def test_such_a_message_may_park_its_key(postgres: PostgresBackend, kafka: KafkaBehindProxy, client: str) -> None:
    load, topic = Load(postgres), f"park-{client}"
    await kafka.create_topic(topic, PARTITIONS)
    to = CLIENTS[client](kafka.bootstrap_servers, logger=None, **ALLOWANCES[client])
    await load.publish_one("q", "x" * LARGE, "d")
    await load.publish("q")
    async with load.relayed(to, {"q": topic}, on_dead="park"):
        await until(lambda: load.waiting("q"), lambda left: left == 1)
        async with postgres.transaction() as session:
            [key] = await until(lambda: load.broker.fetch_keys(session=session, state="parked"))
            assert key.key == "d"
            assert await load.broker.skip_key(queue="q", key="d", reason="too large", session=session)
        await until_empty(postgres)
    assert await load.violations("q", topic_on(kafka, topic)) == []


@both_clients
@pytest.mark.parametrize("code", [-1, 2], ids=["unknown server error", "corrupt message"])
async def test_an_answer_that_says_nothing_is_not_a_refusal(kafka_mock: KafkaMock, client: str, code: int) -> None:
    target = make_target(CLIENTS[client](kafka_mock.bootstrap_servers, logger=None))
    await target.start()
    message = Outgoing(f"codes-{client}{code}", b"1", {}, "k", "1", "1")
    try:
        assert await target.send_each([message]) == [None]
        before = time.monotonic()
        await kafka_mock.fail(code)
        [error] = await target.send_each([message])
        if error is not None:  # librdkafka repeats some by itself
            assert isinstance(error, UnexplainedError)
            assert 0.0 < error.accepted_at < before
        assert await target.send_each([message]) == [None]
    finally:
        await target.stop()


class Answering(Memory):
    """Answers the bad message with an error, as a partition does that accepts others or none."""

    def __init__(self, *, accepts: bool) -> None:
        super().__init__(self._answer)
        self.accepts = accepts
        self.answers = 0

    def _answer(self, body: bytes) -> Exception | None:
        if body != b"bad":
            return None if self.accepts else NotAcceptedError("The disk is full.")
        self.answers += 1
        return UnexplainedError("Unknown server error", accepted_at=time.monotonic() if self.accepts else 0.0)


@pytest.mark.parametrize("key", ["k", None], ids=["with a key", "without a key"])
async def test_a_message_that_fails_alone_is_refused_where_others_are_accepted(
    postgres: PostgresBackend, key: str | None
) -> None:
    broker, target = broker_on(postgres), Answering(accepts=True)
    bodies = [b"bad" if number == 5 else b"%d" % number for number in range(20)]
    async with postgres.transaction() as session:
        await broker.publish_batch(*bodies, queue="q", keys=[key] * 20, session=session)
    async with Relay(broker, to=target, routes={"q": "there"}):
        await until_empty(postgres)
    [dead] = await postgres.dead_letters()
    assert (dead.payload, RefusedError.__name__ in str(dead.last_exception)) == (b"bad", True)
    assert "failed this message 3 times in a row" in str(dead.last_exception)
    assert list(dict.fromkeys(target.sent)) == [body for body in bodies if body != b"bad"]
    assert target.answers <= 10


async def test_a_message_that_fails_waits_where_no_other_is_accepted(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder, "_UNPROVEN_DELAY", 0.2)
    broker, target = broker_on(postgres), Answering(accepts=False)
    async with postgres.transaction() as session:
        await broker.publish_batch(b"bad", b"good", queue="q", keys=["k", "l"], session=session)
    async with Relay(broker, to=target, routes={"q": "there"}):
        await until(lambda: target.answers >= 8)
        assert await postgres.dead_letters() == []
        assert {row.attempts_count for row in await postgres.rows()} == {0}
        target.accepts = True
        await until_empty(postgres)
    assert [dead.payload for dead in await postgres.dead_letters()] == [b"bad"]
    assert target.sent == [b"good"]
