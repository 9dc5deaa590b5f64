"""Messages that a client chokes on, or that a server hangs up on: they are refused, and others arrive."""

from typing import Any

import nats
import pytest
from sqlalchemy import text

from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay, by_header
from faststream_outbox.relay.targets.base import Target
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
    pytest.param(RabbitQueueEndpoint, {"headers": {"a": "1" * 140_000}}, id="RabbitMQ, headers over frame_max"),
    pytest.param(
        RabbitQueueEndpoint, {"headers": {f"a{n}": "\u20ac" * 500 for n in range(90)}}, id="RabbitMQ, many headers"
    ),
    pytest.param(RabbitQueueEndpoint, {"headers": {"a" * 129: "1"}}, id="RabbitMQ, a long name of a header"),
    pytest.param(RabbitQueueEndpoint, {"headers": {"\u20ac" * 86: "1"}}, id="RabbitMQ, a name of many bytes"),
    pytest.param(RabbitQueueEndpoint, {"headers": {"correlation_id": "1" * 256}}, id="RabbitMQ, a long id"),
    pytest.param(RabbitQueueEndpoint, {"where": "q" * 256}, id="RabbitMQ, a long queue"),
    pytest.param(RabbitQueueEndpoint, {"where": f"{'x' * 300}/k"}, id="RabbitMQ, a long exchange"),
    pytest.param(RabbitQueueEndpoint, {"where": "the exchange/k"}, id="RabbitMQ, an exchange with a space"),
    pytest.param(NatsStream, {"where": "orders..x"}, id="NatsStream, an empty part"),
    pytest.param(NatsStream, {"where": "audit.bob."}, id="NatsStream, an empty last part"),
    pytest.param(NatsCore, {"where": "core:.x"}, id="NatsCore, an empty first part"),
    pytest.param(NatsStream, {"where": "$JS.API.STREAM.NAMES"}, id="NatsStream, JetStream's own subject"),
    pytest.param(NatsCore, {"where": "core:$SYS.REQ.SERVER.PING"}, id="NatsCore, the server's own subject"),
    pytest.param(NatsCore, {"where": "core:_INBOX.x"}, id="NatsCore, an inbox"),
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


@pytest.mark.parametrize("endpoint", [RabbitQueueEndpoint], indirect=True)
async def test_headers_that_just_fit_arrive_at_rabbitmq(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker = broker_on(postgres)
    headers = {"a": "1" * 129_000, "b" * 128: "\u20ac"}
    async with postgres.transaction() as session:
        await broker.publish(b"large", queue="q", headers=headers, session=session)
    async with endpoint.listening() as inbox, Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination}):
        await inbox.until(1)
        await until_empty(postgres)
    assert inbox.messages[0].headers.items() >= headers.items()


NESTED = '{"a": ' + "[" * 3000 + "]" * 3000 + "}"


@pytest.mark.parametrize("endpoint", [KafkaEndpoint, ConfluentEndpoint, NatsStream, RedisStream], indirect=True)
async def test_headers_that_are_nested_too_deep_harm_no_other(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    """An insert by SQL may write any JSON there."""
    records = Records()
    broker = broker_on(postgres, records)
    async with postgres.transaction() as session:
        for number in range(30):
            await broker.publish(b"%d" % number, queue="q", key=KEYS[number % 3], session=session)
        statement = text(
            "UPDATE outbox SET headers = CAST(:headers AS json) WHERE id IN (SELECT min(id) + 9 FROM outbox)"
        )
        await session.execute(statement, {"headers": NESTED})
    async with endpoint.listening() as inbox:
        async with Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination}):
            await until_empty(postgres)
        await inbox.until(29)
    assert [(dead.payload, dead.failure_reason) for dead in await postgres.dead_letters()] == [(b"9", "rejected")]
    assert inbox.by_key["a"] == [b"%d" % number for number in range(0, 30, 3) if number != 9]
    assert records.named("retry_scheduled") == []


@pytest.mark.parametrize("answer", [b"thanks", b"{}", b"1", None], ids=["text", "no fields", "a number", "silent"])
@pytest.mark.parametrize("endpoint", [NatsStream], indirect=True)
async def test_a_subject_without_a_stream_is_refused_though_a_subscriber_has_it(
    postgres: PostgresBackend, endpoint: Endpoint, answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "confirm_timeout", 2.0)
    records = Records()
    broker = broker_on(postgres, records)
    await publish(broker, postgres, endpoint, {"where": f"{endpoint.name}.core"})
    client = await nats.connect(endpoint.running.url)

    async def reply(message: Any) -> None:
        if answer is not None:
            await message.respond(answer)

    await client.subscribe(f"{endpoint.name}.core", cb=reply)
    async with endpoint.listening() as inbox:
        async with Relay(broker, to=endpoint.broker(), routes={"q": by_header("where")}):
            await until_empty(postgres)
        await inbox.until(27)
    await client.close()
    dead = await postgres.dead_letters()
    assert [(each.payload, each.failure_reason) for each in dead] == [(b"bad", "rejected")] * 3
    assert "No JetStream stream has the subject" in str(dead[0].last_exception)
    assert records.named("relay_paused") == []
    assert records.named("retry_scheduled") == []
