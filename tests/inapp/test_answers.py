"""What a handler returns goes to another broker, with all that tells who it is; only then its row is deleted."""

import asyncio
from typing import Any

import pytest
from faststream import FastStream
from faststream.kafka import KafkaResponse

from faststream_outbox.annotations import OutboxMessage
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, publish, started, until_empty
from tests.inapp.places import Place


async def test_what_a_handler_returns_is_published_and_its_row_deleted(postgres: PostgresBackend, place: Place) -> None:
    broker, there = broker_on(postgres, source="shop"), place.broker()
    seen: list[OutboxMessage] = []

    @place.publisher(there)
    @broker.subscriber("q")
    async def handle(body: dict[str, int], message: OutboxMessage) -> dict[str, int]:
        seen.append(message)
        return {"doubled": 2 * body["number"]}

    async with postgres.transaction() as session:
        await broker.publish({"number": 21}, queue="q", session=session, key="k", correlation_id="c1")
    async with place.listening() as messages, started(broker):
        message = await messages.get()
        await until_empty(postgres)
    row = seen[0].raw_message
    assert await message.decode() == {"doubled": 42}
    assert message.correlation_id == "c1"
    outbox_id = f"shop/{row.id}-{row.created_epoch:.6f}"
    headers = {name: value for name, value in message.headers.items() if name.startswith("outbox_")}
    assert headers == {
        "outbox_id": outbox_id,
        "outbox_source": "shop",
        "outbox_key": "k",
        "outbox_sequence": str(row.id),
    }
    if "afka" not in type(there).__name__:  # whose message_id FastStream makes of the offset
        assert message.message_id == outbox_id
    else:
        assert message.headers["message_id"] == outbox_id
        assert place.key(message) == b"k"
