"""A connection on which the rows in hand take longer than a confirmation may: all arrive, and are settled."""

import os

import pytest

from faststream_outbox.relay import Relay
from faststream_outbox.relay.targets.base import Target
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.proxy import proxying
from tests.relay.endpoints import Endpoint, NatsCore, NatsStream, RabbitQueueEndpoint, RedisStream
from tests.relay.faults.settings import Address
from tests.waiting import until_empty

KINDS = (RabbitQueueEndpoint, NatsStream, NatsCore, RedisStream)
# All of it takes five seconds, longer than a confirmation may.
COUNT, SIZE, RATE = 100, 20_000, 400_000


@pytest.mark.parametrize("endpoint", KINDS, indirect=True, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("keys", [0, 40], ids=["without keys", "with keys"])
@pytest.mark.parametrize("place", ["payload", "headers"])
async def test_rows_arrive_over_a_slow_connection(
    postgres: PostgresBackend, endpoint: Endpoint, keys: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "confirm_timeout", 1.5)
    broker = broker_on(postgres)
    in_payload = place == "payload"
    bodies = [b"%d." % number + (os.urandom(SIZE) if in_payload else b"") for number in range(COUNT)]
    headers = None if in_payload else {"large": "x" * SIZE}
    async with postgres.transaction() as session:
        given = [f"k{number % keys}" if keys else None for number in range(COUNT)]
        await broker.publish_batch(*bodies, queue="q", keys=given, headers=headers, session=session)
    async with endpoint.listening() as inbox, proxying(endpoint.running.url) as proxy:
        proxy.rate = RATE
        own = type(endpoint)(Address(proxy.url(endpoint.running.url)))
        async with Relay(broker, to=own.broker(), routes={"q": endpoint.destination}):
            await until_empty(postgres, seconds=90)
        await inbox.until(COUNT)
    assert set(inbox.bodies) == set(bodies)
    assert await postgres.dead_letters() == []
