"""A broker that answers, and takes nothing for a while: that is an outage as well, and no message is dead."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import nats
import pytest
import redis.asyncio

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay
from faststream_outbox.relay.targets.base import Target
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import Endpoint, NatsStream, RabbitQueueEndpoint, RedisList, RedisStream
from tests.waiting import until, until_empty


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a broker for silent soon."""
    monkeypatch.setattr(Target, "confirm_timeout", 2.0)


@asynccontextmanager
async def redis_with(endpoint: Endpoint, name: str, well: str, ill: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    client = redis.asyncio.from_url(endpoint.running.url)
    await client.config_set(name, ill)
    try:
        yield lambda: client.config_set(name, well)
    finally:
        await client.config_set(name, well)
        await client.aclose()


@asynccontextmanager
async def redis_as_replica(endpoint: Endpoint) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    client = redis.asyncio.from_url(endpoint.running.url)
    await client.slaveof("127.0.0.1", 1)  # no server is there
    try:
        yield client.slaveof
    finally:
        await client.slaveof()
        await client.aclose()


@asynccontextmanager
async def redis_without_writes(endpoint: Endpoint) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    client = redis.asyncio.from_url(endpoint.running.url)
    await client.client_pause(600_000, all=False)
    try:
        yield client.client_unpause
    finally:
        await client.client_unpause()
        await client.aclose()


@asynccontextmanager
async def full_queue(endpoint: RabbitQueueEndpoint) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    endpoint.name += "-small"
    async with await aio_pika.connect(endpoint.running.url) as connection:
        channel = await connection.channel()
        arguments: Any = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = await channel.declare_queue(endpoint.name, durable=True, arguments=arguments)
        await channel.default_exchange.publish(aio_pika.Message(b""), endpoint.name)

        async def consume() -> None:
            async def take(message: Any) -> None:
                await message.ack()

            await queue.consume(take)

        yield consume


@asynccontextmanager
async def full_stream(endpoint: NatsStream) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    client = await nats.connect(endpoint.running.url)
    stream = client.jetstream()
    limits: dict[str, Any] = {"name": endpoint.name, "subjects": [endpoint.name], "max_msgs": 1, "discard": "new"}
    await stream.update_stream(**limits)
    await stream.publish(endpoint.name, b"")
    yield lambda: stream.update_stream(**{**limits, "max_msgs": 100})
    await client.close()


@asynccontextmanager
async def no_jetstream(endpoint: NatsStream) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    running = endpoint.running
    running.keeps_streams = False
    await running.restart()
    running.keeps_streams = True
    yield running.restart


ILLS: list[Any] = [
    pytest.param(
        RedisStream, lambda endpoint: redis_with(endpoint, "maxmemory", "0", "1"), id="Redis stream, no memory"
    ),
    pytest.param(RedisList, lambda endpoint: redis_with(endpoint, "maxmemory", "0", "1"), id="Redis list, no memory"),
    pytest.param(
        RedisStream, lambda endpoint: redis_with(endpoint, "min-replicas-to-write", "0", "1"), id="Redis, no replicas"
    ),
    pytest.param(RedisStream, redis_as_replica, id="Redis, a replica"),
    pytest.param(RedisStream, redis_without_writes, id="Redis, writes are paused"),
    pytest.param(RabbitQueueEndpoint, full_queue, id="RabbitMQ, a full queue"),
    pytest.param(NatsStream, full_stream, id="NATS, a full stream"),
    pytest.param(NatsStream, no_jetstream, id="NATS, no JetStream"),
]


async def publish(broker: OutboxBroker, postgres: PostgresBackend) -> None:
    async with postgres.transaction() as session:
        for number in range(30):
            await broker.publish(b"%d" % number, queue="q", key=("a", "b", None)[number % 3], session=session)


@pytest.mark.parametrize(("endpoint", "ill"), ILLS, indirect=["endpoint"])
async def test_nothing_is_dead_where_nothing_is_taken(postgres: PostgresBackend, endpoint: Endpoint, ill: Any) -> None:
    broker = broker_on(postgres)
    async with ill(endpoint) as heal, Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination}) as relay:
        await publish(broker, postgres)
        await until(lambda: relay.paused)
        await asyncio.sleep(1.0)
        assert await postgres.dead_letters() == []
        assert {row.attempts_count for row in await postgres.rows()} == {0}
        await heal()
        await until_empty(postgres)
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize(
    ("endpoint", "ill"), [each for each in ILLS if each.id.startswith("Redis")], indirect=["endpoint"]
)
async def test_a_pause_lasts_until_something_is_confirmed_and_shows_no_value(
    postgres: PostgresBackend, endpoint: Endpoint, ill: Any
) -> None:
    """Such a Redis answers each ping: the relay tries again and again, and says once that it waits."""
    records = Records()
    broker = broker_on(postgres, records)
    relay = Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination})
    asked, ask = itertools.count(), relay._target.alive
    tries = 0

    async def count_and_ask() -> bool:
        nonlocal tries
        tries = next(asked)
        return await ask()

    relay._target.alive = count_and_ask  # type: ignore[method-assign] # to count
    async with ill(endpoint) as heal, relay:
        async with postgres.transaction() as session:
            for key in ("a", "b", None):
                await broker.publish(b"secret", queue="q", key=key, headers={"card": "secret"}, session=session)
        await until(lambda: relay.paused)
        reason = str(relay.pause_reason)
        await until(lambda: tries >= 4)
        assert relay.down
        assert len(records.named("relay_paused")) == 1
        assert records.named("relay_resumed") == []
        await heal()
        await until_empty(postgres)
        await until(lambda: not relay.paused)
    assert len(records.named("relay_paused")) == len(records.named("relay_resumed")) == 1
    assert "secret" not in reason
    assert "XADD" not in reason
