"""Rows on their way to every kind of place, on real servers."""

from typing import Any

from faststream_outbox.relay import Relay
from tests.backends import PostgresBackend
from tests.broker.brokers import Records, broker_on, until_empty
from tests.relay.places import KafkaPlace, Place


async def test_keys_keep_their_order(postgres: PostgresBackend, place: Place) -> None:
    broker = broker_on(postgres)
    async with postgres.transaction() as session:
        await broker.publish_batch(
            *(b"%d" % n for n in range(300)), queue="q", keys=[f"k{n % 10}" for n in range(300)], session=session
        )
    async with place.listening() as inbox, Relay(broker, to=place.broker(), routes={"q": place.destination}):
        await inbox.until(300)
        await until_empty(postgres)
    assert inbox.by_key == {f"k{k}": [b"%d" % n for n in range(k, 300, 10)] for k in range(10)}


async def test_rows_without_keys_arrive_once(postgres: PostgresBackend, place: Place) -> None:
    records = Records()
    broker = broker_on(postgres, records)
    async with postgres.transaction() as session:
        await broker.publish_batch(*(b"%d" % n for n in range(1000)), queue="q", session=session)
    async with place.listening() as inbox, Relay(broker, to=place.broker(), routes={"q": place.destination}):
        await inbox.until(1000)
        await until_empty(postgres)
    assert sorted(inbox.bodies) == sorted(b"%d" % n for n in range(1000))
    assert [record.getMessage() for record in records.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_bytes_and_headers_go_straight_through(postgres: PostgresBackend, place: Place) -> None:
    broker = broker_on(postgres)
    payload, headers = b"\x00\xff not JSON", {"tenant": "\u00e4", "content-type": "application/x-own"}
    where: dict[str, Any] = {"queue": "q", "key": "order 7", "headers": headers, "correlation_id": "c1"}
    async with postgres.transaction() as session:
        row = await broker.publish(payload, session=session, **where)
    relay = Relay(broker, to=place.broker(), routes={"q": place.destination}, source="shop", cloudevents=True)
    async with place.listening() as inbox, relay:
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
    assert message.headers["ce_type"] == "q"
    if isinstance(place, KafkaPlace):
        assert message.key == "order 7"
