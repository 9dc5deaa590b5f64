"""A Redis that deletes what it has confirmed, and what it says about a message that it refuses."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import redis.asyncio
from faststream.redis import RedisBroker

from faststream_outbox.relay import Relay
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.servers.redis import Redis
from tests.waiting import until_empty


@pytest.fixture
async def client(redis_server: Redis) -> AsyncIterator[Any]:
    client = redis.asyncio.from_url(redis_server.url)
    yield client
    await client.config_set("maxmemory", "0")
    await client.config_set("maxmemory-policy", "noeviction")
    await client.acl_deluser("narrow")
    await client.aclose()


def redis_at(client: Any, user: str = "") -> RedisBroker:
    port = client.connection_pool.connection_kwargs["port"]
    return RedisBroker(f"redis://{user}127.0.0.1:{port}")


EVICTING = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}


@pytest.mark.parametrize(
    ("settings", "destination", "warned"),
    [
        (EVICTING, "stream:s", True),
        (EVICTING, "list:l", True),
        (EVICTING, "channel:c", False),
        (EVICTING | {"maxmemory": "0"}, "stream:s", False),
        (EVICTING | {"maxmemory-policy": "allkeys-random"}, "stream:s", True),
        (EVICTING | {"maxmemory-policy": "volatile-lru"}, "stream:s", False),
    ],
)
async def test_a_redis_that_evicts_is_named(
    postgres: PostgresBackend, client: Any, settings: dict[str, str], destination: str, *, warned: bool
) -> None:
    for name, value in settings.items():
        await client.config_set(name, value)
    records = Records()
    async with Relay(broker_on(postgres, records), to=redis_at(client), routes={"q": destination}) as relay:
        checks = await relay.check_destinations()
    texts = [each.text for each in checks if not each.found]
    warnings = [record.getMessage() for record in records.named("unsafe_broker")]
    assert (len(texts), len(warnings)) == (warned, warned)
    assert all(f"maxmemory-policy {settings['maxmemory-policy']}" in each for each in texts + warnings)


async def test_a_redis_that_may_not_be_asked_is_not_named(postgres: PostgresBackend, client: Any) -> None:
    for name, value in EVICTING.items():
        await client.config_set(name, value)
    await client.acl_setuser(
        "narrow", enabled=True, passwords=["+narrow"], keys=["*"], categories=["+@all"], commands=["-info", "-config"]
    )
    records = Records()
    broker = broker_on(postgres, records)
    async with postgres.transaction() as session:
        await broker.publish(b"1", queue="q", session=session)
    async with Relay(broker, to=redis_at(client, "narrow:narrow@"), routes={"q": f"s{uuid4().hex}"}) as relay:
        await until_empty(postgres)
        assert all(each.found for each in await relay.check_destinations())
    assert records.named("unsafe_broker") == []
    assert await postgres.dead_letters() == []


async def test_a_refusal_shows_no_value_of_the_message(postgres: PostgresBackend, client: Any) -> None:
    """The client puts the command before the answer if Redis refuses it within a transaction."""
    await client.acl_setuser(
        "narrow", enabled=True, passwords=["+narrow"], keys=["*"], categories=["+@all"], commands=["-xadd"]
    )
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        for key in ("a", None):
            await broker.publish(b"secret", queue="q", key=key, headers={"card": "secret"}, session=session)
    async with Relay(broker, to=redis_at(client, "narrow:narrow@"), routes={"q": f"s{uuid4().hex}"}):
        await until_empty(postgres)
    dead = await postgres.dead_letters()
    assert len(dead) == 2
    for row in dead:
        assert "NoPermissionError" in str(row.last_exception)
        assert "secret" not in str(row.last_exception)
        assert "XADD" not in str(row.last_exception)
