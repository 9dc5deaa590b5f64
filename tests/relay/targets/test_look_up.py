"""What a relay finds out about its destinations before it sends anything, on real servers."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aio_pika
import nats
import pytest
from faststream.nats import NatsBroker
from faststream.rabbit import RabbitBroker
from faststream.redis import RedisBroker
from faststream.security import SASLPlaintext
from redis.asyncio import Redis as RedisClient
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.relay import DestinationCheck, Relay, Route, by_header
from tests.relay.endpoints import Endpoint
from tests.relay.kafka.load import CLIENTS, both_clients
from tests.servers.kafka import Kafka
from tests.servers.kafka_cluster import PASSWORD, USER, KafkaWithRights, topics_of
from tests.servers.nats import Nats
from tests.servers.plugin import Servers
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis


def relay_to(to: Any, routes: Mapping[str, Route]) -> Relay:
    """Return a relay whose database is never asked."""
    engine = create_async_engine("postgresql+asyncpg://127.0.0.1:1/nowhere")
    return Relay(OutboxBroker(engine, outbox_table=make_outbox_table(MetaData())), to=to, routes=routes)


async def check(to: Any, *destinations: str) -> list[DestinationCheck]:
    routes = {f"q{number}": destination for number, destination in enumerate(destinations)}
    return await relay_to(to, routes).check_destinations()


def new_name() -> str:
    return f"p{uuid4().hex}"


async def test_a_destination_that_messages_arrive_at_is_found(endpoint: Endpoint) -> None:
    [found] = await check(endpoint.broker(), endpoint.destination)
    assert found.found, found
    assert endpoint.name in found.text


@both_clients
async def test_a_missing_topic_is_named_and_not_created(own_kafka_server: Kafka, client: str) -> None:
    there, missing = new_name(), new_name()
    await own_kafka_server.create_topic(there)
    checks = await check(CLIENTS[client](own_kafka_server.bootstrap_servers, logger=None), there, missing)
    assert [each.found for each in checks] == [True, False]
    assert checks[0].text == f"topic '{there}' exists"
    assert checks[1].text.startswith(f"there is no topic '{missing}': create it, for instance by kafka-topics.sh")
    assert missing not in await topics_of(own_kafka_server)


class CreatingKafka(Kafka):
    """A Kafka that creates topics by itself."""

    def __init__(self) -> None:
        super().__init__(auto_create_topics=True)


@both_clients
async def test_a_topic_that_kafka_will_create_is_not_wrong(
    servers: Servers, request: pytest.FixtureRequest, client: str
) -> None:
    kafka = await servers.up(CreatingKafka, request)
    name = new_name()
    [found] = await check(CLIENTS[client](kafka.bootstrap_servers, logger=None), name)
    assert found.found
    assert "creates it with the first message (auto.create.topics.enable)" in found.text
    assert name not in await topics_of(kafka)


@both_clients
async def test_a_topic_that_the_relay_may_not_see(
    servers: Servers, request: pytest.FixtureRequest, client: str
) -> None:
    kafka = await servers.up(KafkaWithRights, request)
    name, allowed = new_name(), new_name()
    for each in (name, allowed):
        await kafka.create_topic(each)
    await kafka.allow(allowed)
    address = f"127.0.0.1:{kafka.user_port}"
    to = CLIENTS[client](address, logger=None, security=SASLPlaintext(USER, PASSWORD))
    seen, unseen = await check(to, allowed, name)
    assert seen.found, seen
    assert not unseen.found
    assert "grant it the operations Describe and Write" in unseen.text


async def test_a_subject_without_a_stream_is_named(nats_server: Nats) -> None:
    name = new_name()
    client = await nats.connect(nats_server.url)
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
    await client.close()
    there, missing, core = await check(
        NatsBroker(nats_server.url, logger=None), f"{name}.orders", f"{name}x.orders", f"core:{name}x"
    )
    assert there == (f"stream '{name}' has the subject '{name}.orders'", True)
    assert not missing.found
    assert (
        f"create one, for instance by nats stream add {name.upper()}X_ORDERS --subjects {name}x.orders" in missing.text
    )
    assert core.found


class NatsWithoutStreams(Nats):
    """A NATS whose JetStream is not enabled."""

    keeps_streams = False


async def test_a_nats_without_jetstream_is_named(servers: Servers, request: pytest.FixtureRequest) -> None:
    server = await servers.up(NatsWithoutStreams, request)
    [found] = await check(NatsBroker(server.url, logger=None), new_name())
    assert not found.found
    assert "JetStream is not available" in found.text


@asynccontextmanager
async def rabbit_channel(server: RabbitMQ) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    connection = await aio_pika.connect(server.url)
    async with connection:
        yield await connection.channel()


async def test_missing_queues_and_exchanges_are_named_and_not_declared(rabbitmq_server: RabbitMQ) -> None:
    queue, exchange, own, missing = (new_name() for _ in range(4))
    async with rabbit_channel(rabbitmq_server) as channel:
        await channel.declare_queue(queue, auto_delete=True)
        await channel.declare_exchange(exchange, auto_delete=True)
        await channel.declare_queue(own, exclusive=True)
        destinations = (queue, f"/{queue}", own, f"{exchange}/key", missing, f"{missing}/key")
        to = RabbitBroker(rabbitmq_server.url, logger=None)
        for _ in range(2):  # asking declares nothing, so the answer stays the same
            checks = dict(zip(destinations, await check(to, *destinations), strict=True))
            assert [each.found for each in checks.values()] == [True] * 4 + [False] * 2, checks
            assert checks[f"/{queue}"].text == f"queue '{queue}' exists"
            assert "only a message shows whether a queue is bound for 'key'" in checks[f"{exchange}/key"].text
            assert checks[missing].text.startswith(f"RabbitMQ has no queue '{missing}' in virtual host '/': declare it")
            assert checks[f"{missing}/key"].text.startswith(f"RabbitMQ has no exchange '{missing}'")


async def test_redis_lacks_nothing_but_a_name_may_be_taken(redis_server: Redis) -> None:
    taken, stream = new_name(), new_name()
    async with RedisClient.from_url(redis_server.url) as client:
        await client.set(taken, "text")
        await client.xadd(stream, {"a": "b"})
        to = RedisBroker(redis_server.url)
        names = (stream, new_name(), f"list:{new_name()}", f"channel:{taken}", taken, f"list:{stream}")
        checks = await check(to, *names)
        assert [each.found for each in checks] == [True] * 4 + [False] * 2, checks
        assert "is not there yet: Redis creates it with the first message" in checks[1].text
        assert checks[4].text.startswith(f"'{taken}' is a string in Redis, and no stream can be made of it")


async def test_destinations_of_headers_are_checked_as_far_as_they_are_known(redis_server: Redis) -> None:
    names = [new_name() for _ in range(3)]
    routes: dict[str, Route] = {
        "fixed": names[0],
        "closed": by_header("to", default=names[1], allow=[names[0], names[2]]),
        "open": by_header("to", allow=["audit-*"]),
        "function": lambda row: row.queue,
    }
    checks = await relay_to(RedisBroker(redis_server.url), routes).check_destinations()
    assert [next((name for name in names if name in text), text) for text, _ in checks] == [
        *names,
        "the rows of queue 'open' name destinations, which are not checked",
        "the rows of queue 'function' name destinations, which are not checked",
    ]


async def test_a_name_that_cannot_be_a_destination_is_wrong(nats_server: Nats) -> None:
    routes: dict[str, Route] = {"q": by_header("to", allow=["$JS.API.INFO"])}
    [found] = await relay_to(NatsBroker(nats_server.url, logger=None), routes).check_destinations()
    assert not found.found
    assert "belongs to NATS itself" in found.text
