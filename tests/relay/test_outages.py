"""What a relay does while the broker is down, silent, or not yet there: it waits, and counts no attempts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import UnknownTopicOrPartitionError
from faststream.nats import NatsBroker
from redis.exceptions import RedisError

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay
from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets import kafka_producer, make_target
from faststream_outbox.relay.targets.base import Target
from faststream_outbox.relay.targets.kafka_producer import BatchProducer
from faststream_outbox.relay.targets.redis import RedisTarget
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import (
    PARTITIONS,
    ConfluentEndpoint,
    Endpoint,
    Inbox,
    KafkaEndpoint,
    NatsStream,
    RabbitQueueEndpoint,
    RedisStream,
)
from tests.waiting import until, until_empty

KEEPING = (KafkaEndpoint, ConfluentEndpoint, RabbitQueueEndpoint, NatsStream, RedisStream)
every_server = pytest.mark.parametrize("endpoint", KEEPING, indirect=True, ids=lambda kind: kind.__name__)


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a broker for silent soon."""
    monkeypatch.setattr(Target, "confirm_timeout", 2.0)


async def publish(broker: OutboxBroker, postgres: PostgresBackend, numbers: range) -> None:
    """Publish numbers of ten keys, and every eleventh without one."""
    async with postgres.transaction() as session:
        for number in numbers:
            key = None if number % 11 == 10 else f"k{number % 11}"
            await broker.publish(b"%d" % number, queue="q", key=key, session=session)


def first_of_each(inbox: Inbox) -> dict[str, list[int]]:
    """Tell the order of a key's first arrivals: a row may come twice."""
    return {key: [int(body) for body in dict.fromkeys(bodies)] for key, bodies in inbox.by_key.items() if key}


def expected(numbers: range) -> dict[str, list[int]]:
    return {f"k{k}": [n for n in numbers if n % 11 == k] for k in range(10)}


@asynccontextmanager
async def relaying(broker: OutboxBroker, endpoint: Endpoint) -> AsyncIterator[Relay]:
    relay = Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination})
    async with relay:
        yield relay


@every_server
@pytest.mark.parametrize("fault", ["killed", "silent"])
async def test_rows_wait_for_a_broker_that_is_gone(postgres: PostgresBackend, endpoint: Endpoint, fault: str) -> None:
    records = Records()
    broker = broker_on(postgres, records)
    await publish(broker, postgres, range(110))
    async with relaying(broker, endpoint) as relay:
        await until_empty(postgres)
        if fault == "killed":
            await endpoint.running.kill()
        else:
            endpoint.running.pause()
        await publish(broker, postgres, range(110, 220))
        await until(lambda: relay.paused)
        await publish(broker, postgres, range(220, 330))
        rows = await postgres.rows()
        assert {row.attempts_count for row in rows} == {0}
        assert len([row for row in rows if row.id > 220 and row.acquired_token is None]) == 110
        assert relay.alive
        await endpoint.running.start()
        await until(lambda: not relay.paused)
        async with asyncio.timeout(60):
            await until_empty(postgres)
    async with endpoint.listening() as inbox:
        await inbox.until(330)
    assert {int(body) for body in inbox.bodies} == set(range(330))
    assert first_of_each(inbox) == expected(range(330))
    assert await postgres.dead_letters() == []
    assert records.named("relay_paused")
    assert records.named("relay_resumed")
    assert records.named("retry_scheduled") == []


@every_server
async def test_a_broker_may_come_after_the_relay(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker = broker_on(postgres)
    await publish(broker, postgres, range(110))
    await endpoint.running.kill()
    async with relaying(broker, endpoint) as relay:
        await until(lambda: relay.paused)
        assert len(await postgres.rows()) == 110
        await endpoint.running.start()
        async with asyncio.timeout(60):
            await until_empty(postgres)
    async with endpoint.listening() as inbox:
        await inbox.until(110)
    assert first_of_each(inbox) == expected(range(110))


@every_server
@pytest.mark.parametrize("fault", ["killed", "silent"])
async def test_a_stop_does_not_wait_for_the_broker(postgres: PostgresBackend, endpoint: Endpoint, fault: str) -> None:
    broker = broker_on(postgres)
    async with relaying(broker, endpoint) as relay:
        if fault == "killed":
            await endpoint.running.kill()
        else:
            endpoint.running.pause()
        await publish(broker, postgres, range(110))
        await until(lambda: relay.paused)
        async with asyncio.timeout(14):
            await relay.stop()
    rows = await postgres.rows()
    assert len(rows) == 110
    assert {row.attempts_count for row in rows} == {0}
    await endpoint.running.start()
    async with relaying(broker, endpoint):
        await until_empty(postgres)
    async with endpoint.listening() as inbox:
        await inbox.until(110)
    assert first_of_each(inbox) == expected(range(110))


@pytest.mark.parametrize("endpoint", [RedisStream], indirect=True, ids=["RedisStream"])
async def test_a_stop_in_an_outage_counts_no_delivery(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    """With `max_deliveries`, some restarts in outages would make rows dead that nobody could have sent."""
    broker = broker_on(postgres)
    for _ in range(2):
        async with Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination}, max_deliveries=2) as relay:
            await endpoint.running.kill()
            await publish(broker, postgres, range(22))
            await until(lambda: relay.paused)
            await until(postgres.rows, lambda rows: any(row.acquired_token for row in rows))
        rows = await postgres.rows()
        assert {(row.attempts_count, row.deliveries_count, row.acquired_token) for row in rows} == {(0, 0, None)}
        await endpoint.running.start()
    async with relaying(broker, endpoint):
        await until_empty(postgres)
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("endpoint", [NatsStream], indirect=True)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
async def test_a_client_may_give_up_and_the_relay_does_not(
    postgres: PostgresBackend, endpoint: Endpoint, shared: bool
) -> None:
    broker = broker_on(postgres)
    to = NatsBroker(endpoint.running.url, logger=None, max_reconnect_attempts=1, reconnect_time_wait=0)
    if shared:
        await to.connect()
    async with Relay(broker, to=to, routes={"q": endpoint.destination}) as relay:
        client: Any = to._connection
        await endpoint.running.kill()
        await publish(broker, postgres, range(22))
        await until(lambda: relay.paused and client.is_closed)
        await endpoint.running.start()
        await until_empty(postgres)
    await to.stop()


@pytest.mark.parametrize("endpoint", [RedisStream], indirect=True)
async def test_no_connection_outlives_the_redis_it_was_made_to(endpoint: RedisStream) -> None:
    """One that did would fail when it is used next, and look like another outage."""
    target = RedisTarget(endpoint.broker())
    await target.start()
    message = Outgoing(endpoint.destination, b"1", {}, None, "1", "1")
    try:
        await asyncio.gather(*(target.send_each([message]) for _ in range(6)))  # on six connections
        await endpoint.running.stop()
        with pytest.raises(RedisError):
            await target.alive()
        await endpoint.running.start()
        assert await target.alive()
        assert await asyncio.gather(*(target.send_each([message]) for _ in range(6))) == [[None]] * 6
    finally:
        await target.stop()


@pytest.mark.parametrize("endpoint", [KafkaEndpoint], indirect=True, ids=["Kafka"])
async def test_kafka_that_comes_back_while_it_is_asked_has_its_topics(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that Kafka did not name in time was taken for one that it does not have, and its rows for refused."""
    target = make_target(endpoint.broker())
    assert isinstance(target, BatchProducer)
    await target.start()
    endpoint.name += ".later"  # of which the target has not heard yet
    await endpoint.prepare()
    endpoint.running.pause()
    fetch = target._connected().client.fetch_all_metadata

    async def come_back_and_fetch() -> Any:
        endpoint.running.resume()
        return await fetch()

    monkeypatch.setattr(kafka_producer, "_TOPIC_SECONDS", 0.1)
    monkeypatch.setattr(kafka_producer, "_ANSWER_SECONDS", 30.0)
    monkeypatch.setattr(target._connected().client, "fetch_all_metadata", come_back_and_fetch)
    try:
        assert await target.partitions(endpoint.name) == list(range(PARTITIONS))
        with pytest.raises(UnknownTopicOrPartitionError):
            await target.partitions("no such topic")
    finally:
        await target.stop()
