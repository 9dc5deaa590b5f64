"""RabbitMQ is silent, or closes the channel."""

import pytest
from faststream.rabbit import RabbitBroker

from faststream_outbox.relay import Relay, relay
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on
from tests.proxy import proxying
from tests.relay.endpoints import RabbitQueueEndpoint
from tests.waiting import until

only_rabbit = pytest.mark.parametrize("endpoint", [RabbitQueueEndpoint], indirect=True, ids=["rabbit"])


@only_rabbit
async def test_starts_that_are_given_up_leave_no_connection_behind(
    postgres: PostgresBackend, endpoint: RabbitQueueEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aio-pika's own connection would try on, and each would reach RabbitMQ when that answers again."""
    monkeypatch.setattr(relay, "_CONNECT_SECONDS", 0.2)
    async with proxying(endpoint.running.url) as proxy:
        proxy.freeze()
        to = RabbitBroker(proxy.url(endpoint.running.url), logger=None)
        async with Relay(broker_on(postgres), to=to, routes={"q": endpoint.destination}) as running:
            for _ in range(3):
                assert not await running.ping(0.2)
            proxy.thaw()
            await until(lambda: not running.paused)
            await until(lambda: proxy.connections == 1)
        await until(lambda: proxy.connections == 0)
