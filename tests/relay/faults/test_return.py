"""A server that comes back is sent to again soon, also by a relay that waits for an answer that will not come."""

import asyncio

import pytest

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.relay.endpoints import Endpoint, NatsStream, RabbitQueueEndpoint, RedisStream
from tests.waiting import until_empty

KEYS = 20
# The longest that a client takes to connect anew is five seconds, and there is other work to do.
BACK_SECONDS = 12.0


@pytest.mark.parametrize("endpoint", [NatsStream, RabbitQueueEndpoint, RedisStream], indirect=True)
async def test_keys_go_on_when_the_server_is_back(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker = broker_on(postgres, graceful_timeout=1.0)
    async with Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination}):
        await publish_keys(broker, postgres)
        await until_empty(postgres)
        endpoint.running.pause()
        await publish_keys(broker, postgres)
        await asyncio.sleep(1.0)  # all are sent, which only the server could tell
        await endpoint.running.kill()
        await endpoint.running.start()
        async with asyncio.timeout(BACK_SECONDS):
            await until_empty(postgres)


async def publish_keys(broker: OutboxBroker, postgres: PostgresBackend) -> None:
    keys = [f"k{n}" for n in range(KEYS)]
    async with postgres.transaction() as session:
        await broker.publish_batch(*keys, queue="q", keys=keys, session=session)
