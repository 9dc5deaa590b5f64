"""A server that comes back is sent to again soon, also by whoever waits for an answer that died with it."""

import asyncio

import pytest

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.relay.destinations import NatsStream, Place, RabbitQueuePlace, RedisStream
from tests.waiting import until_empty

KEYS = 20
# The longest that a client takes to connect anew is five seconds, and there is other work to do.
BACK_SECONDS = 12.0


@pytest.mark.parametrize("place", [NatsStream, RabbitQueuePlace, RedisStream], indirect=True)
async def test_keys_go_on_when_the_server_is_back(postgres: PostgresBackend, place: Place) -> None:
    broker = broker_on(postgres, graceful_timeout=1.0)
    async with Relay(broker, to=place.broker(), routes={"q": place.destination}):
        await publish_keys(broker, postgres)
        await until_empty(postgres)
        place.running.pause()
        await publish_keys(broker, postgres)
        await asyncio.sleep(1.0)  # all are sent, which only the server could tell
        await place.running.kill()
        await place.running.start()
        async with asyncio.timeout(BACK_SECONDS):
            await until_empty(postgres)


async def publish_keys(broker: OutboxBroker, postgres: PostgresBackend) -> None:
    keys = [f"k{n}" for n in range(KEYS)]
    async with postgres.transaction() as session:
        await broker.publish_batch(*keys, queue="q", keys=keys, session=session)
