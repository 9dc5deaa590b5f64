"""A server or an exchange that is replaced while a relay is connected."""

from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
import redis.asyncio
from faststream.rabbit import RabbitBroker
from faststream.redis import RedisBroker

from faststream_outbox.relay import Relay
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.proxy import proxying
from tests.relay.endpoints import RabbitQueueEndpoint
from tests.servers.redis import Redis
from tests.waiting import until, until_empty


@pytest.fixture
async def other_redis(redis_server: Redis) -> AsyncIterator[Redis]:
    del redis_server  # skips the test where there is none
    async with Redis() as server:
        yield server


async def test_a_redis_that_became_a_replica_is_left_for_the_one_that_its_name_leads_to(
    postgres: PostgresBackend, redis_server: Redis, other_redis: Redis
) -> None:
    broker = broker_on(postgres)
    async with (
        redis.asyncio.from_url(redis_server.url) as old,
        redis.asyncio.from_url(other_redis.url) as new,
        proxying(redis_server.url) as name,
        Relay(broker, to=RedisBroker(name.url(redis_server.url)), routes={"q": "moved"}) as relay,
    ):
        await publish(broker, postgres, "q")
        await until_empty(postgres)
        name.redirect(other_redis.url)
        await old.slaveof("127.0.0.1", other_redis.port)
        try:
            await publish(broker, postgres, "q")
            await until_empty(postgres)
        finally:
            await old.slaveof()
        assert await new.xlen("moved") == 20
        await until(lambda: not relay.paused)
    assert await postgres.dead_letters() == []


@pytest.mark.parametrize("endpoint", [RabbitQueueEndpoint], indirect=True)
async def test_a_deleted_exchange_keeps_nobody_from_connecting_again(
    postgres: PostgresBackend, endpoint: RabbitQueueEndpoint
) -> None:
    """The client declares what it knows when it connects, and does not connect if that fails."""
    records = Records()
    broker, exchange = broker_on(postgres, records), f"{endpoint.name}-exchange"
    async with await aio_pika.connect(endpoint.running.url) as connection:
        channel = await connection.channel()
        await declare(channel, exchange, endpoint.name)
        async with proxying(endpoint.running.url) as proxy:
            to = RabbitBroker(proxy.url(endpoint.running.url), logger=None)
            routes = {"deleted": f"{exchange}/k", "q": endpoint.destination}
            async with Relay(broker, to=to, routes=routes) as relay:
                await publish(broker, postgres, "deleted")
                await until_empty(postgres)
                await channel.exchange_delete(exchange)
                proxy.cut()
                await publish(broker, postgres, "q")
                await until_empty(postgres)
                assert await postgres.dead_letters() == []
                await declare(channel, exchange, endpoint.name)
                await publish(broker, postgres, "deleted")
                await until_empty(postgres)
                assert not relay.paused
    assert await postgres.dead_letters() == []


async def declare(channel: Any, exchange: str, queue: str) -> None:
    declared = await channel.declare_exchange(exchange, "direct", durable=True)
    await (await channel.get_queue(queue)).bind(declared, "k")


async def publish(broker: Any, postgres: PostgresBackend, queue: str) -> None:
    async with postgres.transaction() as session:
        keys = ["a" if number % 2 else None for number in range(20)]
        await broker.publish_batch(*[b"x"] * 20, queue=queue, keys=keys, session=session)
