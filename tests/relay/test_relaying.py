"""Rows arrive at every kind of destination, on real servers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker

from faststream_outbox.relay import Relay, Route, by_header
from faststream_outbox.relay.targets import make_target
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on
from tests.relay.endpoints import Endpoint, KafkaEndpoint, NatsStream
from tests.relay.memory_target import Memory
from tests.waiting import until_empty


async def test_keys_keep_their_order(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        await broker.publish_batch(
            *(b"%d" % n for n in range(300)), queue="q", keys=[f"k{n % 10}" for n in range(300)], session=session
        )
    async with endpoint.listening() as inbox, Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination}):
        await inbox.until(300)
        await until_empty(postgres)
    assert inbox.by_key == {f"k{k}": [b"%d" % n for n in range(k, 300, 10)] for k in range(10)}


async def test_rows_without_keys_arrive_once(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    records = Records()
    broker = broker_on(postgres, records)
    async with postgres.transaction() as session:
        await broker.publish_batch(*(b"%d" % n for n in range(1000)), queue="q", session=session)
    target = make_target(endpoint.broker())
    target.confirm_timeout = 120.0  # a server on a busy machine confirms late, and a row without it is sent again
    async with endpoint.listening() as inbox, Relay(broker, to=target, routes={"q": endpoint.destination}):
        await inbox.until(1000)
        await until_empty(postgres)
    assert sorted(inbox.bodies) == sorted(b"%d" % n for n in range(1000))
    assert [record.getMessage() for record in records.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_bytes_and_headers_go_straight_through(postgres: PostgresBackend, endpoint: Endpoint) -> None:
    broker = broker_on(postgres)
    payload, headers = b"\x00\xff not JSON", {"tenant": "\u00e4", "content-type": "application/x-own"}
    where: dict[str, Any] = {"queue": "q", "key": "order 7", "headers": headers, "correlation_id": "c1"}
    async with postgres.transaction() as session:
        row = await broker.publish(payload, session=session, **where)
    relay = Relay(broker, to=endpoint.broker(), routes={"q": endpoint.destination}, source="shop", cloudevents=True)
    async with endpoint.listening() as inbox, relay:
        await inbox.until(1)
        await until_empty(postgres)
    [message] = inbox.messages
    assert message.body == payload
    assert message.correlation_id == "c1"
    assert message.headers["tenant"] == "\u00e4"
    assert message.headers["outbox_id"].startswith(f"shop/{row}-")
    assert message.headers["outbox_key"] == "order 7"
    assert message.headers["outbox_sequence"] == str(row)
    assert message.message_id == message.headers["outbox_id"]
    told = {name: value for name, value in message.headers.items() if name.startswith("ce_")}
    made = datetime.fromisoformat(told.pop("ce_time"))
    assert abs(datetime.now(UTC) - made) < timedelta(minutes=5)
    assert told == {
        "ce_specversion": "1.0",
        "ce_id": message.headers["outbox_id"].removeprefix("shop/"),
        "ce_source": "shop",
        "ce_type": "q",
        "ce_subject": "order 7",
        "ce_datacontenttype": "application/x-own",
    }
    if isinstance(endpoint, NatsStream):
        assert message.headers["Nats-Msg-Id"] == message.headers["outbox_id"]
    if isinstance(endpoint, KafkaEndpoint):
        assert message.key == "order 7"


async def test_a_destination_is_fixed_or_found_for_each_row(postgres: PostgresBackend) -> None:
    broker, endpoint = broker_on(postgres), Memory()
    routes: dict[str, Route] = {
        "orders": "fixed",
        "events": by_header("where", default="elsewhere"),
        "audit": lambda row: f"a.{row.entity_key}",
    }
    async with postgres.transaction() as session:
        await broker.publish(b"1", queue="orders", session=session)
        await broker.publish(b"2", queue="events", headers={"where": "there"}, session=session)
        await broker.publish(b"3", queue="events", session=session)
        await broker.publish(b"4", queue="audit", key="k", session=session)
    async with Relay(broker, to=endpoint, routes=routes):
        await until_empty(postgres)
    assert endpoint.destinations == {b"1": "fixed", b"2": "there", b"3": "elsewhere", b"4": "a.k"}


@pytest.mark.parametrize("careless", [{"acks": 0}, {"acks": 1, "enable_idempotence": False}])
async def test_kafka_confirms_with_all_replicas_and_takes_nothing_twice(careless: dict[str, Any]) -> None:
    """However the broker is set up that a relay was given."""
    aiokafka: Any = make_target(KafkaBroker("127.0.0.1:1", **careless))
    options = aiokafka._options
    assert (options["acks"], options["enable_idempotence"]) == ("all", True)
    confluent: Any = make_target(ConfluentBroker("127.0.0.1:1", **careless))
    assert (confluent._config["acks"], confluent._config["enable.idempotence"]) == (-1, True)
