"""Messages that a client chokes on, or that a server hangs up on: they are refused, and others arrive."""

from typing import Any

import pytest

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay, by_header
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import (
    ConfluentEndpoint,
    Endpoint,
    KafkaEndpoint,
    NatsCore,
    NatsStream,
    RabbitQueueEndpoint,
    RedisStream,
)
from tests.waiting import until_empty

MIB = 1024 * 1024
KEYS = ("a", "b", None)

POISONS: list[Any] = [
    pytest.param(NatsStream, {"headers": {"a b": "1"}}, id="NatsStream, a header's name"),
    pytest.param(NatsCore, {"headers": {"ключ": "1"}}, id="NatsCore, a header's name"),
    pytest.param(NatsStream, {"body": b"x" * (MIB - 60)}, id="NatsStream, too large with its headers"),
    pytest.param(NatsCore, {"body": b"x" * (MIB - 60)}, id="NatsCore, too large with its headers"),
    pytest.param(NatsStream, {"where": "x" * 5000}, id="NatsStream, a long subject"),
    pytest.param(KafkaEndpoint, {"where": "x" * 5000}, id="Kafka, a long topic"),
    pytest.param(ConfluentEndpoint, {"where": "x" * 5000}, id="Confluent, a long topic"),
    pytest.param(RabbitQueueEndpoint, {"where": "no-exchange/x"}, id="RabbitMQ, no exchange"),
    pytest.param(RedisStream, {"headers": {"a": "1" * 70_000}}, id="Redis, a long header"),
]


async def publish(broker: OutboxBroker, postgres: PostgresBackend, endpoint: Endpoint, poison: dict[str, Any]) -> None:
    """Publish ten messages of each key, and as many without one; the fourth of each is bad."""
    async with postgres.transaction() as session:
        for number in range(30):
            bad = number // 3 == 3
            headers = {"where": endpoint.destination}
            if bad:
                headers |= poison.get("headers", {})
                headers["where"] = poison.get("where", endpoint.destination)
            body = poison.get("body", b"bad") if bad else b"%d" % number
            await broker.publish(body, queue="q", key=KEYS[number % 3], headers=headers, session=session)


@pytest.mark.parametrize(("endpoint", "poison"), POISONS, indirect=["endpoint"])
async def test_poison_harms_no_other_message(
    postgres: PostgresBackend, endpoint: Endpoint, poison: dict[str, Any]
) -> None:
    records = Records()
    broker = broker_on(postgres, records)
    await publish(broker, postgres, endpoint, poison)
    async with endpoint.listening() as inbox:
        async with Relay(broker, to=endpoint.broker(), routes={"q": by_header("where")}):
            await until_empty(postgres)
        await inbox.until(27)
    assert {dead.payload for dead in await postgres.dead_letters()} == {poison.get("body", b"bad")}
    assert {dead.failure_reason for dead in await postgres.dead_letters()} == {"rejected"}
    for n, key in enumerate(KEYS[:2]):
        assert list(dict.fromkeys(inbox.by_key[str(key)])) == [b"%d" % i for i in range(n, 30, 3) if i // 3 != 3]
    assert records.named("relay_paused") == []
    assert records.named("retry_scheduled") == []
