"""A client of Redis with fewer connections than a relay has keys on their way: they take turns."""

import pytest
from faststream.redis import RedisBroker

from faststream_outbox.relay import Relay, by_header
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import Endpoint, RedisStream
from tests.waiting import until_empty

COUNT = 300


@pytest.mark.parametrize("endpoint", [RedisStream], indirect=True, ids=["redis"])
@pytest.mark.parametrize("keys", [COUNT, 100, 0], ids=["a row a key", "a key to two destinations", "no keys"])
async def test_a_relay_takes_no_lack_of_connections_for_an_outage(
    postgres: PostgresBackend, endpoint: Endpoint, keys: int
) -> None:
    records = Records()
    broker = broker_on(postgres, records)
    async with postgres.transaction() as session:
        for number in range(COUNT):
            key = f"k{number % keys}" if keys else None
            headers = {"to": f"list:{endpoint.destination}"} if number % 200 > 100 else None
            await broker.publish(b"%d" % number, queue="q", key=key, headers=headers, session=session)
    to = RedisBroker(f"{endpoint.running.url}?max_connections=3")
    route = by_header("to", default=f"list:{endpoint.destination}-other")
    async with Relay(broker, to=to, routes={"q": route}, max_records=2):
        await until_empty(postgres)
    assert records.named("relay_paused") == []
    assert await postgres.dead_letters() == []
