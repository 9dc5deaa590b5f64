"""A message on which the connection is lost each time is refused; one on which it is lost by chance never is."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.proxy import Proxy, proxying
from tests.relay.endpoints import (
    ConfluentEndpoint,
    Endpoint,
    KafkaEndpoint,
    NatsCore,
    NatsStream,
    RabbitQueueEndpoint,
    RedisStream,
)
from tests.relay.faults.settings import Address
from tests.servers.kafka_cluster import KafkaBehindProxy
from tests.waiting import until, until_empty


class KafkaByProxy(KafkaEndpoint):
    server = KafkaBehindProxy


class ConfluentByProxy(ConfluentEndpoint):
    server = KafkaBehindProxy


KINDS = (RabbitQueueEndpoint, NatsStream, NatsCore, RedisStream, KafkaByProxy, ConfluentByProxy)
every_server = pytest.mark.parametrize("endpoint", KINDS, indirect=True, ids=lambda kind: kind.__name__)
POISON = b"<closes the connection>"


@pytest.fixture
async def proxy(endpoint: Endpoint) -> AsyncIterator[Proxy]:
    async with proxying(endpoint.running.url, port=getattr(endpoint.running, "proxy_port", 0)) as proxy:
        yield proxy


def broker_by_way_of(proxy: Proxy, endpoint: Endpoint) -> Any:
    """Make what a relay sends through, connected to the proxy, and again soon after a connection is lost."""
    own = type(endpoint)(Address(proxy.url(endpoint.running.url)))
    return own.broker()


async def publish(broker: OutboxBroker, postgres: PostgresBackend, *bodies: bytes, keys: list[str | None]) -> None:
    async with postgres.transaction() as session:
        await broker.publish_batch(*bodies, queue="q", keys=keys, session=session)


@every_server
@pytest.mark.parametrize("key", ["k7", None], ids=["with a key", "without a key"])
async def test_a_message_that_closes_the_connection_is_refused(
    postgres: PostgresBackend, endpoint: Endpoint, proxy: Proxy, key: str | None
) -> None:
    broker = broker_on(postgres)
    bodies = [b"%d" % number for number in range(320)]
    keys: list[str | None] = [f"k{number % 32}" if number % 2 else None for number in range(320)]
    bodies.insert(100, POISON)
    keys.insert(100, key)
    await publish(broker, postgres, *bodies, keys=keys)
    proxy.poison = POISON
    to = broker_by_way_of(proxy, endpoint)
    async with endpoint.listening() as inbox:
        async with Relay(broker, to=to, routes={"q": endpoint.destination}):
            await until_empty(postgres, seconds=90)
        await inbox.until(320)
    [dead] = await postgres.dead_letters()
    assert (dead.payload, dead.failure_reason) == (POISON, "rejected")
    assert "closed the connection" in str(dead.last_exception)
    assert set(inbox.bodies) == set(bodies) - {POISON}
    for each in {each for each in keys if each}:
        sent = [body for body, its in zip(bodies, keys, strict=True) if its == each and body != POISON]
        assert list(dict.fromkeys(inbox.by_key[each])) == sent


@every_server
async def test_a_message_is_not_refused_while_no_other_is_accepted(
    postgres: PostgresBackend, endpoint: Endpoint, proxy: Proxy
) -> None:
    """A broker that closes the connection at whatever it is sent has a fault of its own."""
    broker = broker_on(postgres)
    await publish(broker, postgres, POISON, POISON, keys=["a", "b"])
    proxy.poison = POISON
    to = broker_by_way_of(proxy, endpoint)
    async with Relay(broker, to=to, routes={"q": endpoint.destination}):
        await until(lambda: proxy.poisoned >= 10, seconds=120)
        assert await postgres.dead_letters() == []
        assert {(row.attempts_count, row.deliveries_count <= 1) for row in await postgres.rows()} == {(0, True)}
        proxy.poison = None
        await until_empty(postgres, seconds=60)
    assert await postgres.dead_letters() == []


# Kafka takes long to start, and the rounds of a relay kill it and find rows that were refused.
CHANCES = [(kind, "connections") for kind in KINDS] + [(kind, "server") for kind in KINDS[:4]]


@pytest.mark.parametrize(("endpoint", "fault"), CHANCES, indirect=["endpoint"])
async def test_nothing_is_refused_while_connections_are_lost_by_chance(
    postgres: PostgresBackend, endpoint: Endpoint, proxy: Proxy, fault: str
) -> None:
    broker = broker_on(postgres)
    rng, sent = random.Random(7), 0
    to = broker_by_way_of(proxy, endpoint)
    async with Relay(broker, to=to, routes={"q": endpoint.destination}):
        for _ in range(3 if fault == "server" else 25):
            bodies = [b"%d" % number for number in range(sent, sent + 40)]
            sent += 40
            await publish(broker, postgres, *bodies, keys=[f"k{n % 30}" if n % 3 else None for n in range(40)])
            await asyncio.sleep(rng.random() / 5)
            if fault == "connections":
                proxy.cut()
            else:
                await endpoint.running.kill()
                await endpoint.running.start()
        await until_empty(postgres, seconds=120)
    assert await postgres.dead_letters() == []
