"""What a relay says when it starts, and the brokers that it does not start with."""

from typing import Any

import pytest
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.confluent import TestKafkaBroker as TestConfluentBroker
from faststream.kafka import KafkaBroker, TestKafkaBroker
from faststream.nats import NatsBroker, TestNatsBroker
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from faststream.redis import RedisBroker, TestRedisBroker
from sqlalchemy import MetaData

from faststream_outbox import OutboxBroker, Relay, TestOutboxBroker, make_outbox_table
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.memory_target import Memory
from tests.servers.redis import Redis

TESTS: list[tuple[Any, Any, str]] = [
    (KafkaBroker, TestKafkaBroker, "t"),
    (ConfluentBroker, TestConfluentBroker, "t"),
    (RabbitBroker, TestRabbitBroker, "t"),
    (NatsBroker, TestNatsBroker, "core:t"),
    (RedisBroker, TestRedisBroker, "t"),
]


@pytest.mark.parametrize(("kind", "test", "destination"), TESTS, ids=[each[1].__module__ for each in TESTS])
async def test_a_test_broker_cannot_stand_in_for_the_target(kind: Any, test: Any, destination: str) -> None:
    broker, target = OutboxBroker(outbox_table=make_outbox_table(MetaData())), kind()
    relay = Relay(broker, to=target, routes={"orders": destination})
    async with test(target), TestOutboxBroker(broker):
        await broker.publish(1, queue="orders")
        with pytest.raises(RuntimeError, match=rf"The {kind.__name__} of this relay is in a test broker.*fake_client"):
            await relay.start()
        assert not relay.alive
        assert [row.queue for row in broker.fake_client.rows] == ["orders"]


async def test_a_relay_that_starts_is_in_the_log(postgres: PostgresBackend) -> None:
    records = Records()
    relay = Relay(broker_on(postgres, records), to=Memory(), routes={"orders": "t", "mails": "t"})
    async with relay:
        [started] = records.named("relay_started")
    assert started.levelname == "INFO"
    assert started.getMessage() == "Relaying the rows of 'orders', 'mails' to a Memory."
    assert (started.queue, started.subscriber, started.to) == ("orders,mails", "relay", "Memory")


@pytest.mark.parametrize(("address", "options"), [("?nonsense=1", {}), ("", {"nonsense": 1})], ids=["URL", "option"])
async def test_options_that_redis_does_not_accept_are_refused(
    postgres: PostgresBackend, redis_server: Redis, address: str, options: dict[str, Any]
) -> None:
    """Its client looks at them for the first message only, and each would fail and be dead."""
    relay = Relay(broker_on(postgres), to=RedisBroker(redis_server.url + address, **options), routes={"q": "orders"})
    with pytest.raises(ValueError, match=r"does not accept an option .* 'nonsense'"):
        await relay.start()
    await relay.stop()
